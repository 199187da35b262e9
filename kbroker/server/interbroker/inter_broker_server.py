"""The listening socket for brokers (kbroker.inter.broker.listener).

It has its own APIs and limits: none of the clients' quotas, connection limits, fair scheduling and request memory.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.api.context import Identity
from kbroker.common import ANONYMOUS, Principal
from kbroker.interbroker.handshake import FORMER_EPOCH, HandshakeError, Hello
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.system import start_serving
from kbroker.server.interbroker.handshake_state import HandshakeState
from kbroker.server.interbroker.inter_broker_connection import InterBrokerConnection
from kbroker.server.interbroker.inter_broker_context import InterBrokerContext

if TYPE_CHECKING:
    import ssl

    from kbroker.api.context import Services
    from kbroker.api.dispatch import Dispatch
    from kbroker.config import BrokerConfig
    from kbroker.interbroker.handshake import BrokerIdentity
    from kbroker.metadata.image import MetadataImage
    from kbroker.runtime.environment import Environment
    from kbroker.server.authentication.sasl_connection import Stranger

log = EventLogger("kbroker.interbroker")

# Connections without a handshake that are kept; of more, the oldest are closed.
MAX_STRANGERS = 64
# The receive buffer of all TLS connections, and the steps of TLS handshakes that run at the same time, in threads.
ENCRYPTED_BUFFER_BYTES = 256 * 1024
HANDSHAKE_STEPS = 2
# What an Envelope adds to the request of a client.
ENVELOPE_BYTES = 64 * 1024


class InterBrokerServer:
    """`accepted`: connections since the start. `connections`: the open ones of brokers. `strangers`: the others."""

    # Those of a listener with TLS.
    name = "inter-broker"
    encrypted_view = memoryview(b"")

    def __init__(
        self,
        environment: Environment,
        config: BrokerConfig,
        dispatch: Dispatch,
        identity: BrokerIdentity,
        tls_context: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """`tls_context`: returns the context of a new connection, None without TLS."""
        self.context = InterBrokerContext(environment, identity, dispatch)
        self.accepted = 0
        self.connections: dict[InterBrokerConnection, None] = {}
        self.strangers: dict[HandshakeState | Stranger, None] = {}
        self.handshake_steps = asyncio.Semaphore(HANDSHAKE_STEPS)
        self._tls_context = tls_context
        # The connections by broker id and channel.
        self._by_link: dict[tuple[int, int], InterBrokerConnection] = {}
        self._listener_name = config.inter_broker_listener_name
        self._loop = environment.loop
        self._listening: asyncio.Server | None = None
        self._image: MetadataImage | None = None
        # This config cannot be changed while the broker runs.
        self.context.max_request_bytes = config.socket_request_max_bytes + ENVELOPE_BYTES

    async def bind(self, host: str | None, port: int) -> int:
        """Bind an address without accepting connections yet. Returns the port, which the system chooses for port 0.

        Raises OSError, ConfigError.
        """
        if self._tls_context() is not None:
            self.encrypted_view = memoryview(bytearray(ENCRYPTED_BUFFER_BYTES))
        server = await self._loop.create_server(self._accept, host, port, start_serving=False)
        self._listening = server
        for listening_socket in server.sockets:
            listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def serve(self, services: Services) -> None:
        """Accept connections. Raises OSError."""
        assert self._listening is not None
        self.context.services = services
        self._image = services.metadata
        await start_serving(self._listening)

    async def stop(self) -> None:
        """Stop accepting, close the connections and cancel their requests. May be called again."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for stranger in list(self.strangers):
            stranger.close_quietly()
        for connection in list(self.connections):
            connection.close_quietly()
        await self.context.stop()

    def on_brokers_changed(self) -> None:
        """Close connections of former processes of brokers."""
        for connection in list(self.connections):
            peer_broker = connection.identity.peer_broker
            if peer_broker is not None and self._is_former(*peer_broker):
                log.info("connection of a former broker epoch closed", peer=connection.peer)
                connection.close_quietly()

    def _is_former(self, broker_id: int, epoch: int) -> bool:
        """Return whether a broker has registered again with a higher epoch."""
        if self._image is None:
            return False
        broker = self._image.brokers.get(broker_id) or self._image.fenced_brokers.get(broker_id)
        return broker is not None and broker.epoch > epoch

    def _accept(self) -> asyncio.BufferedProtocol:
        """Return the protocol object of an accepted socket."""
        self.accepted += 1
        context = self._tls_context()
        if context is None:
            return HandshakeState(self.context, self)
        from kbroker.server.authentication.tls_connection import TlsConnection

        return TlsConnection(self.context, self, context, self._above_tls)

    def _above_tls(self, former: Stranger, principal: Principal | None) -> HandshakeState:
        self.on_close(former)
        return HandshakeState(self.context, self)

    # Called by connections.

    def on_open(self, stranger: HandshakeState | Stranger) -> None:
        self.strangers[stranger] = None
        if len(self.strangers) > MAX_STRANGERS:
            oldest = next(iter(self.strangers))
            self.on_close(oldest)
            oldest.close("too many connections without a handshake", limit=MAX_STRANGERS)

    def principal_of(self, certificate: bytes) -> Principal:
        """Return no one: which broker it is follows from the handshake with the cluster's secret."""
        return ANONYMOUS

    def check_hello(self, hello: Hello | None) -> None:
        if hello is not None and self._is_former(*hello.initiator):
            broker_id, epoch = hello.initiator
            raise HandshakeError(FORMER_EPOCH, is_transient=True, broker=broker_id, epoch=epoch)

    def on_handshake(self, stranger: HandshakeState, hello: Hello) -> InterBrokerConnection:
        self.on_close(stranger)
        broker_id, epoch = hello.initiator
        identity = Identity(self._listener_name, peer_broker=hello.initiator)
        connection = InterBrokerConnection(self.context, stranger.peer, identity, self._on_connection_closed)
        self.connections[connection] = None
        self._close_former(connection, (broker_id, hello.channel))
        log.debug("broker connected", broker=broker_id, epoch=epoch, peer=connection.peer, channel=hello.channel)
        return connection

    def on_close(self, stranger: HandshakeState | Stranger) -> None:
        self.strangers.pop(stranger, None)

    def _close_former(self, connection: InterBrokerConnection, link: tuple[int, int]) -> None:
        """Close the former connection of a broker's channel.

        The peer opens another one only when it has given that one up. After a cut nothing else might close it: its end
        never arrives, and neither do new requests.
        """
        former, self._by_link[link] = self._by_link.get(link), connection
        if former is not None and former in self.connections:
            log.info("connection replaced by a newer one", peer=former.peer)
            former.close_quietly()

    def _on_connection_closed(self, connection: InterBrokerConnection) -> None:
        self.connections.pop(connection, None)
