"""One client connection: received bytes are split into frames, whose requests are handled.

The requests of a connection are handled one at a time, in order, as in Kafka. Only Produce requests may overlap while
they wait for their acknowledgements, and OffsetCommits with one another; responses are sent in the order of the
requests (response_queue.py).

Each iteration of the event loop reads a few large frames of each connection: see _end_turn.

Complete frames are handled in place, in a buffer that all connections share. Two things are copied and kept
(receive_buffer.py): an incomplete frame, and the backlog, which is the bytes that arrive while no request may be
handled (backlog.py).
"""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol, cast

from kbroker.api.context import UNKNOWN_SOFTWARE, Identity, RequestContext, SaslLogin
from kbroker.api.dispatch import UnsupportedRequest
from kbroker.common import KafkaError
from kbroker.quotas.request_charge import charge_request
from kbroker.server.backlog import Backlog
from kbroker.server.error_reporter import api_name, closing_reason, foreign_protocol
from kbroker.server.fair_scheduler import EXPENSIVE_NS, LAST_DATA_API_KEY
from kbroker.server.frame_buffers import BUFFER_BYTES
from kbroker.server.large_request import LARGE_REQUEST_BYTES, serve_frame, serve_request
from kbroker.server.receive_buffer import HEADER_END, READ_BYTES, ReceiveBuffer
from kbroker.server.response_cache import MAX_REQUEST_BYTES
from kbroker.server.response_queue import ResponseQueue
from protocol.errors import MalformedError, ManyElements
from protocol.varints import skip_tagged_fields

if TYPE_CHECKING:
    from kbroker.authorization.authorizer import Access
    from kbroker.server.server_context import ServerContext

_LENGTH = Struct(">i")
# API key, version, correlation id, length of the client id.
_HEADER = Struct(">hhih")
# Frames that are handled before other connections are served; fewer while others have a backlog.
MAX_FRAMES = 64
MAX_FRAMES_IF_OTHERS_WAIT = 8
# After this many frames of a size, and this many bytes, others are read first. A single frame would be fairer, but with
# several requests in flight, those after the first two arrive while they are read, and are still in the processor's
# caches.
TURN_FRAMES = 3
TURN_BYTES = 256 * 1024
# The time for the last responses of a closed connection to be sent.
LINGER_S = 5.0


