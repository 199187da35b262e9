"""The environment of a real broker: the machine's clocks, disk, threads, processes and randomness."""

import asyncio
import os
import resource
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from errno import EADDRINUSE
from functools import partial
from random import SystemRandom
from typing import TypeVar

from kbroker.common import format_address
from kbroker.runtime.environment import UNLIMITED_DESCRIPTORS, DescriptorLimits, Environment
from kbroker.runtime.process_runner import ChildService, SystemProcessRunner
from kbroker.runtime.real_disk import RealDisk
from kbroker.runtime.system_clock import SystemClock

T = TypeVar("T")


class ThreadPool:
    """Runs blocking functions: reads from the disk, syncs, opening and deletion of logs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._size = 0
        self._executor: ThreadPoolExecutor | None = None

    def resize(self, size: int) -> None:
        """Replace the threads by `size` new ones. The old ones finish the functions that were submitted to them."""
        if size == self._size:
            return
        old, self._size = self._executor, size
        self._executor = ThreadPoolExecutor(size, thread_name_prefix="kbroker-blocking")
        if old is not None:
            old.shutdown(wait=False)

    def __call__(self, fn: Callable[..., T], /, *args: object) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._executor, fn, *args)


def system_environment(loop: asyncio.AbstractEventLoop) -> Environment:
    threads = ThreadPool(loop)
    descriptors = DescriptorLimits.of(_descriptor_limit())
    return Environment(
        loop=loop,
        clock=SystemClock(),
        disk=RealDisk(descriptors.files),
        random=SystemRandom(),
        offload=threads,
        process_runner=SystemProcessRunner(loop),
        set_thread_count=threads.resize,
        descriptors=descriptors,
        direct_socket=direct_socket,
        start_service=partial(ChildService, loop),
    )


class BorrowedSocket(socket.socket):
    """A socket whose file descriptor belongs to a transport, which closes it."""

    def end_stream(self) -> None:
        with suppress(OSError):
            self.shutdown(socket.SHUT_WR)

    def __del__(self) -> None:
        self.detach()


def direct_socket(transport: asyncio.Transport) -> BorrowedSocket | None:
    """Return the socket of a transport, to send files to it; None if that is not possible."""
    owned = transport.get_extra_info("socket")
    if owned is None or transport.get_extra_info("ssl_object") is not None or not hasattr(socket, "MSG_MORE"):
        return None
    try:
        return BorrowedSocket(owned.family, owned.type, owned.proto, owned.fileno())
    except OSError:
        # The connection is broken, which the transport will notice.
        return None


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop if it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def start_serving(server: asyncio.Server) -> None:
    """Listen on the addresses that a server has bound. Raises OSError.

    Several processes can bind a port before one of them listens. uvloop does not raise the error of the others: it
    closes the socket, and the server would run without it.
    """
    addresses = [bound.getsockname() for bound in server.sockets]
    await server.start_serving()
    for (host, port, *_), listening in zip(addresses, server.sockets, strict=True):
        if listening is None or listening.fileno() < 0:
            raise OSError(EADDRINUSE, f"cannot listen on {format_address(host, port)}: address already in use")


def raise_descriptor_limit() -> None:
    """Raise the soft limit of file descriptors, usually 1,024, to the hard limit: a partition keeps files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def notify_service_manager(state: str) -> None:
    """Report a state of the process to systemd, if that has started it with Type=notify: see sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        # A name that begins with @ is in the abstract namespace.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifying:
            notifying.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)


def _descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else UNLIMITED_DESCRIPTORS.limit
