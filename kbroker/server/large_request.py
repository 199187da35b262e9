"""Handles large requests in slices, so that other clients are served between two slices.

Such a request has up to 100,000 elements, or up to 100 MB of names. Decoding it, and encoding its response, may take
half a second. Each iteration of the event loop runs one slice of one large request.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from kbroker.common import Buffer
from kbroker.runtime.slices import Slices
from protocol.fast.fetch import Records

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.api.context import RequestContext
    from kbroker.server.server_context import ServerContext

# Requests larger than this are decoded in steps; of Produce, those with many batches.
LARGE_REQUEST_BYTES = 16 * 1024
# The response is sent as buffers of at least this many bytes.
RESPONSE_BUFFER_BYTES = 64 * 1024


async def serve_large_request(server: ServerContext, context: RequestContext, frame: Buffer, pos: int) -> bool:
    """Decode and handle a request, and encode its response. Returns whether there is a response.

    `frame` must not change meanwhile. Raises what the decoder, the handler and the encoder raise.
    """
    handler = context.handler
    assert handler.in_steps is not None
    steps = handler.in_steps.decode(frame, pos)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request = end.value
            break
        await server.next_slice()
    return await respond_in_slices(server, context, request)


async def respond_in_slices(server: ServerContext, context: RequestContext, request: Any) -> bool:
    """Handle a request in slices, and encode its response. Returns whether there is a response."""
    handler = context.handler
    assert handler.in_steps is not None
    context.slices = Slices(server.next_slice, server.mono_ns)
    response = handler.handle(server.services, context, request)
    if response is not None and not isinstance(response, handler.response_type):
        response = await response
    if response is None:
        return False
    if handler.in_steps.report_errors is not None:
        await context.slices.run(handler.in_steps.report_errors(context, request, response))
    out: list[Buffer | Records] = []
    body: list[Buffer | Records] = []
    for _ in handler.in_steps.encode(response, out):
        _join_buffers(out, body)
        await server.next_slice()
    _join_buffers(out, body, 0)
    context.body = body
    return True


def _join_buffers(
    parts: list[Buffer | Records], body: list[Buffer | Records], size: int = RESPONSE_BUFFER_BYTES
) -> None:
    """Move the parts to `body` as one buffer, if they have at least `size` bytes. Parts of files are not read."""
    if sum(map(len, parts)) >= size:
        for is_buffer, some in groupby(parts, lambda part: isinstance(part, Buffer)):
            if is_buffer:
                body.append(b"".join(cast("Iterable[Buffer]", some)))
            else:
                body.extend(some)
        parts.clear()
