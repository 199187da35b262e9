"""What all connections of the inter-broker listener share."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from kbroker.interbroker.frame_protocol import PeerFrameBuffers
from kbroker.server.error_reporter import ErrorReporter
from kbroker.server.fair_scheduler import FairScheduler
from kbroker.server.server_context import WRITE_HIGH_WATER

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.api.context import Services
    from kbroker.api.dispatch import Dispatch
    from kbroker.interbroker.handshake import BrokerIdentity
    from kbroker.runtime.environment import Environment


class InterBrokerContext:
    """`services` is set when the broker begins to serve brokers.

    Nothing here is shared with clients: neither the scheduling of expensive requests nor the memory of requests.
    """

    services: Services

    def __init__(self, environment: Environment, identity: BrokerIdentity, dispatch: Dispatch) -> None:
        loop, clock = environment.loop, environment.clock
        self.identity = identity
        self.dispatch = dispatch
        self.buffers = PeerFrameBuffers()
        self.scheduler = FairScheduler(loop.call_soon, loop.call_later, lambda: 0)
        self.errors = ErrorReporter(clock.mono_ms, loop.call_later)
        self.write_high_water = WRITE_HIGH_WATER
        self.mono_ns = clock.mono_ns
        self.turns = environment.turns
        self.offload = environment.offload
        self.direct_socket = environment.direct_socket
        self.call_later = loop.call_later
        self.randbytes = environment.random.randbytes
        self.max_request_bytes = 0
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
