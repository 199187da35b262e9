"""How a client connects to a secured listener: TLS, and a SASL login with PLAIN, SCRAM or a token."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from kbroker.client.requests import check
from kbroker.common import ClientSecurity
from protocol.messages.k17_sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from protocol.schema.message import Message

if TYPE_CHECKING:
    import ssl

PLAIN = "PLAIN"
# Sends a request and returns its response of this type.
Exchange = Callable[[Message, type[Message]], Message]


NO_SECURITY = ClientSecurity()
_current = NO_SECURITY


def current_security() -> ClientSecurity:
    """Return how this process, a command or a task of Spark, connects to brokers."""
    return _current


def use_security(security: ClientSecurity) -> None:
    global _current
    _current = security


def begin_tls(security: ClientSecurity, connected: socket.socket, host: str) -> socket.socket:
    """Begin TLS if the security protocol has it. Raises OSError."""
    if not security.has_tls:
        return connected
    from kbroker.client.key_stores import KeyStoreError

    try:
        return tls_context(security).wrap_socket(connected, server_hostname=host)
    except KeyStoreError as error:
        raise ConnectionError(str(error)) from None


@cache
def tls_context(security: ClientSecurity) -> ssl.SSLContext:
    """Raises KeyStoreError."""
    # Most connections are without TLS, and commands start faster without its modules.
    from kbroker.client.key_stores import client_context

    return client_context(
        security.key_store, security.key_password, security.trust_store, security.checks_host, security.versions
    )


def log_in(security: ClientSecurity, exchange: Exchange) -> None:
    """Log in over a new connection. Raises BrokerError; OSError if there is no token, or the broker no proof."""
    handshake = exchange(SaslHandshakeRequest(mechanism=security.mechanism), SaslHandshakeResponse)
    assert isinstance(handshake, SaslHandshakeResponse)
    check(handshake.error_code, f"{security.mechanism}: the broker has {', '.join(handshake.mechanisms) or 'no SASL'}")

    def send(token: bytes) -> bytes:
        response = exchange(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
        assert isinstance(response, SaslAuthenticateResponse)
        subject = f"login as {security.user}" if security.user else "login"
        check(response.error_code, subject, response.error_message)
        return bytes(response.auth_bytes)

    if security.mechanism == PLAIN:
        send(f"\0{security.user}\0{security.password}".encode())
        return
    if security.tokens is not None:
        from kbroker.client.oauth import retrieve_token

        if send(f"n,,\1auth=Bearer {retrieve_token(security.tokens)}\1\1".encode()):
            # The broker has sent an error. RFC 7628: it fails the login after the client's response.
            send(b"\1")
        return
    from secrets import token_urlsafe

    from protocol.scram import MECHANISMS, ClientExchange, ScramError

    client = ClientExchange(MECHANISMS[security.mechanism], security.user, security.password, token_urlsafe(24))
    try:
        client.verify(send(client.final(send(client.first))))
    except ScramError as error:
        raise ConnectionError(str(error)) from None