class ConnectionListener(Protocol):
    """The listener, which counts and limits its connections. `identity`: that of clients without authentication."""

    identity: Identity

    def on_open(self, connection: Connection) -> None: ...

    def on_close(self, connection: Connection) -> None: ...


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket. `host` is the client's address, `peer` is "host:port".

    `sasl`: None without SASL.

    `last_active_ns`: the last time at which bytes arrived or a delayed response was sent (monotonic).
    """

    __slots__ = (
        "_backlog", "_cache_prefix", "_client_id", "_client_id_bytes", "_linger_timer", "_listener", "_received",
        "_responses", "_server", "_transport", "_turn_bytes", "access", "client_software", "errors", "host", "identity",
        "last_active_ns", "peer", "producer_since",
    )  # fmt: skip

    sasl: SaslLogin | None = None

    def __init__(self, server: ServerContext, listener: ConnectionListener) -> None:
        self.host = "?"
        self.peer = "?"
        self.producer_since: int | None = None
        self.client_software = UNKNOWN_SOFTWARE
        self.access: Access | None = None
        self.last_active_ns = 0
        self.identity = listener.identity
        self.errors = server.errors
        self._server = server
        self._listener = listener
        self._cache_prefix = listener.identity.cache_prefix
        # None before the connection is made, and as soon as either side closes it.
        self._transport: asyncio.Transport | None = None
        self._received = ReceiveBuffer(self, server.memory)
        self._responses: ResponseQueue
        self._backlog: Backlog
        # The bytes that were read since the last turn.
        self._turn_bytes = 0
        self._linger_timer: asyncio.TimerHandle | None = None
        # The client id of the last request, cached because most requests have the same.
        self._client_id_bytes = b""
        self._client_id = ""

    @property
    def descriptor(self) -> int:
        """The file descriptor of the socket; -1 if it is closed."""
        socket = self._transport.get_extra_info("socket") if self._transport is not None else None
        return -1 if socket is None else socket.fileno()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._responses = ResponseQueue(self._server, self._transport, self)
        self._backlog = Backlog(self._server, self._transport, self._received, self._responses, self._serve_backlog)
        self._responses.on_unblocked = self._backlog.on_unblocked
        peer = transport.get_extra_info("peername")
        if peer:
            self.host = peer[0]
            self.peer = f"{peer[0]}:{peer[1]}"
        self.last_active_ns = self._server.mono_ns()
        self._transport.set_write_buffer_limits(high=self._server.write_high_water)
        self._listener.on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._listener.on_close(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        partial_frame = self._received.partial_frame
        if partial_frame is not None:
            return self._received.free_part(partial_frame)
        server = self._server
        if self._responses.is_blocked or server.memory.is_scarce:
            # The bytes will be copied and kept, so read only a few.
            return server.small_receive_view
        return server.receive_view

    def buffer_updated(self, nbytes: int) -> None:
        server, received = self._server, self._received
        self.last_active_ns = server.mono_ns()
        self._turn_bytes += nbytes
        partial_frame = received.partial_frame
        if partial_frame is None:
            view = server.receive_view[:nbytes]
        else:
            view = partial_frame
            received.filled += nbytes
            if received.filled < len(view) or not self._end_frame(view):
                if nbytes == READ_BYTES:
                    self._end_turn()
                return
        responses, backlog = self._responses, self._backlog
        if (responses.is_blocked or received.backlog or server.scheduler.is_paused) and backlog.must_wait(view):
            backlog.add(view)
        else:
            self._serve_frames(view)
        if partial_frame is not None and self._turn_bytes >= max(TURN_BYTES, TURN_FRAMES * len(view)):
            self._end_turn()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._responses.pause()

    def resume_writing(self) -> None:
        self._responses.resume()

    # Frames.

    def _serve_frames(self, view: memoryview) -> None:
        """Handle the complete frames in `view`, keep the rest, and send the responses with one system call."""
        server, responses = self._server, self._responses
        scheduler = server.scheduler
        responses.is_serving = True
        frames_left = MAX_FRAMES_IF_OTHERS_WAIT if scheduler.backlogs.calls else MAX_FRAMES
        pos, end = 0, len(view)
        while end - pos >= 4 and self._transport is not None:
            length: int = _LENGTH.unpack_from(view, pos)[0]
            if not 0 <= length <= server.max_request_bytes:
                foreign = foreign_protocol(length)
                reason = "frame too large" if length > 0 else "malformed frame"
                reason = reason if foreign is None else f"{foreign} on a listener without TLS"
                self.close(reason, size=length, limit=server.max_request_bytes)
                break
            frame_end = pos + 4 + length
            if frame_end > end:
                break
            self._serve_request(view[pos + 4 : frame_end])
            pos = frame_end
            frames_left -= 1
            if pos < end and (
                not frames_left
                or scheduler.is_paused
                or (responses.is_blocked and not self._backlog.may_overlap(view, pos))
            ):
                self._received.add_to_backlog(view[pos:])
                pos = end
                if not responses.is_blocked:
                    self._backlog.schedule()
                break
        if pos < end and self._transport is not None:
            self._begin_frame(view[pos:])
        responses.is_serving = False
        responses.flush()

    def _begin_frame(self, start: memoryview) -> None:
        """Keep an incomplete frame, unless its header already says that it is not supported."""
        if len(start) >= HEADER_END:
            api_key, version, _, _ = _HEADER.unpack_from(start, 4)
            try:
                self._server.dispatch[api_key, version]
            except UnsupportedRequest as error:
                self.close(error.reason, api=api_name(error.api_key), version=error.version)
                return
            except Exception as error:
                self.on_request_error(error, None)
                return
        self._received.begin_frame(start)

    def _end_frame(self, partial_frame: memoryview) -> bool:
        """Return whether a full buffer contains the complete frame; if it does not, enlarge it."""
        length: int = _LENGTH.unpack_from(partial_frame, 0)[0]
        if len(partial_frame) < length + 4 <= self._server.max_request_bytes + 4:
            if len(partial_frame) <= HEADER_END:
                self._begin_frame(partial_frame)
            elif not self._received.grow() and self._transport is not None:
                self._transport.pause_reading()
            return False
        self._received.end_frame()
        return True

    def _end_turn(self) -> None:
        """Read no more in this iteration of the event loop.

        uvloop would read the socket again, up to 32 times, as long as the bytes that have arrived fill the buffer,
        which those of pipelined large requests do: other connections would wait for 16 requests of this one.
        """
        if self._transport is not None and self._backlog.is_reading and not self._received.needs_memory:
            self._turn_bytes = 0
            self._transport.pause_reading()
            self._server.call_soon(self.resume_reading)

    def resume_reading(self) -> None:
        """Called in the next iteration of the event loop, and when there is memory again for an incomplete frame."""
        if self._backlog.is_reading and self._transport is not None:
            self._transport.resume_reading()

    def _serve_backlog(self, view: memoryview) -> None:
        # As in Kafka, the time of a request starts when the requests before it are done.
        self.last_active_ns = self._server.mono_ns()
        self._serve_frames(view)

    # Requests.

    def _serve_request(self, frame: memoryview) -> None:
        context, server, responses, size = None, self._server, self._responses, len(frame)
        try:
            api_key, version, correlation_id, client_id_size = _HEADER.unpack_from(frame, 0)
            pos = 10
            client_id: str | None
            if client_id_size > 0:
                pos += client_id_size
                if pos > size:
                    raise MalformedError("client id exceeds the frame")
                raw = frame[10:pos].tobytes()
                if raw != self._client_id_bytes:
                    self._client_id_bytes, self._client_id = raw, raw.decode(errors="replace")
                client_id = self._client_id
            else:
                client_id = None if client_id_size < 0 else ""
            handler = server.dispatch[api_key, version]
            if handler.is_flexible:
                pos = pos + 1 if frame[pos] == 0 else skip_tagged_fields(frame, pos)
            stats = handler.stats
            stats.requests += 1
            stats.bytes_in += size
            context = RequestContext(self, handler, version, correlation_id, client_id, self.last_active_ns)
            if server.quotas.has_client_quotas:
                self._charge(context, size)
            cache_key = None
            # A cached response to a Fetch may exceed its quota.
            is_limited = context.charge is not None and context.charge.fetch_bytes is not None
            if handler.may_be_cached and size <= MAX_REQUEST_BYTES and not is_limited:
                cache_key = b"".join((self._cache_prefix, frame[:4], frame[pos:]))
                if server.dispatch.authorizes and (access := context.access(server.services)) is not None:
                    # Other rights have another number, so they never find what these have been sent.
                    cache_key = access.number.to_bytes(8) + cache_key
                find = handler.find_response or server.cached_responses.get
                context.body = find(server.services, cache_key)
                if context.body is not None:
                    responses.send(context)
                    return
            if size > LARGE_REQUEST_BYTES and handler.is_large_by_size:
                self._serve_large_request(context, frame, pos)
                return
            request = handler.decode(frame, pos, version)
            if handler.runs_in_turns:
                is_cacheable = handler.is_cacheable is not None and handler.is_cacheable(server.services, request)
                key = cache_key if is_cacheable else None
                responses.wait_for_body(context, server.turns.call(serve_request, server, context, request, key))
                return
            try:
                response = handler.handle(server.services, context, request)
            except KafkaError as error:
                response = handler.fail(context, request, error)
            if isinstance(response, handler.response_type):
                has_errors = handler.report_errors(context, request, response)
                context.body = handler.encode(response, version)
                if cache_key is not None and not has_errors:
                    self._cache_response(context, cache_key, request, response)
                responses.send(context)
            elif response is not None:
                responses.wait_for(context, request, response)
        except UnsupportedRequest as error:
            self.close(error.reason, api=api_name(error.api_key), version=error.version)
        except ManyElements:
            assert context is not None
            self._serve_many_elements(context, frame, pos)
        except Exception as error:
            self.on_request_error(error, context)
        else:
            if context.charge is not None:
                context.charge.end_handling(server.mono_ns())
            if api_key > LAST_DATA_API_KEY:
                elapsed_ns = server.mono_ns() - self.last_active_ns
                if elapsed_ns > EXPENSIVE_NS:
                    server.scheduler.pause_after(elapsed_ns)

    def _charge(self, context: RequestContext, size: int) -> None:
        """Count the request in the quotas of its client. If it exceeds that of producers, the next ones wait."""
        client = (self.identity.principal.name, context.client_id)
        quotas, now_ns = self._server.quotas, self._server.mono_ns()
        charge = context.charge = charge_request(quotas, client, context.api_key, size, now_ns)
        if charge is not None and charge.throttle_ms:
            self._responses.mute(charge.throttle_ms)

    def _cache_response(self, context: RequestContext, key: bytes, request: Any, response: Any) -> None:
        handler, body = context.handler, context.body
        is_cacheable = handler.is_cacheable
        if handler.keep_response is not None:
            handler.keep_response(self._server.services, key, request, response, body)
        elif is_cacheable is not None and isinstance(body, bytes) and is_cacheable(self._server.services, request):
            self._server.cached_responses.put(key, body)

    def _serve_large_request(self, context: RequestContext, frame: memoryview, pos: int) -> None:
        # A larger frame has its own buffer. A smaller one is in a reused buffer, so it is copied.
        kept = frame if len(frame) > BUFFER_BYTES else bytes(frame)
        server = self._server
        self._responses.wait_for_body(context, server.turns.call(serve_frame, server, context, kept, pos))

    def _serve_many_elements(self, context: RequestContext, frame: memoryview, pos: int) -> None:
        try:
            self._serve_large_request(context, frame, pos)
        except Exception as error:
            self.on_request_error(error, context)

    def hold(self, size: int) -> None:
        """Count `size` more bytes (fewer, if negative) of a request in progress, which may outlive the connection."""
        self._received.hold(size)

    # The end.

    def on_request_error(self, error: Exception, context: RequestContext | None) -> None:
        """Close the connection because a request is malformed or its handler has failed."""
        reason = closing_reason(error)
        if reason is None:
            self.errors.report_failure(self.peer, self._client_id, context, error)
            self.close("internal error", context)
        else:
            self.close(reason.text, context, detail=reason.detail)

    def close(self, reason: str, context: RequestContext | None = None, **detail: object) -> None:
        """Close the connection and log the reason. `context`: the request that caused it."""
        if self._transport is not None:
            self.errors.report_close(self.peer, self._client_id, context, reason, detail)
            self.close_quietly()

    def close_quietly(self) -> None:
        """Close the connection without a log line, because it was idle or the broker stops."""
        transport = self._transport
        if transport is None:
            return
        self._responses.flush()
        is_stuck = self._end()
        has_unsent = transport.get_write_buffer_size() > 0
        socket = self._server.direct_socket(transport)
        if socket is not None and (is_stuck or not has_unsent):
            # As Java does. If requests are unread, the close alone resets the connection, and sarama's admin client
            # repeats a request only after an end of stream.
            socket.end_stream()
        if is_stuck:
            # A client that does not read would keep the unsent bytes in memory until it does.
            transport.abort()
            return
        transport.close()
        if has_unsent:
            self._linger_timer = self._server.call_later(LINGER_S, transport.abort)

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits for its response, or for the end of a throttle. If so, the connection is not idle."""
        return not self._responses.is_empty or self._responses.is_muted

    def _end(self) -> bool:
        """Stop handling requests and sending responses. Returns whether the client was not reading its responses."""
        self._transport = None
        self._backlog.close()
        self._received.close()
        return self._responses.close()
