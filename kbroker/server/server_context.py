"""What all connections of a server share: connections of clients, and those of brokers."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from kbroker.api.dispatch import Dispatch
from kbroker.quotas.client_quotas import ClientQuotaManager, QuotaWindows
from kbroker.runtime.turns import Turns
from kbroker.server.error_reporter import ErrorReporter
from kbroker.server.fair_scheduler import LAST_DATA_API_KEY, FairScheduler
from kbroker.server.request_memory import RequestMemory
from kbroker.server.response_cache import ResponseCache

if TYPE_CHECKING:
    from asyncio import Future, Task

    from kbroker.api.context import Services
    from kbroker.runtime.environment import Environment

# Five pipelined batches of 64 KiB.
RECEIVE_BUFFER_BYTES = 384 * 1024
# Used where received bytes must be copied and kept.
SMALL_RECEIVE_BUFFER_BYTES = 8 * 1024
# If one connection has more unsent bytes, none of its requests is handled.
WRITE_HIGH_WATER = 256 * 1024
# Response bytes of one connection that are gathered before they are sent.
MAX_GATHERED_BYTES = 64 * 1024


class SharedContext:
    """Responses, tasks and errors of connections. `services` is set when the broker begins to serve."""

    services: Services

    def __init__(self, environment: Environment, dispatch: Dispatch, scheduler: FairScheduler) -> None:
        loop, clock = environment.loop, environment.clock
        self.dispatch = dispatch
        self.scheduler = scheduler
        self.write_high_water = WRITE_HIGH_WATER
        self.errors = ErrorReporter(clock.mono_ms, loop.call_later)
        self.mono_ns = clock.mono_ns
        self.call_later = loop.call_later
        self.call_soon = loop.call_soon
        self.offload = environment.offload
        self.direct_socket = environment.direct_socket
        self._loop = loop
        self._tasks: dict[Task[None], None] = {}

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def stop(self) -> None:
        """Cancel all tasks and timers.

        Tasks that were just created begin first: one that is cancelled before would drop the coroutine of the handler
        that it is to await, and Python warns about coroutines that were never awaited.
        """
        await sleep(0)
        for task in list(self._tasks):
            task.cancel()
        self.errors.stop()


class ServerContext(SharedContext):
    """All connections receive into one buffer, `receive_view`. Its content is handled before anything else happens."""

    def __init__(self, environment: Environment, dispatch: Dispatch, max_request_bytes: int) -> None:
        loop, clock = environment.loop, environment.clock
        super().__init__(environment, dispatch, FairScheduler(loop.call_soon, loop.call_later, self._data_time_ns))
        self.max_request_bytes = max_request_bytes
        self.max_gathered_bytes = MAX_GATHERED_BYTES
        self.receive_view = memoryview(bytearray(RECEIVE_BUFFER_BYTES))
        self.small_receive_view = self.receive_view[:SMALL_RECEIVE_BUFFER_BYTES]
        # The turns of clients' requests, one in each iteration of the event loop.
        self.turns = Turns(self._next_turn, clock.mono_ns)
        self.memory = RequestMemory(loop.call_soon, loop.call_later, clock.mono_ns)
        self.cached_responses = ResponseCache()
        self.environment = environment
        self.random = environment.random
        # Those of the broker, when it begins to serve.
        self.quotas = ClientQuotaManager({}, QuotaWindows())
        # Bytes of responses that clients have not read yet.
        self.unsent_bytes = 0

    def count_unsent(self, change: int) -> None:
        """Count `change` more unsent bytes. The more there are, the smaller Fetch responses become."""
        if change:
            self.unsent_bytes += change
            self.services.fetching.unsent_bytes = self.unsent_bytes

    async def _next_turn(self) -> None:
        """Wait until the next turn of a request may begin: one in each iteration of the event loop."""
        turn = self._loop.create_future()
        self.scheduler.request_turns.add(partial(_end, turn))
        await turn

    async def stop(self) -> None:
        await super().stop()
        self.memory.stop()

    def _data_time_ns(self) -> int:
        return sum(stats.total_ns for stats in self.dispatch.stats() if stats.api_key <= LAST_DATA_API_KEY)


def _end(turn: Future[None]) -> None:
    """End the wait, unless the broker stops, which cancels it."""
    if not turn.done():
        turn.set_result(None)
