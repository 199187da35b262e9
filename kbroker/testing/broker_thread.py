"""One run of a broker in a thread of the test's process, with an event loop of its own.

It ends as a process does: by a clean stop, or killed in the middle of whatever it does. Nothing of a killed broker has
an effect afterwards: its sockets and its lock are closed, its threads have ended, and its disk refuses their writes.
"""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from functools import partial
from random import SystemRandom
from typing import Any, TypeVar
from weakref import WeakSet

from kbroker.broker import Broker
from kbroker.client.requests import Address
from kbroker.config import BrokerConfig
from kbroker.metadata.coordination_sessions import OpenSession
from kbroker.runtime.environment import Environment
from kbroker.runtime.process_runner import ChildService
from kbroker.runtime.system import direct_socket
from kbroker.testing.clock import MovableClock, MovableLoop, ThreadJob, Threads
from kbroker.testing.disk import ControlledDisk, DiskControl
from kbroker.testing.faults import FaultDispatch, RequestLog

T = TypeVar("T")

# How this machine reaches what listens on all of its addresses.
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
START_S = 60.0
STOP_S = 60.0


class LoopThread:
    """A thread with an event loop, and the environment of what runs on it."""

    def __init__(self, name: str, clock: MovableClock, disk: DiskControl) -> None:
        loop = self.loop = MovableLoop(clock)
        threads = self.threads = Threads(loop)
        controlled = self.disk = ControlledDisk(disk)
        self.environment = Environment(
            loop=loop,
            clock=clock,
            disk=controlled,
            random=SystemRandom(),
            offload=threads,
            process_runner=lambda job, task: ThreadJob(threads, controlled, clock, job, bytes(task)),
            direct_socket=direct_socket,
            start_service=partial(ChildService, loop),
        )
        self._thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = 30.0) -> T:
        """Run a coroutine on the loop, from another thread, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def end(self) -> None:
        """End the thread as it is, and everything that runs on its loop."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close_sockets()
        self.disk.die()
        self.threads.stop()
        with warnings.catch_warnings():
            # Coroutines that a task has created may never have been awaited.
            warnings.simplefilter("ignore", RuntimeWarning)
            for task in asyncio.all_tasks(self.loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    task.get_coro().close()
        self.loop.close()


class BrokerThread(LoopThread):
    """A broker that runs. `bootstrap`: the address of its first listener for clients;
    `local`: for those on this machine. One that fails by itself says so in the log."""

    def __init__(
        self,
        configs: Mapping[str, str],
        clock: MovableClock,
        disk: DiskControl,
        log: RequestLog,
        open_session: OpenSession | None = None,
    ) -> None:
        """Start a broker, and wait until it serves. Raises what keeps it from starting."""
        config = BrokerConfig.load(configs)
        super().__init__("kbroker-testing", clock, disk)
        _running.add(self)
        try:
            self.broker = Broker(self.environment, config, open_session, dispatch=FaultDispatch(log, self.environment))
            self.bootstrap = self.run(self.broker.start(), START_S)
            host, port, *_ = self.loop.servers[0].sockets[0].getsockname()
            self.local: Address = (LOOPBACK.get(host, host), port)
        except BaseException:
            self.stop()
            raise

    def postpone_sessions(self, ms: int) -> None:
        """Move the deadlines of all members of groups later."""

        async def postpone() -> None:
            for context in self.broker.services.groups.runtime.contexts():
                for group in context.shard.groups.values():
                    group.deadlines.postpone(ms)

        self.run(postpone())

    def stop(self) -> None:
        """Stop the broker as SIGTERM does."""
        with suppress(Exception):
            self.run(self.broker.stop(), STOP_S)
        self.end()

    def kill(self) -> None:
        """End the broker as SIGKILL does: clients see their connections end, files stay as they are."""
        self.disk.die()
        self.end()

    def end(self) -> None:
        super().end()
        _running.discard(self)

    def forget_in_child(self) -> None:
        """Close what a forked process has inherited: it would keep the port open and the data directory locked.

        The objects of the sockets keep valid descriptors, of /dev/null: a later close must not hit other files.
        """
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in self.loop.descriptors():
            os.dup2(null, descriptor, inheritable=False)
        os.close(null)
        for lock in self.disk.locks:
            lock.close()


# Those that a forked process must not keep.
_running: WeakSet[BrokerThread] = WeakSet()


def _after_fork_in_child() -> None:
    for thread in list(_running):
        with suppress(OSError):
            thread.forget_in_child()
    _running.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
