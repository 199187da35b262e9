"""Envelope (key 58), version 0: a client's request that another broker forwards to the controller (KIP-590).

- Only APIs that change the cluster are accepted (those whose files say FORWARDED); any other gets INVALID_REQUEST.
- If this broker is not the controller, or is not any more when the request is handled, the error is NOT_CONTROLLER and
  the other broker sends the request to the new controller.
- The request has the principal and the address of the client, and the listener of brokers. It is a client's request:
  the broker that forwards it may do more than the client (`Identity.forwarded_by`). Only if the principal is
  BROKER_PRINCIPAL, which no client has, it is that broker's own.
- The broker that the client is connected to reports the errors of the inner response.
- As in Kafka, the time that the request takes here counts in the client's quota here; the response says how long the
  other broker must not serve the client's connection.
"""

from kbroker.api.context import Identity, RequestContext, Services, complete_response
from kbroker.api.dispatch import is_forwarded
from kbroker.api.local_requests import DetachedConnection, handler_of
from kbroker.api.response_errors import has_error_code
from kbroker.common import Buffer
from kbroker.interbroker.controller_channel import BROKER_PRINCIPAL, decode_address, decode_principal
from kbroker.quotas.request_charge import charge_request
from kbroker.runtime.turns import turns_ns, yield_if_due
from protocol.errors import ErrorCode, MalformedError
from protocol.framing import decode_request_header, encode_response_header
from protocol.messages.k58_envelope import EnvelopeRequest, EnvelopeResponse


async def handle(services: Services, context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    try:
        header = decode_request_header(request.request_data)
        host = decode_address(request.client_host_address)
    except (MalformedError, ValueError):
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    try:
        principal = decode_principal(request.request_principal or b"")
    except MalformedError:
        return EnvelopeResponse(error_code=ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
    if not is_forwarded(header.api_key):
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    handler = handler_of(header.api_key, header.version, authorizes=services.authorizer is not None)
    if handler is None:
        return EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    if not services.controller.is_elected:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if principal == BROKER_PRINCIPAL:
        identity = Identity(context.listener, peer_broker=context.peer_broker)
    else:
        identity = Identity(context.listener, principal, forwarded_by=context.peer_broker)
    charge = None
    if principal != BROKER_PRINCIPAL:
        now_ns = services.environment.clock.mono_ns()
        charge = charge_request(services.quotas, (principal.name, header.client_id), header.api_key, 0, now_ns)
    inner = RequestContext(
        DetachedConnection(f"{host}:0", identity), handler, header.version, header.correlation_id, header.client_id,
        context.received_ns,
    )  # fmt: skip
    try:
        message = handler.decode(memoryview(request.request_data), header.body_pos, header.version, yield_if_due)
        response = await complete_response(handler.handle, services, inner, message)
    except MalformedError:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    if has_error_code(response, ErrorCode.NOT_CONTROLLER):
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    if charge is not None:
        charge.spent_ns = turns_ns()
        throttle_ms = charge.settle(0, 0, services.environment.clock.mono_ns())
        # A few responses have no such field: then a later request waits.
        if throttle_ms > getattr(response, "throttle_time_ms", throttle_ms):
            response.throttle_time_ms = throttle_ms
    out: list[Buffer] = [encode_response_header(header.api_key, header.version, header.correlation_id)]
    handler.append(response, header.version, out, yield_if_due)
    return EnvelopeResponse(response_data=b"".join(out))
