"""SaslAuthenticate (key 36), versions 0 to 2: a token of the client's mechanism, see server/authentication/.

From version 1 on, the last response of a login has the time until the client must log in again (KIP-368). After an
error the connection is closed.
"""

from kbroker.api.context import RequestContext, Services
from protocol.errors import ErrorCode
from protocol.messages.k36_sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


def handle(services: Services, context: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    session = context.connection.sasl
    if session is None or not session.expects_token:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslAuthenticate request received after successful authentication",
        )
    return session.authenticate(bytes(request.auth_bytes), services.environment.clock.mono_ms())
