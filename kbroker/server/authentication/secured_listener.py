"""A listener with TLS, SASL or both: its connections begin with protocol objects of clients that are not known yet.

Brokers without such a listener do not load this folder.
"""

from __future__ import annotations

from asyncio import BufferedProtocol, Semaphore
from typing import TYPE_CHECKING

from kbroker.common import ANONYMOUS, Principal
from kbroker.config.broker.security import NO_SECURITY
from kbroker.interbroker.frame_protocol import PeerFrameBuffers
from kbroker.server.authentication.sasl_connection import Replacement, SaslConnection, Stranger
from kbroker.server.authentication.sasl_session import SaslSession
from kbroker.server.authentication.tls_connection import TlsConnection
from kbroker.server.authentication.tls_context import TlsContext
from kbroker.server.connection import Connection
from kbroker.server.socket_server import Listener, SocketServer

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig
    from protocol.scram import ScramCredential, ScramMechanism

ENCRYPTED_BUFFER_BYTES = 256 * 1024
# Steps of TLS handshakes that run at the same time, in threads that also read from the disk.
HANDSHAKE_STEPS = 2
# How long after a look at the files of the certificates a new connection looks again.
RELOAD_CHECK_NS = 1_000_000_000


class SecuredListener(Listener):
    def __init__(self, server: SocketServer, name: str, config: BrokerConfig) -> None:
        self.encrypted_view = memoryview(bytearray(ENCRYPTED_BUFFER_BYTES))
        self.handshake_steps = Semaphore(HANDSHAKE_STEPS)
        self.login_buffers = PeerFrameBuffers()
        self._context = server.context
        self._tls = TlsContext()
        self._checked_ns = 0
        # The salts of unknown users follow from it.
        self._salt_key = server.context.random.randbytes(32)
        super().__init__(server, name, config)

    def configure(self, config: BrokerConfig) -> None:
        super().configure(config)
        self._security = config.listener_security(self.name)
        if self._security.tls is not None:
            self._tls.configure(self._security.tls)

    def accept(self) -> BufferedProtocol:
        if self._security == NO_SECURITY:
            return super().accept()
        if self._security.tls is None:
            return self._above_tls(None, None)
        now_ns = self._context.mono_ns()
        if now_ns - self._checked_ns >= RELOAD_CHECK_NS:
            self._checked_ns = now_ns
            self._tls.reload()
        return TlsConnection(self._context, self, self._tls.context, self._above_tls)

    def _above_tls(self, former: Stranger | None, principal: Principal | None) -> BufferedProtocol:
        """`principal`: of the client's certificate."""
        if self._security.sasl is not None:
            return SaslConnection(self._context, self, self._new_session(), former)
        assert former is not None
        return Connection(self._context, Replacement(self, former, principal or ANONYMOUS))

    def _new_session(self) -> SaslSession:
        assert self._security.sasl is not None

        def find_credential(user: str, mechanism: ScramMechanism) -> ScramCredential | None:
            return self._context.services.metadata.scram_credential(user, mechanism)

        return SaslSession(self._security.sasl, find_credential, self._context.random.randbytes, self._salt_key)

    def principal_of(self, certificate: bytes) -> Principal | None:
        """Return the principal of a client certificate; None if no rule applies."""
        user = self._tls.user(certificate)
        return None if user is None else Principal("User", user)
