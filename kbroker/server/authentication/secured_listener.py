"""A listener with TLS, SASL or both: its connections begin with protocol objects of clients that are not known yet.

Brokers without such a listener do not load this folder.
"""

from __future__ import annotations

from asyncio import BufferedProtocol, Semaphore
from typing import TYPE_CHECKING

from kbroker.common import ANONYMOUS, Principal, install_command
from kbroker.config.broker.security import NO_SECURITY
from kbroker.config.values import ConfigError
from kbroker.server.authentication.sasl_connection import LoginBuffers, Replacement, SaslConnection, Stranger
from kbroker.server.authentication.sasl_session import SaslSession
from kbroker.server.authentication.tls_connection import TlsConnection
from kbroker.server.authentication.tls_context import TlsContext
from kbroker.server.connection import Connection
from kbroker.server.socket_server import Listener, SocketServer

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig
    from kbroker.config.broker.security import SaslSettings, TokenSettings
    from kbroker.runtime.environment import Environment
    from kbroker.server.authentication.token_keys import TokenKeys
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
        self.login_buffers = LoginBuffers()
        self._context = server.context
        self._tls = TlsContext()
        self._checked_ns = 0
        self._token_keys: TokenKeys | None = None
        super().__init__(server, name, config)

    def configure(self, config: BrokerConfig) -> None:
        super().configure(config)
        self._security = config.listener_security(self.name)
        if self._security.tls is not None:
            self._tls.configure(self._security.tls)
        tokens = None if self._security.sasl is None else self._security.sasl.tokens
        if tokens is not None and (self._token_keys is None or self._token_keys.settings != tokens):
            self._token_keys = _token_keys(tokens, self._context.environment)

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
        services = self._context.services

        def find_credential(user: str, mechanism: ScramMechanism) -> ScramCredential | None:
            return services.metadata.scram_credential(user, mechanism)

        return SaslSession(
            self._sasl_settings, find_credential, self._context.random.randbytes, services.salt_key, self._token_keys
        )

    def _sasl_settings(self) -> SaslSettings:
        assert self._security.sasl is not None
        return self._security.sasl

    def principal_of(self, certificate: bytes) -> Principal | None:
        """Return the principal of a client certificate; None if no rule applies."""
        user = self._tls.user(certificate)
        return None if user is None else Principal("User", user)


def _token_keys(settings: TokenSettings, environment: Environment) -> TokenKeys:
    """Raises ConfigError."""
    try:
        from kbroker.server.authentication.token_keys import TokenKeys
    except ModuleNotFoundError as error:
        if error.name != "joserfc":
            raise
        raise ConfigError(f"OAUTHBEARER needs the package joserfc: {install_command('oauth')}") from None
    return TokenKeys(settings, environment)
