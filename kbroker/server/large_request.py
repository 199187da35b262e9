"""Handles large requests in slices, so that other clients are served between two slices.

Such a request has up to 100,000 elements, or up to 100 MB of names. Decoding it, and encoding its response, may take
half a second. Each iteration of the event loop runs one slice of one large request.
"""

from __future__ import annotations

from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from kbroker.common import Buffer
from kbroker.runtime.slices import Slices, Steps, release
from kbroker.server.error_reporter import ResponseTooLarge
from kbroker.server.receive_buffer import release_pages
from protocol.fast.fetch import Records
from protocol.limits import MAX_RESPONSE_BYTES
from protocol.schema.message import Message, Struct, StructType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.api.context import RequestContext
    from kbroker.server.server_context import ServerContext

# Requests larger than this are decoded in steps; of Produce, those with many batches.
LARGE_REQUEST_BYTES = 16 * 1024
# The response is sent as buffers of at least this many bytes.
RESPONSE_BUFFER_BYTES = 64 * 1024
MAX_BUFFER_BYTES = 256 * 1024
# Freeing 100,000 elements at once takes 20 to 30 ms.
RELEASED_AT_ONCE = 64


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
    if handler.is_large_by_size:
        # The records of Produce, which is not, are parts of the frame.
        await Slices(server.next_slice, server.mono_ns).run(release_pages(frame))
    return await respond_in_slices(server, context, request)


async def respond_in_slices(
    server: ServerContext, context: RequestContext, request: Any, cache_key: bytes | None = None
) -> bool:
    """Handle a request in slices, encode its response, and free both. Returns whether there is a response.

    `cache_key`: the request, if a response without errors is to be cached.
    """
    handler, services = context.handler, server.services
    image_version, config = services.metadata.version, services.config
    assert handler.in_steps is not None
    context.slices = Slices(server.next_slice, server.mono_ns)
    response = handler.handle(services, context, request)
    if response is not None and not isinstance(response, handler.response_type):
        response = await response
    if response is None:
        return False
    has_errors = False
    if handler.in_steps.report_errors is not None:
        has_errors = await context.slices.run(handler.in_steps.report_errors(context, request, response))
    out: list[Buffer | Records] = []
    body: list[Buffer | Records] = []
    size = 0
    for _ in handler.in_steps.encode(response, out):
        joined = len(body)
        _join_buffers(out, body)
        size += sum(map(len, body[joined:]))
        if size > MAX_RESPONSE_BYTES:
            await context.slices.run(release(body))
            raise ResponseTooLarge(f"more than {MAX_RESPONSE_BYTES} bytes")
        await server.next_slice()
    _join_buffers(out, body, 0)
    for message in (request, response):
        if isinstance(message, Message):
            await context.slices.run(release_elements(message))
    context.body = body
    # Parts of the response may be from another image or config than the others.
    is_consistent = services.metadata.version == image_version and services.config is config
    if cache_key is not None and is_consistent and not has_errors:
        server.cached_responses.put(cache_key, b"".join(cast("list[Buffer]", body)))
    return True


def _join_buffers(
    parts: list[Buffer | Records], body: list[Buffer | Records], size: int = RESPONSE_BUFFER_BYTES
) -> None:
    """Move the parts to `body` as one buffer, if they have at least `size` bytes. Parts of files are not read.

    A very large part is not copied, but split: what is sent next is copied, at most a part.
    """
    if sum(map(len, parts)) >= size:
        for kind, some in groupby(parts, _kind):
            if kind is Buffer:
                body.append(b"".join(cast("Iterable[Buffer]", some)))
            elif kind is memoryview:
                for part in cast("Iterable[Buffer]", some):
                    view = memoryview(part)
                    body.extend(view[at : at + MAX_BUFFER_BYTES] for at in range(0, len(view), MAX_BUFFER_BYTES))
            else:
                body.extend(some)
        parts.clear()


def _kind(part: Buffer | Records) -> object:
    """Return memoryview for a buffer that is split, Buffer for another one, None for a part of a file."""
    if not isinstance(part, Buffer):
        return None
    return Buffer if len(part) <= MAX_BUFFER_BYTES else memoryview


def release_elements(struct: Struct) -> Steps[None]:
    """Remove the structs and strings in the lists of a message, and of its structs.

    Lists of numbers stay, because those of a response may be the broker's own (a partition's replicas).
    """
    for name, is_nested in _lists(type(struct)):
        elements = getattr(struct, name)
        while elements:
            last = elements[-RELEASED_AT_ONCE:]
            del elements[-RELEASED_AT_ONCE:]
            if is_nested:
                for element in last:
                    yield from release_elements(element)
            yield


@cache
def _lists(cls: StructType) -> tuple[tuple[str, bool], ...]:
    """Return the lists of a struct, each with whether its elements have lists."""
    kinds = {name: row.type[0] for name, row in cls.__rows__.items() if isinstance(row.type, list)}
    return tuple(
        (name, isinstance(kind, StructType) and bool(_lists(kind)))
        for name, kind in kinds.items()
        if isinstance(kind, StructType) or kind == "string"
    )
