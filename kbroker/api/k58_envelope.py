"""Envelope (key 58), version 0: a client's request that another broker forwards to the controller (KIP-590).

- Only APIs that change the cluster are accepted (FORWARDED_APIS); any other gets INVALID_REQUEST.
- If this broker is not the controller, or is not any more when the request is handled, the error is NOT_CONTROLLER and
  the other broker sends the request to the new controller.
- The principal is ignored, since there is no authorization. The client's address appears in the log.
- The broker that the client is connected to reports the errors of the inner response.
"""

from __future__ import annotations

from kbroker.api.context import ApiHandler, RequestContext, Services, awaited
from kbroker.api.forwarding import FORWARDED_APIS, is_not_controller
from kbroker.api.local_requests import DetachedConnection, handler_of
from kbroker.common import Buffer
from kbroker.interbroker.controller_channel import decode_address
from protocol.errors import ErrorCode, MalformedError
from protocol.framing import ParsedRequestHeader, decode_request_header, encode_response_header
from protocol.messages.k58_envelope import EnvelopeRequest, EnvelopeResponse

# Larger requests are handled in slices, as those of clients.
LARGE_REQUEST_BYTES = 16 * 1024


async def handle(services: Services, context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
    try:
        header = decode_request_header(request.request_data)
        host = decode_address(request.client_host_address)
    except (MalformedError, ValueError):
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    if header.api_key not in FORWARDED_APIS:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    handler = handler_of(header.api_key, header.version)
    if handler is None:
        return EnvelopeResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    if not services.controller.is_elected:
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    inner = RequestContext(
        DetachedConnection(f"{host}:0", context.peer_broker), handler, header.version, header.correlation_id,
        header.client_id, context.received_ns,
    )  # fmt: skip
    if len(request.request_data) > LARGE_REQUEST_BYTES:
        environment = services.environment
        inner.slices = environment.new_slices()
    try:
        message = await _decode(services, handler, request.request_data, header)
    except MalformedError:
        return EnvelopeResponse(error_code=ErrorCode.INVALID_REQUEST)
    response = await awaited(handler.handle(services, inner, message))
    if is_not_controller(response):
        return EnvelopeResponse(error_code=ErrorCode.NOT_CONTROLLER)
    body = await _encode(services, handler, response)
    return EnvelopeResponse(
        response_data=encode_response_header(header.api_key, header.version, header.correlation_id) + body
    )


async def _decode(services: Services, handler: ApiHandler, data: bytes, header: ParsedRequestHeader) -> object:
    assert handler.in_steps is not None
    steps = handler.in_steps.decode(data, header.body_pos)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            message: object = end.value
            return message
        await services.environment.yield_to_loop()


async def _encode(services: Services, handler: ApiHandler, response: object) -> bytes:
    assert handler.in_steps is not None
    out: list[Buffer] = []
    for _ in handler.in_steps.encode(response, out):
        await services.environment.yield_to_loop()
    return b"".join(out)
