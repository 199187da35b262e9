"""The loop of one host: a share of the simulated universe that can be paused, and that can die.

A process that is stopped gets no turn: its callbacks wait. A process that has died never gets one again, whatever
was scheduled; nobody in it runs a `finally`. The hosts of a universe share its time and meet on its network only.
"""

from __future__ import annotations

import asyncio
import heapq
import warnings
from asyncio.events import _set_running_loop
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Executor
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

from kbroker.simulation.runtime.threads import in_thread

if TYPE_CHECKING:
    from kbroker.simulation.network.network import Hosts, SimServer
    from kbroker.simulation.runtime.loop import SimLoop

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
P = TypeVar("P", bound=asyncio.BaseProtocol)


class HostDied(Exception):
    """What was asked of a host was not done: it died."""


class _Turn(asyncio.Handle):
    """A callback of one host, in the queue of the universe."""

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
    if loop.waiting is not None:
        loop.waiting.append(handle)
        return
    _set_running_loop(loop)
    try:
        run()
    finally:
        _set_running_loop(loop.universe)


def bury(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """End tasks that will never be run again, without a word about it."""
    with warnings.catch_warnings():
        # What they would have started was not.
        warnings.simplefilter("ignore", RuntimeWarning)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            try:
                task.get_coro().close()
            except BaseException:
                # It has wanted to do more than a dead process can.
                continue


class HostLoop(asyncio.BaseEventLoop):
    """One process of the host `host`. `busy_ns` says how long the disk was busy with what a thread has just done."""

    def __init__(self, universe: SimLoop, host: str, random: Random, busy_ns: Callable[[], int] = lambda: 0) -> None:
        self.universe = universe
        super().__init__()
        self.host = host
        self.dead = False
        # Callbacks whose time has come while the process is paused.
        self.waiting: list[asyncio.Handle] | None = None
        self._random = random
        self._busy_ns = busy_ns
        # Of a dead process: kept until the end, so that collecting them does not run what they had yet to do.
        self._buried: list[asyncio.Task[Any]] = []
        # What is awaited from outside.
        self._asked: dict[asyncio.Future[Any], None] = {}

    def __del__(self) -> None:
        """There is nothing to close."""

    # The fate of the process.

    def pause(self) -> None:
        if self.waiting is None and not self.dead:
            self.waiting = []

    def resume(self) -> None:
        waiting, self.waiting = self.waiting, None
        if not self.dead:
            self.universe._ready.extend(waiting or ())

    def die(self) -> None:
        """From this instant on: also the callback that is being run may schedule nothing more."""
        if self.dead:
            return
        self.dead = True
        self.waiting = None
        self._buried = list(asyncio.all_tasks(self))
        asked, self._asked = self._asked, {}
        for outside in asked:
            if not outside.done():
                outside.set_exception(HostDied(self.host))

    def forget(self) -> None:
        """At the end of a run: let go of what was left in the middle of something."""
        self.die()
        bury(self._buried)

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Start something in this process; what it comes to is awaited outside of it, or HostDied."""
        outside: asyncio.Future[T] = self.universe.create_future()
        if self.dead:
            work.close()
            outside.set_exception(HostDied(self.host))
            return outside

        def done(task: asyncio.Task[T]) -> None:
            self._asked.pop(outside, None)
            if outside.done():
                return
            if task.cancelled():
                outside.cancel()
            elif (error := task.exception()) is not None:
                outside.set_exception(error)
            else:
                outside.set_result(task.result())

        self._asked[outside] = None
        self.create_task(work).add_done_callback(done)
        return outside

    # Callbacks.

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Turn(callback, args, self, context)
        if not self.dead:
            self.universe._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.universe.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        if not self.dead:
            heapq.heappush(self.universe._scheduled, timer)
            timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self.universe._timer_handle_cancelled(handle)

    def time(self) -> float:
        return self.universe.time()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        return in_thread(self, self._random, func, *args, busy_ns=self._busy_ns)

    def offload(self, fn: Callable[..., T], /, *args: object) -> Awaitable[T]:
        """The `Offload` of this process's world."""
        return self.run_in_executor(None, fn, *args)

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """The universe's business."""

    # What goes wrong.

    def is_running(self) -> bool:
        return self.universe.is_running()

    def is_closed(self) -> bool:
        return self.universe.is_closed()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.dead:
            context["message"] = f"on {self.host}: {context.get('message')}"
            self.universe.call_exception_handler(context)

    # Sockets.

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: Hosts = None,
        port: int | None = None,
        *,
        start_serving: bool = True,
        **options: object,
    ) -> SimServer:
        """Listen on the simulated network; options of real sockets mean nothing here."""
        server = self.universe.network.bind(protocol_factory, host, port or 0, loop=self)
        if start_serving:
            await server.start_serving()
        return server

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], P],
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        local_addr: tuple[str, int] | None = None,
        **options: object,
    ) -> tuple[asyncio.Transport, P]:
        """Connect from this host, unless `local_addr` names another."""
        source = local_addr or (self.host, 0)
        return await self.universe.network.connect(protocol_factory, (host, port), source, loop=self)
