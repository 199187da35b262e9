"""The listeners: each accepts connections within its limits and those of the broker. Idle connections are closed.

A connection of PLAINTEXT serves requests from its beginning. A state of a connection before that is a protocol object
of its own, which bounds what a stranger may send and for how long, and then passes the transport on to the one that
serves requests, with the identity of its client: see interbroker/handshake_state.py.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

from kbroker.api.context import Identity
from kbroker.api.dispatch import Dispatch
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.system import start_serving
from kbroker.server.connection import Connection
from kbroker.server.server_context import ServerContext

if TYPE_CHECKING:
    from kbroker.api.context import Services
    from kbroker.config import BrokerConfig, Endpoint
    from kbroker.runtime.environment import Environment
    from kbroker.server.authentication.sasl_connection import Stranger

    Accepted = Connection | Stranger

log = EventLogger("kbroker.server")

IDLE_SWEEP_S = 10.0
# The connections that may use the file descriptors that are reserved for files, so that an operator can connect.
FEW_CONNECTIONS = 16
# With Kafka's default of 50, clients that connect at the same time have to wait for a second.
SOCKET_BACKLOG = 1024


class ConnectionRateLimiter:
    """Delays connections that exceed max.connection.creation.rate (KIP-612).

    The connections of one second may all arrive at the same time.
    """

    def __init__(self) -> None:
        # The time from which on another connection does not exceed the rate.
        self._free_at_s = 0.0

    def delay_s(self, now_s: float, rate: int) -> float:
        """Return the delay of a connection that arrives at `now_s`, at `rate` connections per second."""
        self._free_at_s = max(self._free_at_s, now_s - 1) + 1 / max(rate, 1)
        return max(0.0, self._free_at_s - now_s)


class Listener:
    """A listener of PLAINTEXT, with its limits.

    `accepted`: connections since the start. `connections`: how many are open.
    """

    def __init__(self, server: SocketServer, name: str, config: BrokerConfig) -> None:
        self.identity = Identity(name)
        self.accepted = 0
        self.connections = 0
        self.max_connections: int
        self._max_creation_rate: int
        self._rate_limiter = ConnectionRateLimiter()
        self._server = server
        self.configure(config)

    @property
    def name(self) -> str:
        return self.identity.listener

    def configure(self, config: BrokerConfig) -> None:
        self.max_connections = config.listener_limit(self.name, "max.connections")
        self._max_creation_rate = config.listener_limit(self.name, "max.connection.creation.rate")

    def accept(self) -> asyncio.BufferedProtocol:
        """Return the protocol object of an accepted socket."""
        return Connection(self._server.context, self)

    def delay_s(self, now_s: float) -> float:
        """Return the delay of a connection that arrives now."""
        return self._rate_limiter.delay_s(now_s, self._max_creation_rate)

    # Called by connections.

    def on_open(self, connection: Accepted) -> None:
        self.accepted += 1
        self.connections += 1
        self._server.on_open(connection, self)

    def replace(self, former: Accepted, connection: Accepted) -> None:
        self._server.replace(former, connection)

    def on_close(self, connection: Accepted) -> None:
        """Called when the socket is closed."""
        self.connections -= 1
        self._server.on_close(connection)


class SocketServer:
    """`listeners`: by name. `expired`: connections that were closed because they were idle."""

    def __init__(
        self,
        environment: Environment,
        config: BrokerConfig,
        dispatch: Dispatch,
        listener_class: type[Listener] = Listener,
    ) -> None:
        self.context = ServerContext(environment, dispatch, config.socket_request_max_bytes)
        # In the order in which they were accepted.
        self.connections: dict[Accepted, None] = {}
        self.listeners: dict[str, Listener] = {}
        self.expired = 0
        self._listener_class = listener_class
        self._loop = environment.loop
        self._descriptors = environment.descriptors
        self._connections_by_host: Counter[str] = Counter()
        self._rate_limiter = ConnectionRateLimiter()
        self._listening: list[asyncio.Server] = []
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Apply the dynamic configs. Existing connections stay open."""
        self._config = config
        self.context.max_request_bytes = config.socket_request_max_bytes
        self._max_by_host = parse_limits_by_host(config.max_connections_per_ip_overrides)
        for listener in self.listeners.values():
            listener.configure(config)
        self.close_revoked()

    def close_revoked(self) -> None:
        """Close the connections whose user was deleted, or has got another password, since they have logged in."""
        for connection in list(self.connections):
            if connection.sasl is not None and connection.sasl.is_revoked:
                connection.close("the credential was changed or deleted", principal=str(connection.identity.principal))

    # Listening.

    async def bind(self, endpoint: Endpoint) -> int:
        """Bind a listener without accepting connections yet. Returns the port, which the system chooses for port 0."""
        config = self._config
        listener = self.listeners[endpoint.name] = self._listener_class(self, endpoint.name, config)
        backlog = (
            config.socket_listen_backlog_size
            if "socket.listen.backlog.size" in config.static_configs
            else SOCKET_BACKLOG
        )
        server = await self._loop.create_server(
            listener.accept,
            endpoint.host or None,
            endpoint.port,
            backlog=backlog,
            start_serving=False,
        )
        self._listening.append(server)
        for listening_socket in server.sockets:
            self._set_options(listening_socket)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def _set_options(self, listening_socket: Any) -> None:
        """Set the options that accepted sockets inherit.

        Unless a config sets the receive buffer, the system adapts it. The send buffer has Kafka's default size: with
        buffers that the system enlarges to megabytes, sendfile of 1 MiB takes three times the processor time.
        """
        config = self._config
        # As in Kafka. It detects a client that vanished while it waited for records.
        listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if config.socket_send_buffer_bytes > 0:
            listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.socket_send_buffer_bytes)
        if "socket.receive.buffer.bytes" in config.static_configs and config.socket_receive_buffer_bytes > 0:
            listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.socket_receive_buffer_bytes)

    async def serve(self, services: Services) -> None:
        """Accept connections on every bound address. Raises OSError."""
        self.context.services, self.context.quotas = services, services.quotas
        self.context.errors.audit = services.audit
        self.context.dispatch.authorizes = services.authorizer is not None
        for server in self._listening:
            await start_serving(server)

    async def stop(self) -> None:
        """Stop accepting, close the connections and cancel their requests. May be called again."""
        self._is_stopping = True
        for server in self._listening:
            server.close()
        self._listening.clear()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for connection in list(self.connections):
            connection.close_quietly()
        await self.context.stop()

    # Called by listeners.

    def on_open(self, connection: Accepted, listener: Listener) -> None:
        config, host = self._config, connection.host
        self.connections[connection] = None
        self._connections_by_host[host] += 1
        max_of_host = self._max_by_host.get(host, config.max_connections_per_ip)
        if self._is_stopping:
            # It was accepted just before.
            connection.close_quietly()
        elif connection.descriptor >= self._descriptors.connections and len(self.connections) > FEW_CONNECTIONS:
            limit, _, below = self._descriptors
            connection.close("out of file descriptors", limit=limit, reserved_for_files=limit - below)
        elif len(self.connections) > config.max_connections or listener.connections > listener.max_connections:
            connection.close("max.connections reached", limit=min(config.max_connections, listener.max_connections))
        elif self._connections_by_host[host] > max_of_host:
            connection.close("max.connections.per.ip reached", limit=max_of_host)
        elif delay_ms := self.context.quotas.connection_delay_ms(host, self.context.mono_ns() // 1_000_000):
            # As in Kafka, it is closed later, since the client would try again at once.
            connection.pause_writing()
            self._loop.call_later(delay_ms / 1000, connection.close, "connection_creation_rate exceeded")
        elif delay_s := max(
            self._rate_limiter.delay_s(self._loop.time(), config.max_connection_creation_rate),
            listener.delay_s(self._loop.time()),
        ):
            # The connection is accepted, but not served until the delay has passed.
            connection.pause_writing()
            self._loop.call_later(delay_s, connection.resume_writing)
        if self._idle_timer is None:
            self._idle_timer = self._loop.call_later(IDLE_SWEEP_S, self._close_idle)

    def replace(self, former: Accepted, connection: Accepted) -> None:
        del self.connections[former]
        self.connections[connection] = None

    def on_close(self, connection: Accepted) -> None:
        if connection in self.connections:
            del self.connections[connection]
            if isinstance(connection, Connection):
                self.context.services.share.on_connection_closed(connection)
            self._connections_by_host[connection.host] -= 1
            if not self._connections_by_host[connection.host]:
                del self._connections_by_host[connection.host]

    def _close_idle(self) -> None:
        """Close idle connections. As in Kafka, a negative connections.max.idle.ms means no limit."""
        self._idle_timer = None
        max_idle_ms = self._config.connections_max_idle_ms
        active_since_ns = self.context.mono_ns() - max_idle_ms * 1_000_000
        for connection in list(self.connections):
            if max_idle_ms >= 0 and connection.last_active_ns < active_since_ns and not connection.is_waiting:
                self.expired += 1
                log.debug("connection idle", peer=connection.peer)
                connection.close_quietly()
        if self.connections:
            self._idle_timer = self._loop.call_later(IDLE_SWEEP_S, self._close_idle)


def parse_limits_by_host(text: str) -> dict[str, int]:
    """Parse max.connections.per.ip.overrides: `host:limit` pairs of addresses. Host names are not looked up."""
    limits = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        host, _, limit = pair.rpartition(":")
        if host and limit.isdecimal():
            limits[host.strip("[]")] = int(limit)
        else:
            log.warning(
                "config value ignored", name="max.connections.per.ip.overrides", value=pair, reason="not host:limit"
            )
    return limits
