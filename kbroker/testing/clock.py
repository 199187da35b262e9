"""The clock of brokers in a test: the machine's clock, plus an offset that the test moves forward.

The event loop's time has the same offset, so timers that a jump passes are due at once. uvloop's time cannot move,
which is why these brokers use asyncio's own loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kbroker.runtime.disk import Disk
from kbroker.runtime.environment import ProcessFunction, ProcessJobFailed

T = TypeVar("T")

# `settle` returns after this time at the latest, in seconds: clients may keep a broker busy forever.
MAX_SETTLE_S = 10.0
# What a thread does is looked at again after this time, in seconds.
OFFLOADED_CHECK_S = 0.001


class MovableClock:
    """`offset_ns`: how far the test has moved it. Loops of several threads may share it."""

    def __init__(self) -> None:
        self.offset_ns = 0

    def now_ms(self) -> int:
        return (time.time_ns() + self.offset_ns) // 1_000_000

    def mono_ms(self) -> int:
        return self.mono_ns() // 1_000_000

    def mono_ns(self) -> int:
        return time.monotonic_ns() + self.offset_ns


class MovableLoop(asyncio.SelectorEventLoop):
    """An event loop in the time of a MovableClock. `servers`: those that it has bound."""

    # What asyncio's loop has, and does not declare.
    _ready: Any
    _scheduled: list[asyncio.TimerHandle]
    _transports: Any

    def __init__(self, clock: MovableClock) -> None:
        self.clock = clock
        self.servers: list[asyncio.Server] = []
        super().__init__()

    def time(self) -> float:
        return self.clock.mono_ns() / 1e9

    async def create_server(self, *args: Any, **options: Any) -> asyncio.Server:
        server = await super().create_server(*args, **options)
        self.servers.append(server)
        return server

    def descriptors(self) -> list[int]:
        """Return the file descriptors of all open sockets."""
        # A transport is listed until it is collected, when other files may have got the number of its socket.
        open_ = [transport._sock for transport in self._transports.values() if transport._sock is not None]
        listening = [socket for server in self.servers for socket in server.sockets]
        return [descriptor for socket in (*listening, *open_) if (descriptor := socket.fileno()) >= 0]

    def close_sockets(self) -> None:
        """Close all sockets of a loop that was stopped, as the system does when a process is killed."""
        for server in self.servers:
            server.close()
        for transport in list(self._transports.values()):
            socket, transport._sock = transport._sock, None
            if socket is not None:
                socket.close()

    def has_work(self) -> bool:
        """Return whether callbacks are ready, or timers are due."""
        due = self.time()
        return bool(self._ready) or any(timer.when() <= due and not timer.cancelled() for timer in self._scheduled)


class Threads:
    """The threads of one broker. `running`: functions that have not ended, which the loop counts."""

    def __init__(self, loop: MovableLoop) -> None:
        self.running = 0
        self._loop = loop
        self._executor = ThreadPoolExecutor(4, thread_name_prefix="kbroker-testing")

    def __call__(self, fn: Callable[..., T], /, *args: object) -> asyncio.Future[T]:
        self.running += 1
        future = self._loop.run_in_executor(self._executor, fn, *args)
        future.add_done_callback(self._on_done)
        return future

    def _on_done(self, _: object) -> None:
        self.running -= 1

    def stop(self) -> None:
        """Wait for the functions that are running; those that wait for a thread are dropped."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def settle(self) -> None:
        """Wait until nothing is due, ready, or running in a thread, but at most MAX_SETTLE_S."""
        deadline = time.monotonic() + MAX_SETTLE_S
        while (self.running or self._loop.has_work()) and time.monotonic() < deadline:
            await asyncio.sleep(OFFLOADED_CHECK_S if self.running else 0)


class ThreadJob:
    """A ProcessJob in a thread: another process would have the machine's own clock and disk."""

    def __init__(self, threads: Threads, disk: Disk, clock: MovableClock, job: ProcessFunction, task: bytes) -> None:
        self._is_killed = False

        def run() -> bytes:
            try:
                return job(disk, clock, self._sleep, task)
            except Exception as error:
                raise ProcessJobFailed(f"{type(error).__name__}: {error}") from error

        self.done = threads(run)

    def kill(self) -> None:
        self._is_killed = True

    def _sleep(self, seconds: float) -> None:
        """Sleep in the job. Jobs call it often, which ends one that was killed."""
        if self._is_killed:
            raise ProcessJobFailed("the job was killed")
        time.sleep(min(seconds, 0.01))
