"""An asyncio event loop in virtual time: when no callback is ready, time jumps to the next timer.

asyncio guarantees the order of call_soon callbacks, so it is kept. Events from outside a program (bytes, the result of
a thread, another host's callbacks) come in seeded order: their delays are seeded, and a loop with `wakeup_delays_ns`
wakes up late by a seeded delay, as real loops do, so that several events are due at once. Sockets belong to the
simulated network; thread offload runs on the loop after a seeded delay.

A program that waits for something that cannot happen, that spins without time passing, or that leaves an exception
unhandled fails the simulation.
"""

import asyncio
import heapq
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from hashlib import blake2b
from random import Random
from typing import Any, TypeVar, TypeVarTuple, Unpack

from kbroker.runtime.event_log import EventLogger
from kbroker.simulation.network.network import Hosts, SimNetwork
from kbroker.simulation.network.transport import SimServer

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
P = TypeVar("P", bound=asyncio.BaseProtocol)

log = EventLogger("kbroker.simulation")

NANOSECONDS = 1_000_000_000
MAX_ITERATIONS_WITHOUT_TIME = 100_000
# How late a loop wakes up, in nanoseconds: mostly on time, sometimes after something that took a while.
WAKEUP_DELAYS_NS = (0, 0, 0, 20_000, 500_000)


class StalledError(RuntimeError):
    """The program waits, but no callback is ready and no timer is set."""


class SpinningError(RuntimeError):
    """The loop runs callbacks forever without time passing."""


class UnhandledError(RuntimeError):
    """A callback or a task raised an exception that nothing handled; see `__cause__`."""


class NetworkLoop(asyncio.BaseEventLoop):
    """A loop whose sockets belong to the simulated network."""

    @property
    def network(self) -> SimNetwork:
        raise NotImplementedError

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: Hosts = None,
        port: int | None = None,
        *,
        start_serving: bool = True,
        **options: object,
    ) -> SimServer:
        """Listen on the simulated network. Options of real sockets are ignored."""
        server = self.network.bind(protocol_factory, host, port or 0, self)
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
        """Connect from the host of this loop, or from that of `local_addr`."""
        return await self.network.connect(protocol_factory, (host, port), local_addr, self)


