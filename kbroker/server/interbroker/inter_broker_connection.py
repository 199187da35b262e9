"""One connection of another broker, after the handshake: its requests are handled at the same time.

Responses are sent as they become complete, in any order; the peer finds their requests by the correlation id. So a
request that waits for a commit, or for records, delays no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Literal, cast

from kbroker.api.context import UNKNOWN_SOFTWARE, Identity, RequestContext
from kbroker.api.dispatch import UnsupportedRequest
from kbroker.common import KafkaError
from kbroker.interbroker.frame_protocol import FrameProtocol
from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.server.error_reporter import api_name
from kbroker.server.file_response import FileResponseWriter
from kbroker.storage.log.segment import FileSlice
from protocol.errors import MalformedError
from protocol.fast.primitives import no_pause
from protocol.varints import skip_tagged_fields

if TYPE_CHECKING:
    from asyncio import Transport
    from collections.abc import Sequence

    from kbroker.authorization.authorizer import Access
    from kbroker.common import Buffer
    from kbroker.runtime.disk import DirectSocket
    from kbroker.server.direct_send import Part
    from kbroker.server.interbroker.inter_broker_context import InterBrokerContext

_HEADER = Struct(">ii")
# API key, version, correlation id, size of the client id. Brokers send none.
_REQUEST_HEADER = Struct(">hhih")
# Requests of a connection that may be in progress. More are not read.
MAX_IN_PROGRESS = 1024


class InterBrokerConnection(FrameProtocol):
    """`on_close` is called when either side closes the connection, perhaps twice."""

    def __init__(
        self,
        server: InterBrokerContext,
        peer: str,
        identity: Identity,
        on_close: Callable[[InterBrokerConnection], None],
    ) -> None:
        super().__init__(server.buffers, server.max_request_bytes)
        self.peer = peer
        self.identity = identity
        self.producer_since: int | None = None
        self.sasl: None = None
        self.client_software = UNKNOWN_SOFTWARE
        self.access: Access | None = None
        self.errors = server.errors
        self._server = server
        self._on_close = on_close
        # The requests without a response.
        self._in_progress: dict[RequestContext, None] = {}
        self._file_writer: FileResponseWriter | None = None
        # Responses that wait for the one from the log that is being sent.
        self._waiting: deque[RequestContext] = deque()
        self._direct_socket: DirectSocket | Literal[False] | None = False
        self._is_paused = False
        self._is_reading = True

    def on_open(self) -> None:
        assert self.transport is not None
        self.transport.set_write_buffer_limits(high=self._server.write_high_water)

    # Requests.

    def on_frame(self, frame: memoryview, is_shared: bool) -> None:
        server, context = self._server, None
        received_ns = server.mono_ns()
        try:
            api_key, version, correlation_id, client_id_size = _REQUEST_HEADER.unpack_from(frame)
            handler = server.dispatch[api_key, version]
            pos = _REQUEST_HEADER.size + max(0, client_id_size)
            if handler.is_flexible:
                pos = pos + 1 if frame[pos] == 0 else skip_tagged_fields(frame, pos)
            stats = handler.stats
            stats.requests += 1
            stats.bytes_in += len(frame)
            context = RequestContext(self, handler, version, correlation_id, None, received_ns)
            # At once, also if it has many elements.
            request = handler.decode(frame, pos, version, no_pause)
            try:
                response = handler.handle(server.services, context, request)
            except KafkaError as error:
                response = handler.fail(context, request, error)
            if isinstance(response, handler.response_type):
                self._complete(context, request, response)
            elif response is not None:
                self._in_progress[context] = None
                if len(self._in_progress) == MAX_IN_PROGRESS:
                    self._update_reading()
                if isinstance(response, DelayedResponse):
                    context.delayed = response
                    response.on_complete(partial(self._complete, context, request))
                else:
                    server.spawn(self._await(context, request, server.turns.run(response)))
        except UnsupportedRequest as error:
            self.close(error.reason, api=api_name(error.api_key), version=error.version)
        except Exception as error:
            self._on_request_error(error, context)

    async def _await(self, context: RequestContext, request: Any, response: Awaitable[Any]) -> None:
        try:
            try:
                completed = await response
            except KafkaError as error:
                completed = context.handler.fail(context, request, error)
        except Exception as error:
            self._on_request_error(error, context)
        else:
            self._complete(context, request, completed)

    def _complete(self, context: RequestContext, request: Any, response: Any) -> None:
        context.delayed = None
        self._in_progress.pop(context, None)
        if not self._is_reading:
            self._update_reading()
        if self.transport is None or response is None:
            return
        try:
            context.handler.report_errors(context, request, response)
            context.body = context.handler.encode(response, context.version)
        except Exception as error:
            # It must not be raised in the append or the timer that completed the response.
            self._on_request_error(error, context)
            return
        self._send(context)

    def _on_request_error(self, error: Exception, context: RequestContext | None) -> None:
        if isinstance(error, MalformedError | IndexError | StructError):
            self.close("malformed request", context, detail=str(error))
            return
        self.errors.report_failure(self.peer, None, context, error)
        self.close("internal error", context)

    # Responses.

    def _send(self, context: RequestContext) -> None:
        transport = self.transport
        if self._file_writer is not None:
            self._waiting.append(context)
            return
        assert transport is not None
        assert context.body is not None
        handler, body = context.handler, context.body
        parts: Sequence[Any] = (body,) if isinstance(body, bytes) else body
        tags = b"\0" if handler.has_flexible_response_header else b""
        size = sum(map(len, parts)) + 4 + len(tags)
        header = _HEADER.pack(size, context.correlation_id) + tags
        handler.stats.bytes_out += size
        handler.stats.observe(self._server.mono_ns() - context.received_ns)
        if any(isinstance(part, FileSlice) for part in parts):
            self._send_file_response(transport, cast("deque[Part]", deque((header, *parts))))
        elif size < 4096:
            transport.write(b"".join((header, *cast("Sequence[Buffer]", parts))))
        else:
            transport.writelines((header, *cast("Sequence[Buffer]", parts)))

    def _send_file_response(self, transport: Transport, parts: deque[Part]) -> None:
        if self._direct_socket is False:
            self._direct_socket = self._server.direct_socket(transport)
        writer = FileResponseWriter(self._server, transport, self._direct_socket, parts, self._on_file_written)
        if writer.send_first():
            return
        self._file_writer = writer
        writer.is_paused = self._is_paused
        writer.resume()

    def _on_file_written(self, error: OSError | None) -> None:
        if error is not None:
            self.close("records could not be read", error=error)
            return
        self._file_writer = None
        while self._waiting and self._file_writer is None and self.transport is not None:
            self._send(self._waiting.popleft())

    # Flow control.

    def pause_writing(self) -> None:
        self._is_paused = True
        if self._file_writer is not None:
            self._file_writer.is_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._update_reading()
        if self._file_writer is not None:
            self._file_writer.is_paused = False
            self._file_writer.resume()

    def _update_reading(self) -> None:
        """Read no further requests while the peer does not read its responses, or too many are in progress."""
        may_read = not self._is_paused and len(self._in_progress) < MAX_IN_PROGRESS
        if may_read is self._is_reading or self.transport is None:
            return
        self._is_reading = may_read
        if may_read:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    # The end.

    def hold(self, size: int) -> None:
        """Do nothing: requests of brokers are not counted as request memory."""

    def on_malformed(self, size: int) -> None:
        self.close("frame too large" if size > 0 else "malformed frame", size=size, limit=self.max_frame_bytes)

    def close(self, reason: str, context: RequestContext | None = None, **detail: object) -> None:
        """Close the connection and log the reason. `context`: the request that caused it."""
        if self.transport is not None:
            self.errors.report_close(self.peer, None, context, f"inter-broker: {reason}", detail)
            self.close_quietly()

    def close_quietly(self) -> None:
        """Close the connection without a log line."""
        transport = self.transport
        if transport is not None:
            self._end()
            self._on_close(self)
            if self._is_paused:
                transport.abort()
            else:
                transport.close()

    def on_lost(self, error: Exception | None) -> None:
        self._end()
        self._on_close(self)

    def _end(self) -> None:
        self.transport = None
        self._direct_socket = None
        if self._file_writer is not None:
            self._file_writer.stop()
            self._file_writer = None
        self._waiting.clear()
        contexts, self._in_progress = self._in_progress, {}
        for context in contexts:
            if context.delayed is not None:
                context.delayed.abandon()
