"""The server side of all listeners: accepts connections, keeps them within their limits, closes idle ones."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from kbroker.api.dispatch import Dispatch
from kbroker.runtime.event_log import EventLogger
from kbroker.server.connection import Connection
from kbroker.server.connection_rate import ConnectionRateLimiter
from kbroker.server.error_reporter import ErrorReporter
from kbroker.server.fair_scheduler import FairScheduler
from kbroker.server.request_memory import RequestMemory
from kbroker.server.response_queue import LAST_OF_DATA

if TYPE_CHECKING:
    from kbroker.api.context import Services
    from kbroker.config import BrokerConfig
    from kbroker.runtime.environment import Environment

T = TypeVar("T")
log = EventLogger("kbroker.server")

RECEIVE_BUFFER = 256 * 1024
# Where what is received must be kept.
SMALL_RECEIVE_BUFFER = 8 * 1024
# Unsent answers of one connection from which on nothing more is served to it.
WRITE_HIGH_WATER = 256 * 1024
IDLE_SWEEP_S = 10.0
# Kafka's default of 50 makes clients that come in a crowd wait for a second.
BACKLOG = 1024


class SocketServer:
    """What connections share: the receive buffer, the dispatch table, limits and counts.

    `unsent_bytes` counts the answers that slow clients have not taken yet.
    """

    services: Services

    def __init__(self, environment: Environment, config: BrokerConfig, dispatch: Dispatch) -> None:
        self.dispatch = dispatch
        self.write_high_water = WRITE_HIGH_WATER
        self.receive_view = memoryview(bytearray(RECEIVE_BUFFER))
        self.small_receive_view = self.receive_view[:SMALL_RECEIVE_BUFFER]
        self.turns = FairScheduler(environment.loop.call_soon, environment.loop.call_later, self._data_ns)
        self.memory = RequestMemory(environment.loop.call_soon, environment.loop.call_later, environment.clock.mono_ns)
        # In the order in which they came.
        self.connections: dict[Connection, None] = {}
        self.unsent_bytes = 0
        # Connections since the start; and of those that were closed, how many for having been idle.
        self.accepted = 0
        self.expired = 0
        self.mono_ns = environment.clock.mono_ns
        self.offload = environment.offload
        self.refusals = ErrorReporter(environment.clock.mono_ms, environment.loop.call_later)
        self._loop = environment.loop
        self._by_host: Counter[str] = Counter()
        self._pace = ConnectionRateLimiter()
        self._listening: list[asyncio.AbstractServer] = []
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Follow what may change while the broker runs. Connections that are there stay."""
        self._config = config
        self.max_request_bytes = config.socket_request_max_bytes
        self._overrides = _limits_by_host(config.max_connections_per_ip_overrides)
        self._max_connections = config.lowest_limit("max.connections")
        self._creation_rate = config.lowest_limit("max.connection.creation.rate")

    # Listening.

    async def bind(self, host: str | None, port: int) -> int:
        """Take an address without accepting yet; gives the port (another one than asked for port 0)."""
        config = self._config
        backlog = (
            config.socket_listen_backlog_size if "socket.listen.backlog.size" in config.static_configs else BACKLOG
        )
        server = await self._loop.create_server(
            lambda: Connection(self), host, port, backlog=backlog, start_serving=False
        )
        self._listening.append(server)
        for one in server.sockets:
            self._set_options(one)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def _set_options(self, one: Any) -> None:
        """What accepted sockets inherit. Buffer sizes that nobody gave are left to the system, which adapts them."""
        config = self._config
        # A client that has vanished while it waits for records is noticed, as with Kafka.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, option, size in (
            ("socket.receive.buffer.bytes", socket.SO_RCVBUF, config.socket_receive_buffer_bytes),
            ("socket.send.buffer.bytes", socket.SO_SNDBUF, config.socket_send_buffer_bytes),
        ):
            if name in config.static_configs and size > 0:
                one.setsockopt(socket.SOL_SOCKET, option, size)

    async def serve(self, services: Services) -> None:
        """Accept connections on every bound address."""
        self.services = services
        for server in self._listening:
            await server.start_serving()

    async def stop(self) -> None:
        """Accept nothing more, drop the connections and what they wait for. May be called again."""
        for server in self._listening:
            server.close()
        self._listening.clear()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self.connections):
            connection.close_quietly()
        for task in list(self._tasks):
            task.cancel()
        self.memory.stop()
        self.refusals.stop()

    def _data_ns(self) -> int:
        """What Produce and Fetch have taken since the start."""
        return sum(stats.total_ns for stats in self.dispatch.stats() if stats.api_key <= LAST_OF_DATA)

    # What connections call.

    def opened(self, connection: Connection) -> None:
        self.accepted += 1
        self.connections[connection] = None
        self._by_host[connection.host] += 1
        config, host = self._config, connection.host
        per_ip = self._overrides.get(host, config.max_connections_per_ip)
        if len(self.connections) > self._max_connections:
            connection.close("max.connections reached", limit=self._max_connections)
        elif self._by_host[host] > per_ip:
            connection.close("max.connections.per.ip reached", limit=per_ip)
        elif delay_s := self._pace.delay_s(self._loop.time(), self._creation_rate):
            # It is there, as it would be in the queue of a busy machine, and nothing is served to it yet.
            connection.pause_writing()
            self.later(delay_s, connection.resume_writing)
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_SWEEP_S, self._close_idle)

    def closed(self, connection: Connection) -> None:
        """The socket is gone. It counted until now."""
        if connection in self.connections:
            del self.connections[connection]
            self._by_host[connection.host] -= 1
            if not self._by_host[connection.host]:
                del self._by_host[connection.host]

    def unsent(self, size: int) -> None:
        """Answers that clients have not taken yet grow or shrink by `size` bytes; Fetch gives less as they grow."""
        if size:
            self.unsent_bytes += size
            self.services.fetching.unsent_bytes = self.unsent_bytes

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(seconds, callback)

    def _close_idle(self) -> None:
        """For as long as there are connections. A negative time is none, as with Kafka."""
        self._sweep = None
        idle_ms = self._config.connections_max_idle_ms
        limit = self.mono_ns() - idle_ms * 1_000_000
        for connection in list(self.connections):
            if idle_ms >= 0 and connection.last_active_ns < limit and not connection.waiting:
                self.expired += 1
                log.debug("connection idle", peer=connection.peer)
                connection.close_quietly()
        if self.connections:
            self._sweep = self._loop.call_later(IDLE_SWEEP_S, self._close_idle)


def _limits_by_host(text: str) -> dict[str, int]:
    """max.connections.per.ip.overrides: `host:limit` pairs, of addresses as they connect (names are not looked up)."""
    limits = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        host, _, limit = pair.rpartition(":")
        if host and limit.isdecimal():
            limits[host.strip("[]")] = int(limit)
        else:
            log.warning(
                "config value left out", name="max.connections.per.ip.overrides", value=pair, reason="not host:limit"
            )
    return limits
