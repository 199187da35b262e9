"""The event loop of one process on a simulated host; the process can be paused and killed.

The callbacks of a paused process wait. Those of a killed process never run, not even a `finally`. The host loops of a
simulation run on one SimLoop: they share its virtual time and communicate over its network only.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio.events import _set_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

from kbroker.simulation.runtime.loop import NetworkLoop, discard_tasks, no_disk_time, run_in_simulated_thread

if TYPE_CHECKING:
    from kbroker.simulation.network.network import SimNetwork
    from kbroker.simulation.runtime.loop import SimLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class HostCrashed(Exception):
    """The host's process died before the coroutine was done."""


class _Callback(asyncio.Handle):
    """A callback of one host, in the queue of the SimLoop."""

    __slots__ = ()
    _loop: HostLoop

    def _run(self) -> None:
        _run_on(self._loop, self, super()._run)


class _Timer(asyncio.TimerHandle):
    __slots__ = ()
    _loop: HostLoop

    def _run(self) -> None:
        _run_on(self._loop, self, super()._run)


def _run_on(loop: HostLoop, handle: asyncio.Handle, run: Callable[[], None]) -> None:
    if loop.dead:
        return
    if loop.paused_callbacks is not None:
        loop.paused_callbacks.append(handle)
        return
    _set_running_loop(loop)
    try:
        run()
    finally:
        _set_running_loop(loop.sim_loop)


class HostLoop(NetworkLoop):
    """The loop of a process on the host `host`.

    `busy_ns` returns the disk time of the function that a thread has just run, in steps. `paused_callbacks` are the
    callbacks that became due while the process is paused; None unless it is paused.
    """

    def __init__(
        self, sim_loop: SimLoop, host: str, random: Random, busy_ns: Callable[[], Iterator[int]] = no_disk_time
    ) -> None:
        self.sim_loop = sim_loop
        super().__init__()
        self.host = host
        self.dead = False
        self.paused_callbacks: list[asyncio.Handle] | None = None
        self._random = random
        self._busy_ns = busy_ns
        # The tasks of a killed process. A reference keeps the garbage collector from running their cleanup code.
        self._abandoned: list[asyncio.Task[Any]] = []
        # Results of `run` that are awaited outside of the process.
        self._results: dict[asyncio.Future[Any], None] = {}

    def __del__(self) -> None:
        """There is nothing to close."""

    # Pausing and killing.

    @property
    def paused(self) -> bool:
        return self.paused_callbacks is not None

    def pause(self) -> None:
        if not self.paused and not self.dead:
            self.paused_callbacks = []

    def resume(self) -> None:
        callbacks, self.paused_callbacks = self.paused_callbacks, None
        if not self.dead:
            self.sim_loop._ready.extend(callbacks or ())

    def die(self) -> None:
        """Kill the process. The callback that is running, if any, can schedule nothing more."""
        if self.dead:
            return
        self.dead = True
        self.paused_callbacks = None
        self._abandoned = list(asyncio.all_tasks(self))
        results, self._results = self._results, {}
        for result in results:
            if not result.done():
                result.set_exception(HostCrashed(self.host))

    def discard(self) -> None:
        """Kill the process and close its tasks, at the end of a simulation."""
        self.die()
        discard_tasks(self._abandoned)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Start a coroutine in this process. The future belongs to the SimLoop; it raises HostCrashed."""
        result: asyncio.Future[T] = self.sim_loop.create_future()
        if self.dead:
            coroutine.close()
            result.set_exception(HostCrashed(self.host))
            return result

        def done(task: asyncio.Task[T]) -> None:
            self._results.pop(result, None)
            if result.done():
                return
            if task.cancelled():
                result.cancel()
            elif (error := task.exception()) is not None:
                result.set_exception(error)
            else:
                result.set_result(task.result())

        self._results[result] = None
        self.create_task(coroutine).add_done_callback(done)
        return result

    # Callbacks.

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Callback(callback, args, self, context)
        if not self.dead:
            self.sim_loop._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.sim_loop.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        if not self.dead:
            heapq.heappush(self.sim_loop._scheduled, timer)
            timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self.sim_loop._timer_handle_cancelled(handle)

    def time(self) -> float:
        return self.sim_loop.time()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        return run_in_simulated_thread(self, self._random, func, *args, busy_ns=self._busy_ns)

    def offload(self, fn: Callable[..., T], /, *args: object) -> Awaitable[T]:
        """Implements Offload for the process."""
        return self.run_in_executor(None, fn, *args)

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Do nothing: debug mode belongs to the SimLoop."""

    def is_running(self) -> bool:
        return self.sim_loop.is_running()

    def is_closed(self) -> bool:
        return self.sim_loop.is_closed()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            context["message"] = f"on {self.host}: {context.get('message')}"
            self.sim_loop.call_exception_handler(context)

    @property
    def network(self) -> SimNetwork:
        return self.sim_loop.network
