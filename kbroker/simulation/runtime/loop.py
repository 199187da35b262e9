"""An asyncio loop in virtual time: when nothing is ready, time jumps to the next timer.

Callbacks that were scheduled with call_soon run in that order: asyncio promises it. What comes from outside of a
program (bytes, the end of a thread's work, another host's turn) comes in seeded order: its delays are seeded, and a
loop with `late_ns` wakes up a seeded moment late, as real ones do, so that several things are due at once. Sockets are
the simulated network's, and what would run in a thread runs on the loop after a seeded delay. A program that waits for
something that cannot happen, or that spins without time passing, is an error here, and so is an exception that nobody
handles.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from random import Random
from typing import Any, TypeVar, TypeVarTuple, Unpack

from kbroker.runtime.event_log import EventLogger
from kbroker.simulation.network.network import Hosts, SimNetwork, SimServer
from kbroker.simulation.runtime.threads import in_thread
from kbroker.simulation.runtime.trace import Trace

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
P = TypeVar("P", bound=asyncio.BaseProtocol)

log = EventLogger("kbroker.simulation")

NANOSECONDS = 1_000_000_000
MAX_TURNS_WITHOUT_TIME = 100_000
# How late a loop may wake up, in nanoseconds: mostly in time, at times after something that took long.
LATE_NS = (0, 0, 0, 20_000, 500_000)


class StalledError(RuntimeError):
    """Nothing is ready and no timer is set, yet the program waits."""


class SpinningError(RuntimeError):
    """The loop goes round and round without time passing."""


class UnhandledError(RuntimeError):
    """A callback or a task failed and nobody looked; the cause is what it raised."""


class SimLoop(asyncio.BaseEventLoop):
    """The universe: all its hosts run on it. `elapsed_ns` is the virtual time since it was made; `turns` counts its
    rounds. Programs that belong to no host run on it directly."""

    # What BaseEventLoop keeps: callbacks for this turn, timers as a heap, whether to stop after this turn.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, seed: object = 0, late_ns: Sequence[int] = ()) -> None:
        super().__init__()
        self.late_ns = late_ns
        self.elapsed_ns = 0
        self.turns = 0
        self.trace = Trace(lambda: self.elapsed_ns)
        self.network = SimNetwork(self, Random(f"{seed}/network"))
        self._random = Random(f"{seed}/loop")
        self._thread_random = Random(f"{seed}/threads")
        self._unhandled: list[dict[str, Any]] = []
        self._idle_turns = 0

    def time(self) -> float:
        return self.elapsed_ns / NANOSECONDS

    def _run_once(self) -> None:
        """One turn, as BaseEventLoop's: what is ready and what is due now."""
        self.turns += 1
        if self._unhandled:
            self._raise_unhandled()
        ready = self._ready
        due = self._due(wait=not ready)
        if len(due) > 1:
            self._mix(due)
        ready.extend(due)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _due(self, *, wait: bool) -> list[asyncio.TimerHandle]:
        """The timers that are due, the earliest first; if it may `wait`, time passes up to the next one."""
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._pop()
        if wait and not self._stopping:
            if not scheduled:
                raise StalledError(f"nothing can happen any more at {self.time():.6f} s")
            self._let_time_pass(scheduled[0].when())
        else:
            self._count_turn_without_time()
        due = []
        now = self.time()
        while scheduled and scheduled[0].when() <= now:
            timer = self._pop()
            if not timer._cancelled:
                due.append(timer)
        return due

    def _pop(self) -> asyncio.TimerHandle:
        timer = heapq.heappop(self._scheduled)
        timer._scheduled = False  # type: ignore[attr-defined]
        return timer

    def _let_time_pass(self, when: float) -> None:
        late = self._random.choice(self.late_ns) if self.late_ns else 0
        until = max(self.elapsed_ns, round(when * NANOSECONDS) + late)
        while until / NANOSECONDS < when:
            # After half a year a float of seconds is coarser than a nanosecond.
            until += 1
        if until == self.elapsed_ns:
            self._count_turn_without_time()
        else:
            self._idle_turns = 0
            self.elapsed_ns = until

    def _count_turn_without_time(self) -> None:
        self._idle_turns += 1
        if self._idle_turns > MAX_TURNS_WITHOUT_TIME:
            raise SpinningError(f"{self._idle_turns} turns of the loop at {self.time():.6f} s")

    def _mix(self, due: list[asyncio.TimerHandle]) -> None:
        """Hosts take their turns in seeded order; each keeps the order of its own timers."""
        by_host: dict[asyncio.AbstractEventLoop, list[asyncio.TimerHandle]] = {}
        for timer in due:
            by_host.setdefault(timer._loop, []).append(timer)  # type: ignore[attr-defined]
        if len(by_host) > 1:
            turns = list(by_host.values())
            self._random.shuffle(turns)
            due[:] = [timer for timers in turns for timer in timers]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers stay in the heap until their time comes."""

    def _write_to_self(self) -> None:
        """There is nobody who sleeps."""

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        """Left-over generators of hosts that have died must not be ended by the universe."""

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        pass

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody handled ends the run at its next turn."""
        if "exception" in context:
            self._unhandled.append(context)
        else:
            log.warning("callback failed", reason=context.get("message"))

    def run_until_complete(self, future: Any) -> Any:
        result = super().run_until_complete(future)
        if self._unhandled:
            self._raise_unhandled()
        return result

    def _raise_unhandled(self) -> None:
        context, *_ = self._unhandled
        self._unhandled = []
        raise UnhandledError(context.get("message")) from context["exception"]

    # Threads.

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a blocking function some time from now; its result arrives some time after that."""
        return in_thread(self, self._thread_random, func, *args)

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
        server = self.network.bind(protocol_factory, host, port or 0)
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
        """Connect to a listener of the simulated network; `local_addr` says from which host."""
        return await self.network.connect(protocol_factory, (host, port), local_addr)
