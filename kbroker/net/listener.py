"""The server side of all listeners: accepts connections, keeps them within their limits, closes idle ones."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from kbroker.api.dispatch import Dispatch
from kbroker.net.connection import Connection

if TYPE_CHECKING:
    from kbroker.api.services import Services
    from kbroker.config import BrokerConfig
    from kbroker.world import World

RECEIVE_BUFFER = 256 * 1024
IDLE_SWEEP_S = 10.0


class Server:
    """What connections share: the receive buffer, the dispatch table, limits and counts."""

    services: Services

    def __init__(self, world: World, config: BrokerConfig, dispatch: Dispatch) -> None:
        self.dispatch = dispatch
        self.max_request_bytes = config.socket_request_max_bytes
        self.max_idle_ms = config.connections_max_idle_ms
        self.max_connections = config.max_connections
        self.write_high_water = 256 * 1024
        self.receive_view = memoryview(bytearray(RECEIVE_BUFFER))
        self.connections: set[Connection] = set()
        self.unsent_bytes = 0
        self.refused_count = 0
        self._loop = world.loop
        self._clock = world.clock
        self._listening: list[asyncio.AbstractServer] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None

    async def bind(self, host: str | None, port: int) -> int:
        """Take an address without accepting yet; gives the port (another one than asked for port 0)."""
        server = await self._loop.create_server(
            lambda: Connection(self), host, port, backlog=1024, start_serving=False
        )
        self._listening.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def serve(self, services: Services) -> None:
        """Accept connections on every bound address."""
        self.services = services
        for server in self._listening:
            await server.start_serving()
        self._sweep = self._loop.call_later(IDLE_SWEEP_S, self._close_idle)

    async def stop(self) -> None:
        """Accept nothing more, drop the connections and what they wait for."""
        for server in self._listening:
            server.close()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self.connections):
            connection.close_quietly()
        for task in list(self._tasks):
            task.cancel()

    # What connections call.

    def mono_ms(self) -> int:
        return self._clock.mono_ms()

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        if len(self.connections) > self.max_connections:
            connection.close(f"more than max.connections={self.max_connections}")

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def refused(self, reason: str) -> None:
        self.refused_count += 1

    def unsent(self, size: int) -> None:
        """Answers that clients have not taken yet grow or shrink by `size` bytes; Fetch gives less as they grow."""
        self.unsent_bytes += size
        self.services.fetching.unsent_bytes = self.unsent_bytes

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _close_idle(self) -> None:
        self._sweep = self._loop.call_later(IDLE_SWEEP_S, self._close_idle)
        limit = self._clock.mono_ms() - self.max_idle_ms
        for connection in list(self.connections):
            if connection.last_active_ms < limit and not connection.waiting:
                connection.close_quietly()
