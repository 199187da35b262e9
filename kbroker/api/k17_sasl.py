"""SASL logins (kbroker/server/authentication/): the first of a connection, and later ones.

- SaslHandshake (key 17), versions 0 and 1: the client chooses a mechanism. Before the first login only the requests of
  this file and ApiVersions are handled. Without SASL, and while a login is in progress: ILLEGAL_SASL_STATE.
- SaslAuthenticate (key 36), versions 0 to 2: a token of the mechanism. From version 1 on, the last response of a login
  has the time until the client must log in again (KIP-368). After an error the connection is closed.
"""

from collections.abc import Awaitable

from kbroker.api.context import RequestContext, Services
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k17_sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


def handshake(services: Services, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    session, now_ms = context.connection.sasl, services.environment.clock.mono_ms()
    if session is None or not session.may_handshake(now_ms):
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return session.handshake(request.mechanism, now_ms)


def authenticate(
    services: Services, context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse | Awaitable[SaslAuthenticateResponse]:
    session = context.connection.sasl
    if session is None or not session.expects_token:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication",
        )
    return session.authenticate(bytes(request.auth_bytes), services.environment.clock.mono_ms())


HANDLERS = {ApiKey.SASL_HANDSHAKE: handshake, ApiKey.SASL_AUTHENTICATE: authenticate}