class SimLoop(NetworkLoop):
    """The loop on which a whole simulation runs.

    `elapsed_ns` is the virtual time since its creation, `iterations` the number of its iterations. Programs on hosts
    run on a HostLoop each; other programs run on this loop directly.
    """

    # Attributes of BaseEventLoop: ready callbacks, the heap of timers, whether to stop after this iteration.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, seed: object = 0, wakeup_delays_ns: Sequence[int] = ()) -> None:
        super().__init__()
        self.wakeup_delays_ns = wakeup_delays_ns
        self.elapsed_ns = 0
        self.iterations = 0
        self.trace = Trace(lambda: self.elapsed_ns)
        self._network = SimNetwork(self, Random(f"{seed}/network"))
        self._random = Random(f"{seed}/loop")
        self._thread_random = Random(f"{seed}/threads")
        self._unhandled: list[dict[str, Any]] = []
        self._idle_iterations = 0

    @property
    def network(self) -> SimNetwork:
        return self._network

    def time(self) -> float:
        return self.elapsed_ns / NANOSECONDS

    def _run_once(self) -> None:
        """Run one iteration, as BaseEventLoop does: the ready callbacks and the timers that are due."""
        self.iterations += 1
        if self._unhandled:
            self._raise_unhandled()
        ready = self._ready
        due = self._pop_due_timers(wait=not ready)
        if len(due) > 1:
            self._shuffle_hosts(due)
        ready.extend(due)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _pop_due_timers(self, *, wait: bool) -> list[asyncio.TimerHandle]:
        """Remove and return the due timers, earliest first. With `wait`, time first advances to the next timer."""
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            self._pop_timer()
        if wait and not self._stopping:
            if not scheduled:
                raise StalledError(f"nothing is scheduled at {self.time():.6f} s")
            self._advance_to(scheduled[0].when())
        else:
            self._count_idle_iteration()
        due = []
        now = self.time()
        while scheduled and scheduled[0].when() <= now:
            timer = self._pop_timer()
            if not timer._cancelled:
                due.append(timer)
        return due

    def _pop_timer(self) -> asyncio.TimerHandle:
        timer = heapq.heappop(self._scheduled)
        timer._scheduled = False  # type: ignore[attr-defined]
        return timer

    def _advance_to(self, when: float) -> None:
        late = self._random.choice(self.wakeup_delays_ns) if self.wakeup_delays_ns else 0
        until = max(self.elapsed_ns, round(when * NANOSECONDS) + late)
        while until / NANOSECONDS < when:
            # After half a year of virtual time, a float of seconds is coarser than a nanosecond.
            until += 1
        if until == self.elapsed_ns:
            self._count_idle_iteration()
        else:
            self._idle_iterations = 0
            self.elapsed_ns = until

    def _count_idle_iteration(self) -> None:
        self._idle_iterations += 1
        if self._idle_iterations > MAX_ITERATIONS_WITHOUT_TIME:
            raise SpinningError(f"{self._idle_iterations} iterations of the loop at {self.time():.6f} s")

    def _shuffle_hosts(self, due: list[asyncio.TimerHandle]) -> None:
        """Shuffle the hosts; each keeps the order of its own timers."""
        by_host: dict[asyncio.AbstractEventLoop, list[asyncio.TimerHandle]] = {}
        for timer in due:
            by_host.setdefault(timer._loop, []).append(timer)  # type: ignore[attr-defined]
        if len(by_host) > 1:
            groups = list(by_host.values())
            self._random.shuffle(groups)
            due[:] = [timer for timers in groups for timer in timers]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: cancelled timers stay in the heap until they are due."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps."""

    def _asyncgen_firstiter_hook(self, agen: Any) -> None:
        """Do nothing: asynchronous generators of killed processes must not be closed."""

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        pass

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail the simulation in the next iteration."""
        if "exception" in context:
            self._unhandled.append(context)
        else:
            log.warning("callback failed", reason=context.get("message"))

    def run_until_complete(self, future: Any) -> Any:
        result = super().run_until_complete(future)
        if self._unhandled:
            self._raise_unhandled()
        return result

    def close(self) -> None:
        """Close the loop and discard its pending tasks, which would otherwise be reported during a later simulation."""
        discard_tasks(asyncio.all_tasks(self))
        super().close()

    def _raise_unhandled(self) -> None:
        context, *_ = self._unhandled
        self._unhandled = []
        raise UnhandledError(context.get("message")) from context["exception"]

    # Threads.

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a blocking function after a seeded delay; its result arrives after another."""
        return run_in_simulated_thread(self, self._thread_random, func, *args)


class Trace:
    """A hash over all events of a run: runs with equal hashes did the same things at the same times.

    Set `lines` to a list to keep the text of the events.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.count = 0
        self.lines: list[str] | None = None
        self._now_ns = now_ns
        self._hash = blake2b(digest_size=16)

    def record(self, *fields: object) -> None:
        """Fields are numbers, strings, bytes, or tuples of these, whose repr is the same in every process."""
        self.count += 1
        line = f"{self._now_ns()} {fields!r}\n"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def digest(self) -> str:
        return self._hash.hexdigest()


# The delay before the function runs, and again before its result arrives, in seconds.
THREAD_DELAY_S = (0.000_02, 0.002)


def no_disk_time() -> Iterator[int]:
    return iter(())


def run_in_simulated_thread(
    loop: asyncio.AbstractEventLoop,
    random: Random,
    func: Callable[[Unpack[Ts]], T],
    *args: *Ts,
    busy_ns: Callable[[], Iterator[int]] = no_disk_time,
) -> "asyncio.Future[T]":
    """Run a blocking function. `busy_ns` returns the disk time that it took, in steps, which delays its result."""
    done: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = func(*args)
        except Exception as raised:
            error = raised
        steps = busy_ns()

        def wait() -> None:
            for step_ns in steps:
                if step_ns:
                    loop.call_later(step_ns / 1e9, wait)
                    return
            deliver(result, error)

        loop.call_later(random.uniform(*THREAD_DELAY_S) + next(steps, 0) / 1e9, wait)

    loop.call_later(random.uniform(*THREAD_DELAY_S), run)
    return done


def discard_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Close the tasks of a process or a simulation that has ended, without warnings."""
    with warnings.catch_warnings():
        # Coroutines that a task created may never have been awaited.
        warnings.simplefilter("ignore", RuntimeWarning)
        for task in tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            try:
                task.get_coro().close()
            except BaseException:
                # Its cleanup code tried to continue on the dead loop.
                continue
