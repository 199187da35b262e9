"""TLS between brokers: which key stores their connections use.

A connection has the security protocol, the key store and the trust store of the listener that the accepting broker's
inter.broker.listener.name names: its registration says which one that is. The connecting broker uses its own stores of
the listener with that name. So both may have different inter-broker listeners while a cluster is changed broker by
broker; each must have both listeners. The certificate names the host at which the listener is advertised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.config.values import ConfigError
from kbroker.interbroker.handshake import HandshakeError
from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from kbroker.config import BrokerConfig
    from kbroker.metadata.image import BrokerRegistration
    from kbroker.server.authentication.tls_context import TlsContext


log = EventLogger("kbroker.interbroker")


class BrokerTls:
    """The TLS contexts by listener. Each call looks whether the configs or the files have changed."""

    def __init__(self, config: Callable[[], BrokerConfig]) -> None:
        self._config = config
        self._contexts: dict[str, TlsContext] = {}

    def accepting(self) -> ssl.SSLContext | None:
        """Return the context of this broker's inter-broker listener, None without TLS. Raises ConfigError."""
        contexts = self._find(self._config().inter_broker_listener_name)
        return None if contexts is None else contexts.context

    def connecting(self, peer: BrokerRegistration) -> tuple[ssl.SSLContext, str] | None:
        """Return the context of connections to a broker, and the host of its certificate; None without TLS.

        Raises HandshakeError.
        """
        endpoint = peer.inter_broker_endpoint
        if endpoint is None:
            return None
        name = endpoint.listener
        try:
            contexts = self._find(name)
        except ConfigError as error:
            raise HandshakeError("no TLS context", listener=name, detail=str(error)) from None
        if contexts is not None:
            return contexts.client, endpoint.host
        if endpoint.security_protocol.endswith("SSL"):
            raise HandshakeError("this broker lacks the inter-broker listener of the other", listener=name)
        own = self._config().inter_broker_listener_name
        if self._config().listener_security(own).tls is not None:
            log.warning("the connection to a broker is not encrypted", broker=peer.id, its_listener=name, own=own)
        return None

    def _find(self, listener: str) -> TlsContext | None:
        config = self._config()
        settings = config.listener_security(listener).tls
        if settings is None:
            return None
        from kbroker.server.authentication.tls_context import TlsContext

        contexts = self._contexts.get(listener)
        if contexts is None:
            endpoints = (*config.advertised_listeners, *config.listeners)
            contexts = TlsContext(next(endpoint.host for endpoint in endpoints if endpoint.name == listener))
        contexts.configure(settings)
        self._contexts[listener] = contexts
        return contexts
