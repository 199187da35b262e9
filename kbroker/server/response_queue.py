"""The responses of one connection: sent in the order of its requests, no faster than the client reads them."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Coroutine
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol, cast

from kbroker.api.context import RequestContext
from kbroker.common import Buffer
from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.runtime.metrics import FIRST_BITS
from kbroker.server.file_response import FileResponseWriter
from kbroker.storage.log.reading.file_slice import BULK_BYTES, FileSlice

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from kbroker.server.server_context import ServerContext

_HEADER = Struct(">ii")
# Smaller responses are joined into one buffer for the transport.
_JOIN_BELOW = 4096
# The most requests of a connection that may wait for their responses, or for those of the requests before them.
MAX_OVERLAPPING = 64


class QueueOwner(Protocol):
    """The connection. `last_active_ns`: the last time at which bytes arrived or a delayed response was sent."""

    last_active_ns: int

    def on_unblocked(self) -> None:
        """Called when requests may be handled again, but not in this call, which may be part of another's append."""
        ...

    def on_request_error(self, error: Exception, context: RequestContext | None) -> None: ...

    def close(self, reason: str, context: RequestContext | None = None, **detail: object) -> None: ...


class ResponseQueue:
    """`is_blocked`: no further request may be handled now.

    There are four reasons: a request waits that must not overlap with others, too many requests wait, the client does
    not read its responses, or a response is being read from the log.
    """

    __slots__ = (
        "_blocking", "_contexts", "_file_writer", "_is_paused", "_owner", "_server", "_transport", "_unsent_bytes",
        "is_blocked",
    )  # fmt: skip

    def __init__(self, server: ServerContext, transport: asyncio.Transport, owner: QueueOwner) -> None:
        self.is_blocked = False
        self._server = server
        # None as soon as the connection is closed.
        self._transport: asyncio.Transport | None = transport
        self._owner = owner
        # The requests without a response yet, and those whose responses wait for the responses before them.
        self._contexts: deque[RequestContext] = deque()
        # The request among them that must not overlap with others.
        self._blocking: RequestContext | None = None
        self._file_writer: FileResponseWriter | None = None
        # Whether the transport's buffer is full.
        self._is_paused = False
        # The bytes that `count_unsent` has reported to the server.
        self._unsent_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._contexts and self._file_writer is None

    # Requests.

    def wait_for(
        self, context: RequestContext, request: Any, response: DelayedResponse[Any] | Coroutine[Any, Any, Any]
    ) -> None:
        """Send the response when it is complete."""
        self._contexts.append(context)
        overlaps = context.handler.overlaps
        # Only Produce may overlap. It refers to the receive buffer, so it must not be kept.
        kept = None if overlaps else request
        if isinstance(response, DelayedResponse):
            context.delayed = response
            if not overlaps:
                self._blocking = context
            response.on_complete(partial(self._complete, context, kept))
        else:
            self._blocking = context
            self._server.spawn(self._await(context, kept, response))
        self._update_blocked()

    async def _await(self, context: RequestContext, request: Any, response: Awaitable[Any]) -> None:
        try:
            completed = await response
        except Exception as error:
            self._owner.on_request_error(error, context)
        else:
            self._complete(context, request, completed)

    def _complete(self, context: RequestContext, request: Any, response: Any) -> None:
        if self._transport is None:
            return
        self._owner.last_active_ns = self._server.mono_ns()
        context.delayed = None
        if self._blocking is context:
            self._blocking = None
        if response is None:
            self._contexts.remove(context)
        else:
            handler = context.handler
            try:
                handler.report_errors(context, request, response)
                context.body = handler.encode(response, context.version)
            except Exception as error:
                # It must not be raised in the append or the timer that completed the response.
                self._owner.on_request_error(error, context)
                return
        self._send_ready()
        self._owner.on_unblocked()

    def _update_blocked(self) -> None:
        self.is_blocked = (
            self._blocking is not None
            or self._is_paused
            or self._file_writer is not None
            or len(self._contexts) >= MAX_OVERLAPPING
        )

    # Sending.

    def send(self, context: RequestContext) -> None:
        """Send the response of a request after those of the requests before it."""
        self._contexts.append(context)
        self._send_ready()

    def _send_ready(self) -> None:
        """Send the complete responses, up to the first that is missing."""
        contexts, transport, server = self._contexts, self._transport, self._server
        while contexts and self._file_writer is None and transport is not None:
            context = contexts[0]
            body = context.body
            if body is None:
                break
            contexts.popleft()
            handler = context.handler
            tags = b"\0" if handler.has_flexible_response_header else b""
            if isinstance(body, bytes):
                size = len(body) + 4 + len(tags)
                transport.write(_HEADER.pack(size, context.correlation_id) + tags + body)
            else:
                size = sum(map(len, body)) + 4 + len(tags)
                header = _HEADER.pack(size, context.correlation_id) + tags
                if size < _JOIN_BELOW:
                    transport.write(b"".join((header, *cast("Sequence[Buffer]", body))))
                elif size < BULK_BYTES or not any(isinstance(part, FileSlice) for part in body):
                    transport.writelines([header, *cast("Sequence[Buffer]", body)])
                else:
                    parts = cast("Sequence[Buffer | FileSlice]", [header, *body])
                    self._start_file_writer(transport, parts)
            stats, ns = handler.stats, server.mono_ns() - context.received_ns
            stats.bytes_out += size
            stats.total_ns += ns
            stats.buckets[(ns >> FIRST_BITS).bit_length()] += 1
            if self._is_paused:
                self._count_unsent()
        if contexts or self.is_blocked:
            self._update_blocked()

    def _start_file_writer(self, transport: asyncio.Transport, parts: Sequence[Buffer | FileSlice]) -> None:
        self._file_writer = FileResponseWriter(self._server, transport, parts, self._on_file_written)
        self._file_writer.is_paused = self._is_paused
        self._file_writer.resume()
        self._update_blocked()

    def _on_file_written(self, error: OSError | None) -> None:
        if error is not None:
            self._owner.close("records could not be read", error=error)
            return
        self._file_writer = None
        self._send_ready()
        self._update_blocked()
        self._owner.on_unblocked()

    # Flow control.

    def pause(self) -> None:
        """Called when the client does not read its responses as fast as it sends requests."""
        self._is_paused = True
        self._count_unsent()
        if self._file_writer is not None:
            self._file_writer.is_paused = True
        self._update_blocked()

    def resume(self) -> None:
        self._is_paused = False
        self._count_unsent()
        self._update_blocked()
        if self._file_writer is not None:
            self._file_writer.is_paused = False
            self._file_writer.resume()
        else:
            self._owner.on_unblocked()

    def _count_unsent(self) -> None:
        transport = self._transport
        size = transport.get_write_buffer_size() if transport is not None and self._is_paused else 0
        self._server.count_unsent(size - self._unsent_bytes)
        self._unsent_bytes = size

    def close(self) -> bool:
        """Abandon the waiting requests. Returns whether the client was not reading its responses."""
        was_stuck = self._is_paused or self._file_writer is not None
        self._transport = None
        self._is_paused = False
        self._count_unsent()
        if self._file_writer is not None:
            self._file_writer.stop()
            self._file_writer = None
        contexts, self._contexts = self._contexts, deque()
        for context in contexts:
            if context.delayed is not None:
                context.delayed.abandon()
        self._blocking = None
        self._update_blocked()
        return was_stuck
