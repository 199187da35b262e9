"""Serves requests in turns (runtime/turns.py), so that other clients are served in between.

Such a request has up to 100,000 elements, or up to 100 MB of names, or its response has. Decoding it, and encoding its
response, may take half a second. Each iteration of the event loop runs one turn of one request.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from kbroker.common import Buffer, KafkaError
from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.runtime.turns import RELEASED_AT_ONCE, release, turns_ns, wait_in_turn, yield_if_due
from kbroker.server.error_reporter import ResponseTooLarge
from kbroker.server.receive_buffer import release_pages
from protocol.fast.fetch import Records
from protocol.limits import MAX_RESPONSE_BYTES
from protocol.schema.message import Message, Struct, StructType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.api.context import Body, RequestContext
    from kbroker.server.server_context import ServerContext

# Requests larger than this are decoded in turns; of Produce, those with many batches.
LARGE_REQUEST_BYTES = 16 * 1024
# A smaller response is handled at once. A larger one is sent as buffers of at least RESPONSE_BUFFER_BYTES.
SMALL_RESPONSE_BYTES = 16 * 1024
RESPONSE_BUFFER_BYTES = 64 * 1024
MAX_BUFFER_BYTES = 256 * 1024


def serve_frame(server: ServerContext, context: RequestContext, frame: Buffer, pos: int) -> Body | None:
    """Decode and handle a request in a turn. Returns the body of the response; None if there is none.

    `frame` must not change meanwhile; it counts as request memory. Raises what the decoder, the handler and the encoder
    raise.
    """
    handler, size = context.handler, len(frame)
    context.connection.hold(size)
    try:
        request = handler.decode(memoryview(frame), pos, context.version, yield_if_due)
        if handler.is_large_by_size:
            # The records of Produce, which is not, are parts of the frame.
            release_pages(frame)
        body = serve_request(server, context, request, None)
        _release_elements(request)
        return body
    finally:
        context.connection.hold(-size)


def serve_request(server: ServerContext, context: RequestContext, request: Any, cache_key: bytes | None) -> Body | None:
    """Handle a decoded request in a turn, and encode its response. Returns the body; None if there is no response.

    `cache_key`: the request, if a response without errors is to be cached.
    """
    context.in_turns = True
    handler, services = context.handler, server.services
    image_version, config = services.metadata.version, services.config
    try:
        response = handler.handle(services, context, request)
        if isinstance(response, DelayedResponse):
            context.delayed = response
            response = wait_in_turn(response)
            context.delayed = None
        elif isinstance(response, Coroutine):
            response = wait_in_turn(response)
    except KafkaError as error:
        response = handler.fail(context, request, error)
    if response is None:
        return None
    has_errors = encode_response(context, response, request)
    if context.charge is not None:
        context.charge.spent_ns = turns_ns()
    # Parts of the response may be from another image or config than the others.
    is_consistent = services.metadata.version == image_version and services.config is config
    if cache_key is not None and is_consistent and not has_errors:
        body = context.body
        joined = body if isinstance(body, bytes) else b"".join(cast("list[Buffer]", body))
        server.cached_responses.put(cache_key, joined)
    return context.body


def encode_response(context: RequestContext, response: Any, request: Any = None) -> bool | None:
    """Encode a complete response, and report its errors. Returns whether it has errors; None for Produce and Fetch."""
    body = context.body = _encode(context, response)
    # What is small is reported and sent as outside of a turn.
    context.in_turns = isinstance(body, list)
    has_errors = context.handler.report_errors(context, request, response)
    if context.in_turns:
        _release_elements(response)
    return has_errors


def _encode(context: RequestContext, response: Any) -> Body:
    """Return the encoded response: bytes if it is small, else buffers."""
    out: list[Buffer | Records] = []
    body: list[Buffer | Records] = []
    size = 0

    def pause() -> None:
        nonlocal size
        joined = len(body)
        _join_buffers(out, body)
        size += sum(map(len, body[joined:]))
        if size > MAX_RESPONSE_BYTES:
            release(body)
            raise ResponseTooLarge(f"more than {MAX_RESPONSE_BYTES} bytes")
        yield_if_due()

    context.handler.append(response, context.version, out, pause)
    if not body and sum(map(len, out)) < SMALL_RESPONSE_BYTES and all(isinstance(part, Buffer) for part in out):
        return b"".join(cast("list[Buffer]", out))
    _join_buffers(out, body, 0)
    return body


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


def _release_elements(message: Any) -> None:
    """Free the elements of a message that is not needed any more. Produce and Fetch have other objects."""
    if isinstance(message, Message):
        release_elements(message)


def release_elements(struct: Struct) -> None:
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
                    release_elements(element)
            yield_if_due()


@cache
def _lists(cls: StructType) -> tuple[tuple[str, bool], ...]:
    """Return the lists of a struct, each with whether its elements have lists."""
    kinds = {name: row.type[0] for name, row in cls.__rows__.items() if isinstance(row.type, list)}
    return tuple(
        (name, isinstance(kind, StructType) and bool(_lists(kind)))
        for name, kind in kinds.items()
        if isinstance(kind, StructType) or kind == "string"
    )
