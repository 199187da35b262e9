"""SaslHandshake (key 17), versions 0 and 1: the client chooses a mechanism, for its first login or to log in again.

Before the first login only this request, ApiVersions and SaslAuthenticate are handled (server/authentication/). Without
SASL, and while a login is in progress, the response is ILLEGAL_SASL_STATE.
"""

from kbroker.api.context import RequestContext, Services
from protocol.errors import ErrorCode
from protocol.messages.k17_sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(services: Services, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    session, now_ms = context.connection.sasl, services.environment.clock.mono_ms()
    if session is None or not session.may_handshake(now_ms):
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    return session.handshake(request.mechanism, now_ms)
