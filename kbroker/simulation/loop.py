"""An asyncio loop in virtual time: when nothing is ready, time jumps to the next timer.

Callbacks run in asyncio's own order. Sockets are the simulated network's, and what would run in a thread runs on
the loop after a seeded delay. A program that waits for something that cannot happen, or that spins without time
passing, is an error here, and so is an exception that nobody handles.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from random import Random
from typing import Any, TypeVar, TypeVarTuple, Unpack

from kbroker.events import Log
from kbroker.simulation.network import Hosts, SimNetwork, SimServer

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
P = TypeVar("P", bound=asyncio.BaseProtocol)

log = Log("kbroker.simulation")

NANOSECONDS = 1_000_000_000
MAX_TURNS_WITHOUT_TIME = 100_000
# How long a job of a thread takes before it has its effect, and again until the loop knows, in seconds.
THREAD_DELAY_S = (0.000_02, 0.002)


class StalledError(RuntimeError):
    """Nothing is ready and no timer is set, yet the program waits."""


class SpinningError(RuntimeError):
    """The loop goes round and round without time passing."""


class UnhandledError(RuntimeError):
    """A callback or a task failed and nobody looked; the cause is what it raised."""


class SimLoop(asyncio.BaseEventLoop):
    """`elapsed_ns` is the virtual time since the loop was made; `turns` counts its rounds."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.elapsed_ns = 0
        self.turns = 0
        self.network = SimNetwork(self, Random(f"{seed}/network"))
        self._thread_random = Random(f"{seed}/threads")
        self._unhandled: list[dict[str, Any]] = []
        self._idle_turns = 0
        # BaseEventLoop asks its selector for events, giving the time until the next timer.
        self._selector = self

    # What BaseEventLoop calls.

    def time(self) -> float:
        return self.elapsed_ns / NANOSECONDS

    def select(self, timeout: float | None) -> list[object]:
        """Let time pass up to the next timer, which is due in `timeout` seconds: None if there is none."""
        self.turns += 1
        if self._unhandled:
            self._raise_unhandled()
        if timeout is None:
            raise StalledError(f"nothing can happen any more at {self.time():.6f} s")
        # After half a year a float of seconds is coarser than a nanosecond; it must go on all the same.
        step = max(1, round(timeout * NANOSECONDS)) if timeout > 0 else 0
        self._idle_turns = 0 if step > 0 else self._idle_turns + 1
        if self._idle_turns > MAX_TURNS_WITHOUT_TIME:
            raise SpinningError(f"{self._idle_turns} turns of the loop at {self.time():.6f} s")
        if step > 0:
            self.elapsed_ns += step
        return []

    def _process_events(self, events: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
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
        done: asyncio.Future[T] = self.create_future()

        def deliver(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def work() -> None:
            result, error = None, None
            try:
                result = func(*args)
            except Exception as raised:
                error = raised
            self.call_later(self._thread_delay(), deliver, result, error)

        self.call_later(self._thread_delay(), work)
        return done

    def _thread_delay(self) -> float:
        return self._thread_random.uniform(*THREAD_DELAY_S)

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
