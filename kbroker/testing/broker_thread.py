"""One run of a broker in a thread of the test's process, with an event loop of its own.

It ends as a process does: by a clean stop, or killed in the middle of whatever it does. Nothing of a killed broker has
an effect afterwards: its sockets and its lock are closed, its threads have ended, and its disk refuses their writes.
"""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from random import SystemRandom
from typing import Any, TypeVar
from weakref import WeakSet

from kbroker.broker import Broker
from kbroker.config import BrokerConfig
from kbroker.metadata.coordination_sessions import OpenSession
from kbroker.runtime.environment import Environment
from kbroker.runtime.system import direct_socket
from kbroker.testing.clock import MovableClock, MovableLoop, ThreadJob, Threads
from kbroker.testing.disk import ControlledDisk, DiskControl
from kbroker.testing.faults import FaultDispatch, RequestLog

T = TypeVar("T")

START_S = 60.0
STOP_S = 60.0


class BrokerThread:
    """A broker that runs. `bootstrap`: its address. `failure`: why it has stopped by itself."""

    def __init__(
        self,
        configs: Mapping[str, str],
        clock: MovableClock,
        disk: DiskControl,
        log: RequestLog,
        open_session: OpenSession | None = None,
    ) -> None:
        """Start a broker, and wait until it serves. Raises what keeps it from starting."""
        self.loop = MovableLoop(clock)
        self.failure: BaseException | None = None
        self._clock = clock
        self._threads = Threads(self.loop)
        self._disk = ControlledDisk(disk)
        environment = Environment(
            loop=self.loop,
            clock=clock,
            disk=self._disk,
            random=SystemRandom(),
            offload=self._threads,
            process_runner=lambda job, task: ThreadJob(self._threads, self._disk, clock, job, bytes(task)),
            direct_socket=direct_socket,
        )
        config = BrokerConfig.load(configs)
        self.broker = Broker(environment, config, open_session, dispatch=FaultDispatch(log, environment))
        self._thread = threading.Thread(target=self.loop.run_forever, name="kbroker-testing", daemon=True)
        self._thread.start()
        _running.add(self)
        try:
            self.bootstrap = self.run(self.broker.start(), START_S)
        except BaseException:
            self.stop()
            raise
        self.loop.call_soon_threadsafe(self.broker.stopped.add_done_callback, self._on_stopped)

    def _on_stopped(self, stopped: asyncio.Future[BaseException | None]) -> None:
        self.failure = stopped.result()

    # Calls from the test's threads.

    def run(self, coroutine: Coroutine[Any, Any, T], timeout_s: float = 30.0) -> T:
        """Run a coroutine on the broker's loop, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the broker's loop, and return its result."""

        async def call() -> T:
            return function()

        return self.run(call())

    def settle(self) -> None:
        """Wait until the broker has done what is due."""
        self.run(self._threads.settle())

    def postpone_sessions(self, ms: int) -> None:
        """Move the deadlines of all members of groups later."""

        def postpone() -> None:
            for context in self.broker.services.groups.runtime.contexts():
                for group in context.shard.groups.values():
                    group.deadlines.postpone(ms)

        self.call(postpone)

    # The end.

    def stop(self) -> None:
        """Stop the broker as SIGTERM does."""
        with suppress(Exception):
            self.run(self.broker.stop(), STOP_S)
        self._end()

    def kill(self) -> None:
        """End the broker as SIGKILL does: clients see their connections end, files stay as they are."""
        self._disk.die()
        self._end()

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        _running.discard(self)
        self.loop.close_sockets()
        self._disk.die()
        self._threads.stop()
        with warnings.catch_warnings():
            # Coroutines that a task has created may never have been awaited.
            warnings.simplefilter("ignore", RuntimeWarning)
            for task in asyncio.all_tasks(self.loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    task.get_coro().close()
        self.loop.close()

    def forget_in_child(self) -> None:
        """Close what a forked process has inherited: it would keep the port open and the data directory locked.

        The objects of the sockets keep valid descriptors, of /dev/null: a later close must not hit other files.
        """
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in self.loop.descriptors():
            os.dup2(null, descriptor, inheritable=False)
        os.close(null)
        for lock in self._disk.locks:
            lock.close()


# Those that a forked process must not keep.
_running: WeakSet[BrokerThread] = WeakSet()


def _after_fork_in_child() -> None:
    for thread in list(_running):
        with suppress(OSError):
            thread.forget_in_child()
    _running.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
