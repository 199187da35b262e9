"""Interfaces of the machine for the broker: clocks, event loop, threads, processes, disk, randomness.

The broker gets an Environment as a parameter. So it also runs in virtual time, on simulated disks and networks.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from kbroker.runtime.turns import Turns

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, Handle, Transport
    from random import Random

    from kbroker.runtime.disk import DirectSocket, Disk

T = TypeVar("T")


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return the wall clock, in milliseconds since the epoch: for timestamps and all other stored times."""
        ...

    def mono_ms(self) -> int:
        """Return the monotonic clock: for sessions, deadlines, intervals. Never stored."""
        ...

    def mono_ns(self) -> int:
        """Return the monotonic clock in nanoseconds: for the duration of requests."""
        ...


class Offload(Protocol):
    """Runs a blocking function in a thread. Returns its result on the event loop."""

    def __call__(self, fn: Callable[..., T], /, *args: object) -> Awaitable[T]: ...


class ProcessFunction(Protocol):
    """A function of a module that can run in another process: all its inputs are parameters."""

    def __call__(self, disk: "Disk", clock: Clock, sleep: Callable[[float], None], task: bytes, /) -> bytes: ...


class ProcessJobFailed(Exception):
    """The process has ended without a result: the function raised, or the process was killed."""


class ProcessJob(Protocol):
    """A function that runs in another process, which ends when the broker ends for any reason."""

    @property
    def done(self) -> Awaitable[bytes]:
        """The result, on the event loop. Raises ProcessJobFailed."""
        ...

    def kill(self) -> None:
        """Kill the process. Once `done` is done, the process has no further effect."""
        ...


class ProcessRunner(Protocol):
    """Runs a function in another process, at the lowest priority for CPU and disk."""

    def __call__(self, job: ProcessFunction, task: bytes | bytearray, /) -> ProcessJob: ...


class Service(Protocol):
    """A program that runs beside the broker until one of both ends, and exchanges bytes with it."""

    def send(self, data: bytes, /) -> None: ...

    def kill(self) -> None:
        """Kill the program. Its `ended` is called when that has happened."""
        ...


class ServiceStarter(Protocol):
    def __call__(self, module: str, receive: Callable[[bytes], None], ended: Callable[[str], None], /) -> Service:
        """Start a module as a program whose standard input and output are a connection to the broker.

        Calls `receive` with the bytes that the program sends, and `ended` once, with the reason, also if it did not
        start; both on the event loop, later.
        """
        ...


class DescriptorLimits(NamedTuple):
    """How the file descriptors of the process (RLIMIT_NOFILE) are divided.

    The system assigns the lowest free number. A connection is closed if its number is not below `connections`, and the
    disk does not keep a file open if its number is not below `files`. So some descriptors are reserved for logs, and
    others for files that are open for a short time: directories that are synced, checkpoints, modules that are imported
    at first use, the pipes of the cleaner's process.
    """

    limit: int
    files: int
    connections: int

    @classmethod
    def of(cls, limit: int) -> "DescriptorLimits":
        """Divide `limit`, the number of file descriptors that the process may have."""
        for_files = max(limit // 4, min(100, limit // 2))
        return cls(limit, limit - min(32, limit // 4), limit - for_files)


UNLIMITED_DESCRIPTORS = DescriptorLimits.of(1 << 30)


def _ignore_thread_count(count: int) -> None:
    """Do nothing; for environments without threads."""


def _no_services(module: str, receive: Callable[[bytes], None], ended: Callable[[str], None], /) -> Service:
    """For environments without other programs."""
    raise NotImplementedError(f"this environment cannot run {module}")


def _no_direct_socket(transport: "Transport") -> None:
    """For environments without sockets."""


@dataclass(slots=True)
class Environment:
    """The machine of one broker.

    Everything but the edge (tests/unit/test_imports.py) uses asyncio through `loop`: timers, futures, tasks, sockets.
    `set_thread_count`: sets the number of threads of `offload`. `direct_socket`: returns the socket of a transport, or
    None if files cannot be sent to it directly, for example because it encrypts. `turns`: for work in the background.
    """

    loop: "AbstractEventLoop"
    clock: Clock
    disk: "Disk"
    random: "Random"
    offload: Offload
    process_runner: ProcessRunner
    set_thread_count: Callable[[int], None] = _ignore_thread_count
    descriptors: DescriptorLimits = UNLIMITED_DESCRIPTORS
    direct_socket: "Callable[[Transport], DirectSocket | None]" = _no_direct_socket
    start_service: ServiceStarter = _no_services
    turns: Turns = field(init=False)

    def __post_init__(self) -> None:
        self.turns = Turns(self.yield_to_loop, self.clock.mono_ns)

    async def yield_to_loop(self) -> None:
        """Wait until the other callbacks that are ready have run."""
        future = self.loop.create_future()
        await _await_or_cancel(future, self.loop.call_soon(_finish, future))

    async def sleep(self, seconds: float) -> None:
        future = self.loop.create_future()
        await _await_or_cancel(future, self.loop.call_later(seconds, _finish, future))


def _finish(future: "Future[None]") -> None:
    # It may have been cancelled in the same turn of the loop, before its task could cancel this callback.
    if not future.done():
        future.set_result(None)


async def _await_or_cancel(future: "Future[None]", handle: "Handle") -> None:
    """Cancel the callback if the waiting task is cancelled."""
    try:
        await future
    finally:
        handle.cancel()
