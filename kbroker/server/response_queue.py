"""The responses of one connection: sent in the order of its requests, no faster than the client reads them."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Coroutine
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from kbroker.api.context import Body, Overlap, RequestContext
from kbroker.common import Buffer, KafkaError
from kbroker.quotas.request_charge import read_throttle_ms, with_throttle_ms
from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.server.direct_send import Part
from kbroker.server.file_response import FileResponseWriter
from kbroker.server.large_request import encode_response
from kbroker.storage.log.segment import BULK_BYTES, FileSlice

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from kbroker.quotas.request_charge import RequestCharge
    from kbroker.runtime.disk import DirectSocket
    from kbroker.server.server_context import ServerContext

_HEADER = Struct(">ii")
# Gathered responses of fewer bytes in all are joined into one buffer for the transport.
_JOIN_BELOW = 4096
# The most requests of a connection that may wait for their responses, or for those of the requests before them.
MAX_OVERLAPPING = 64
NO_API = -1


class QueueOwner(Protocol):
    """The connection. `last_active_ns`: the last time at which bytes arrived or a delayed response was sent."""

    last_active_ns: int

    def on_request_error(self, error: Exception, context: RequestContext | None) -> None: ...

    def close(self, reason: str, context: RequestContext | None = None, **detail: object) -> None: ...


class ResponseQueue:
    """Gathers the complete responses of a connection, in order; `flush` sends them with one system call.

    `is_blocked`: no further request may be handled now, because a request waits that must not overlap with others, too
    many requests overlap, the client does not read its responses, a response is being read from the log, or a quota was
    exceeded (`is_muted`). `admits` says which requests are excepted.
    `is_serving`: the connection is handling received requests, and calls `flush` after the last one.
    `on_unblocked`: called when requests may be handled again. It must not handle any itself: another connection's
    append may be the caller.
    """

    __slots__ = (
        "_admitted_api_key", "_blocking", "_contexts", "_direct_socket", "_file_writer", "_gathered", "_gathered_bytes",
        "_is_flush_scheduled", "_is_full", "_is_paused", "_mute_timer", "_muted_until_ns", "_owner", "_sent_contexts",
        "_server", "_transport", "_unsent_bytes", "is_blocked", "is_serving", "on_unblocked",
    )  # fmt: skip

    def __init__(self, server: ServerContext, transport: asyncio.Transport, owner: QueueOwner) -> None:
        self.is_blocked = False
        self.is_serving = False
        self.on_unblocked: Callable[[], None]
        self._server = server
        # None as soon as the connection is closed.
        self._transport: asyncio.Transport | None = transport
        self._owner = owner
        # The requests without a response yet, and those whose responses wait for the responses before them.
        self._contexts: deque[RequestContext] = deque()
        # The requests among them that must not overlap with others.
        self._blocking: set[RequestContext] = set()
        # Whether no request at all may be handled now.
        self._is_full = False
        # The API of requests that may overlap with those in `_blocking`, or NO_API.
        self._admitted_api_key = NO_API
        self._file_writer: FileResponseWriter | None = None
        # Opened for the first response from the log; False before that.
        self._direct_socket: DirectSocket | Literal[False] | None = False
        # Encoded responses, with their headers, that the transport does not have yet.
        self._gathered: list[Buffer] = []
        self._gathered_bytes = 0
        # The requests of these responses.
        self._sent_contexts: list[RequestContext] = []
        self._is_flush_scheduled = False
        # Whether the transport's buffer is full.
        self._is_paused = False
        # Set while the connection waits because of a quota (KIP-219).
        self._mute_timer: asyncio.TimerHandle | None = None
        self._muted_until_ns = 0
        # The bytes that `count_unsent` has reported to the server.
        self._unsent_bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._contexts and self._file_writer is None

    @property
    def is_muted(self) -> bool:
        return self._mute_timer is not None

    # Requests.

    def wait_for(
        self, context: RequestContext, request: Any, response: DelayedResponse[Any] | Coroutine[Any, Any, Any]
    ) -> None:
        """Send the response when it is complete."""
        overlap = context.handler.overlap
        # A Produce request refers to the receive buffer, so it must not be kept.
        kept = None if overlap is Overlap.ANY else request
        is_delayed = isinstance(response, DelayedResponse)
        self._contexts.append(context)
        if not is_delayed or overlap is not Overlap.ANY:
            self._blocking.add(context)
            self._admitted_api_key = context.api_key if is_delayed and overlap is Overlap.SAME_API else NO_API
        if self._blocking or len(self._contexts) >= MAX_OVERLAPPING:
            self._update_blocked()
        if isinstance(response, DelayedResponse):
            context.delayed = response
            response.on_complete(partial(self._complete, context, kept))
        else:
            self._server.spawn(self._await(context, kept, response))

    def admits(self, api_key: int) -> bool:
        """Return whether a request may be handled although `is_blocked`, since it may overlap with those that wait."""
        return api_key == self._admitted_api_key and not self._is_full

    def wait_for_body(self, context: RequestContext, body: Body | Coroutine[Any, Any, Body | None] | None) -> None:
        """Respond with an encoded response, or when the coroutine has returned it. None: there is no response."""
        if isinstance(body, Coroutine):
            self.wait_for(context, None, body)
        elif body is not None:
            self.send(context)

    async def _await(self, context: RequestContext, request: Any, response: Awaitable[Any]) -> None:
        try:
            try:
                completed = await response
            except KafkaError as error:
                completed = context.handler.fail(context, request, error)
            if context.body is None and context.handler.responds_in_turns:
                await self._server.turns.wait(encode_response, context, completed)
        except Exception as error:
            self._owner.on_request_error(error, context)
        else:
            self._complete(context, request, completed)

    def _complete(self, context: RequestContext, request: Any, response: Any) -> None:
        if self._transport is None:
            return
        self._owner.last_active_ns = self._server.mono_ns()
        context.delayed = None
        self._blocking.discard(context)
        if response is None:
            self._contexts.remove(context)
        elif context.body is None:
            handler = context.handler
            try:
                handler.report_errors(context, request, response)
                context.body = handler.encode(response, context.version)
            except Exception as error:
                # It must not be raised in the append or the timer that completed the response.
                self._owner.on_request_error(error, context)
                return
        self._gather_complete()
        if not self.is_serving:
            if not self._contexts:
                self.flush()
            elif self._sent_contexts and not self._is_flush_scheduled:
                # More responses may be completed in this iteration of the event loop.
                self._is_flush_scheduled = True
                self._server.call_soon(self._flush_scheduled)
        self.on_unblocked()

    def _update_blocked(self) -> None:
        is_stuck = self._is_paused or self._file_writer is not None or self._mute_timer is not None
        self._is_full = is_stuck or len(self._contexts) >= MAX_OVERLAPPING
        self.is_blocked = self._is_full or bool(self._blocking)

    # Sending.

    def send(self, context: RequestContext) -> None:
        """Send the response of a request in its place: with the next `flush`, or after the responses before it."""
        if self._contexts or self._file_writer is not None:
            self._contexts.append(context)
            self._gather_complete()
        else:
            self._gather(context)

    def _gather_complete(self) -> None:
        """Gather the complete responses, up to the first that is not complete."""
        contexts = self._contexts
        while contexts and contexts[0].body is not None and self._file_writer is None:
            self._gather(contexts.popleft())
        if contexts or self.is_blocked:
            self._update_blocked()

    def _gather(self, context: RequestContext) -> None:
        """Add a complete response to those that the next `flush` sends."""
        handler = context.handler
        if context.charge is not None:
            self._throttle(context, context.charge)
        body = context.body
        tags = b"\0" if handler.has_flexible_response_header else b""
        if isinstance(body, bytes):
            size = len(body) + 4 + len(tags)
            self._gathered.append(_HEADER.pack(size, context.correlation_id) + tags + body)
        else:
            assert body is not None
            size = sum(map(len, body)) + 4 + len(tags)
            header = _HEADER.pack(size, context.correlation_id) + tags
            if size >= BULK_BYTES and (context.in_turns or any(isinstance(part, FileSlice) for part in body)):
                self.flush()
                # What has been sent is freed, not all of it at the end.
                context.body = None
                self._send_file_response(cast("deque[Part]", deque((header, *body))))
            else:
                self._gathered += (header, *cast("Sequence[Buffer]", body))
        handler.stats.bytes_out += size
        self._sent_contexts.append(context)
        self._gathered_bytes += size
        if self._gathered_bytes >= self._server.max_gathered_bytes:
            self.flush()

    def _throttle(self, context: RequestContext, charge: RequestCharge) -> None:
        """Count a response in the quotas of its client. If one is exceeded, the response says it, and nothing is served
        until the time is over (KIP-219).
        """
        body, offset, now_ns = context.body, context.handler.throttle_offset, self._server.mono_ns()
        assert body is not None
        size = len(body) if isinstance(body, bytes) else sum(map(len, body))
        throttle_ms = charge.settle(size, read_throttle_ms(body, offset), now_ns)
        if throttle_ms:
            context.body = with_throttle_ms(body, offset, throttle_ms)
            self.mute(throttle_ms)

    def mute(self, duration_ms: int) -> None:
        """Serve no requests for some milliseconds."""
        until_ns = self._server.mono_ns() + duration_ms * 1_000_000
        if self._transport is None or (self._mute_timer is not None and until_ns <= self._muted_until_ns):
            return
        if self._mute_timer is not None:
            self._mute_timer.cancel()
        self._muted_until_ns = until_ns
        self._mute_timer = self._server.call_later(duration_ms / 1000, self._unmute)
        self._update_blocked()

    def _unmute(self) -> None:
        self._mute_timer = None
        self._owner.last_active_ns = self._server.mono_ns()
        self._update_blocked()
        self.on_unblocked()

    def flush(self) -> None:
        """Hand the gathered responses to the transport, which sends them with one system call."""
        contexts, parts, size = self._sent_contexts, self._gathered, self._gathered_bytes
        if not contexts:
            return
        self._sent_contexts, self._gathered, self._gathered_bytes = [], [], 0
        transport = self._transport
        if transport is not None and parts:
            if len(parts) == 1:
                transport.write(parts[0])
            elif size < _JOIN_BELOW:
                transport.write(b"".join(parts))
            else:
                transport.writelines(parts)
        now_ns = self._server.mono_ns()
        for context in contexts:
            context.handler.stats.observe(now_ns - context.received_ns)
        if self._is_paused:
            self._count_unsent()

    def _flush_scheduled(self) -> None:
        self._is_flush_scheduled = False
        self.flush()

    def _send_file_response(self, parts: deque[Part]) -> None:
        transport = self._transport
        if transport is None:
            return
        socket = self._direct_socket
        if socket is False:
            socket = self._direct_socket = self._server.direct_socket(transport)
        writer = FileResponseWriter(self._server, transport, socket, parts, self._on_file_written)
        if writer.send_first():
            return
        self._file_writer = writer
        writer.is_paused = self._is_paused
        writer.resume()
        self._update_blocked()

    def _on_file_written(self, error: OSError | None) -> None:
        if error is not None:
            self._owner.close("records could not be read", error=error)
            return
        self._file_writer = None
        self._gather_complete()
        self.flush()
        self._update_blocked()
        self.on_unblocked()

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
            self.on_unblocked()

    def _count_unsent(self) -> None:
        transport = self._transport
        size = transport.get_write_buffer_size() if transport is not None and self._is_paused else 0
        self._server.count_unsent(size - self._unsent_bytes)
        self._unsent_bytes = size

    def close(self) -> bool:
        """Abandon the waiting requests. Returns whether the client was not reading its responses."""
        was_stuck = self._is_paused or self._file_writer is not None
        self._transport = None
        self._direct_socket = None
        self._is_paused = False
        self._count_unsent()
        if self._file_writer is not None:
            self._file_writer.stop()
            self._file_writer = None
        if self._mute_timer is not None:
            self._mute_timer.cancel()
            self._mute_timer = None
        self._gathered, self._sent_contexts = [], []
        contexts, self._contexts = self._contexts, deque()
        for context in contexts:
            if context.delayed is not None:
                context.delayed.abandon()
        self._blocking.clear()
        self._update_blocked()
        return was_stuck
