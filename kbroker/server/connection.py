"""One client connection: bytes to frames, frames to handlers, answers back in order.

Requests of a connection are served one at a time, as in Kafka, which clients rely on for order. Only Produce may
overlap while it waits for its acknowledgement; answers still leave in the order of the requests.

Memory: whole frames are served in place from one receive buffer that all connections share (a read fills it and is
consumed before the loop does anything else). What has to be kept, a frame that is not whole yet or what arrives while
nothing may be served, is in holdings.py. Answers that the client does not take are counted by the server, and while
there are too many of them nothing more is served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, cast

from kbroker.api.context import RequestContext
from kbroker.api.dispatch import UnsupportedRequest
from kbroker.common import Buffer
from kbroker.server.error_reporter import api_name
from kbroker.server.receive_buffer import HEADER_END, ReceiveBuffer
from kbroker.server.request_memory import LARGE
from kbroker.server.response_queue import LAST_OF_DATA, ResponseQueue
from protocol.errors import MalformedError
from protocol.varints import skip_tagged_fields

if TYPE_CHECKING:
    from kbroker.server.socket_server import SocketServer

_LENGTH = Struct(">i")
_HEADER = Struct(">hhih")
_KEY_END = 6
_MAX_BACKLOG = 32 * 1024
_MAX_OVERLAPPING = 64
# Then it is other connections' turn; sooner where some of them wait for theirs.
_FRAMES_A_TURN = 64
_FRAMES_OF_A_CROWD = 8
# A closed connection's last answers may take so long to leave.
_LINGER_S = 5.0


def _is_control(frame: Buffer) -> bool:
    """Whether it is the beginning of a request that is neither Produce nor Fetch."""
    return len(frame) >= _KEY_END and (frame[4] << 8 | frame[5]) > LAST_OF_DATA


class Connection(ResponseQueue):
    """The protocol object of one accepted socket. `host` is the client's address, `peer` that and its port."""

    __slots__ = (
        "_client_bytes", "_client_id", "_client_raw", "_client_size", "_holdings", "_linger", "_reading", "_scheduled",
        "host", "last_active_ns", "peer",
    )  # fmt: skip

    def __init__(self, server: SocketServer) -> None:
        super().__init__(server)
        self.host = "?"
        self.peer = "?"
        # Monotonic; when bytes arrived or an answer that was waited for left.
        self.last_active_ns = 0
        self._holdings = ReceiveBuffer(self, server.memory)
        self._scheduled = False
        # The backlog is not full.
        self._reading = True
        self._linger: asyncio.TimerHandle | None = None
        # The last request's client id as it came, its size, and what takes as much out of a frame.
        self._client_raw = b""
        self._client_size = 0
        self._client_bytes: Callable[[memoryview, int], tuple[bytes]] = Struct("0s").unpack_from
        self._client_id: str | None = ""

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host = peer[0]
            self.peer = f"{peer[0]}:{peer[1]}"
        self.last_active_ns = self.server.mono_ns()
        self._transport.set_write_buffer_limits(high=self.server.write_high_water)
        self.server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self._linger is not None:
            self._linger.cancel()
        self.server.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        partial = self._holdings.partial
        if partial is None:
            server = self.server
            if self._waiting_on is not None or server.memory.held > LARGE:
                # What comes now has to be kept.
                return server.small_receive_view
            return server.receive_view
        return partial[self._holdings.filled :]

    def buffer_updated(self, nbytes: int) -> None:
        server, holdings = self.server, self._holdings
        self.last_active_ns = server.mono_ns()
        view = holdings.partial
        if view is None:
            view = server.receive_view[:nbytes]
        else:
            holdings.filled += nbytes
            if holdings.filled < len(view) or not self._end_partial(view):
                return
        # As `_blocked`, which costs a call.
        if (
            self._waiting_on is not None
            or holdings.backlog
            or self._serving
            or self._paused
            or self._sending is not None
            or len(self._pending) >= _MAX_OVERLAPPING
            or server.turns.resting
        ) and self._must_wait(view):
            self._keep(view)
        else:
            self._consume(view)

    def eof_received(self) -> bool:
        return False

    # Frames.

    @property
    def _blocked(self) -> bool:
        return (
            self._waiting_on is not None
            or self._paused
            or self._sending is not None
            or len(self._pending) >= _MAX_OVERLAPPING
        )

    def _must_wait(self, view: memoryview) -> bool:
        """Whether something is in the way of what has arrived, and if it is only the others' turn, see to it."""
        if self._blocked or self._holdings.backlog or self._serving:
            return True
        if not _is_control(view):
            return False
        self._continue_soon()
        return True

    def _keep(self, view: memoryview) -> None:
        self._holdings.keep(view)
        if len(self._holdings.backlog) >= _MAX_BACKLOG and self._reading and self._transport is not None:
            self._transport.pause_reading()
            self._reading = False

    def _consume(self, view: memoryview) -> None:
        """Serve the whole frames of `view` in turn; what is left waits in the backlog or as a partial frame."""
        pos, end = 0, len(view)
        frames = 0
        server = self.server
        turns = server.turns
        most = _FRAMES_OF_A_CROWD if turns.backlogs.waiting else _FRAMES_A_TURN
        self._serving = True
        while end - pos >= 4 and self._transport is not None:
            length: int = _LENGTH.unpack_from(view, pos)[0]
            if not 0 <= length <= server.max_request_bytes:
                reason = "frame too large" if length > 0 else "malformed frame"
                self.close(reason, size=length, limit=server.max_request_bytes)
                break
            if end - pos - 4 < length:
                break
            frame = view[pos + 4 : pos + 4 + length]
            pos += 4 + length
            self._serve(frame)
            frames += 1
            if pos < end and (self._blocked or frames == most or turns.resting):
                self._holdings.keep(view[pos:end])
                pos = end
                if not self._blocked:
                    self._continue_soon()
        self._serving = False
        if pos < end and self._transport is not None:
            self._begin_partial(view[pos:end])

    def _begin_partial(self, rest: memoryview) -> None:
        if len(rest) < HEADER_END or not self._refuses(rest):
            self._holdings.begin(rest)

    def _refuses(self, rest: memoryview) -> bool:
        """Whether the beginning of a frame says already that it will not be served: the rest is not waited for."""
        api_key, version, _, _ = _HEADER.unpack_from(rest, 4)
        try:
            self.server.dispatch.find(api_key, version)
        except UnsupportedRequest as error:
            self.close(error.reason, api=api_name(error.api_key), version=error.version)
            return True
        return False

    def _end_partial(self, partial: memoryview) -> bool:
        """Its buffer is full, of the length, a part, or the whole of it. Gives whether it ends with this; if it does
        not it gets a larger one."""
        length: int = _LENGTH.unpack_from(partial, 0)[0]
        if len(partial) < length + 4 <= self.server.max_request_bytes + 4:
            if len(partial) <= HEADER_END:
                self._begin_partial(partial)
            elif not self._holdings.grow() and self._transport is not None:
                self._transport.pause_reading()
            return False
        self._holdings.end()
        return True

    def read_on(self) -> None:
        """There is memory again for more of the frame that is not whole."""
        if self._reading and self._transport is not None:
            self._transport.resume_reading()

    # Requests.

    def _serve(self, frame: memoryview) -> None:
        context, server = None, self.server
        try:
            api_key, version, correlation_id, size = _HEADER.unpack_from(frame, 0)
            pos = 10
            if size > 0:
                if pos + size > len(frame):
                    raise MalformedError("client id exceeds the frame")
                if size != self._client_size:
                    self._client_size = size
                    self._client_bytes = Struct(f"{size}s").unpack_from
                (raw,) = self._client_bytes(frame, pos)
                if raw != self._client_raw:
                    self._client_id = raw.decode(errors="replace")
                    self._client_raw = raw
                pos += size
            client_id = self._client_id if size > 0 else (None if size < 0 else "")
            handler = server.dispatch.find(api_key, version)
            if handler.is_flexible:
                pos = pos + 1 if frame[pos] == 0 else skip_tagged_fields(frame, pos)
            stats = handler.stats
            stats.requests += 1
            stats.bytes_in += len(frame)
            context = RequestContext(self, handler, version, correlation_id, client_id, self.last_active_ns)
            request = handler.decode(frame, pos, version)
            self._take_result(context, request, handler.handle(server.services, context, request))
        except UnsupportedRequest as error:
            self.close(error.reason, api=api_name(error.api_key), version=error.version)
        except Exception as error:
            self._failed(error, context)

    def _failed(self, error: Exception, context: RequestContext | None) -> None:
        """A frame that cannot be read, or a mistake of ours: no answer."""
        if isinstance(error, MalformedError | IndexError | StructError):
            self.close("malformed request", context, detail=str(error))
        elif isinstance(error, ValueError):
            # Its text may quote what was sent.
            self.close("malformed request", context, detail=type(error).__name__)
        else:
            self.server.refusals.failed(self.peer, self._client_id, context, error)
            self.close("internal error", context)

    def hold(self, size: int) -> None:
        """A request that is being served keeps so many bytes more. It may outlive the connection."""
        self._holdings.work(size)

    def _complete(self, context: RequestContext, request: Any, response: Any) -> None:
        """The response of a request that waited is there."""
        if self._transport is None:
            return
        if response is None:
            self._pending.remove(context)
        else:
            handler = context.handler
            handler.report_errors(context, request, response)
            context.body = handler.encode(response, context.version)
        self.last_active_ns = self.server.mono_ns()
        context.delayed = None
        if self._waiting_on is context:
            self._waiting_on = None
        self._write_pending()
        # Never at once: this may be in the middle of another connection's append.
        if self._holdings.backlog or not self._reading:
            self._continue_soon()

    # What has waited.

    def _continue_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            turns = self.server.turns
            if turns.resting and (_is_control(self._holdings.backlog) or not self._holdings.backlog):
                turns.wait(self._continue)
            else:
                turns.backlogs.add(self._continue)

    def _continue(self) -> None:
        """Something that blocked is over: serve what has arrived meanwhile, then read on."""
        self._scheduled = False
        holdings = self._holdings
        if holdings.backlog and not self._blocked and self._transport is not None:
            # As in Kafka, the time of a request begins when those before it let it.
            self.last_active_ns = self.server.mono_ns()
            self._consume(memoryview(holdings.take_backlog()))
        if not self._reading and not holdings.backlog and not self._blocked and self._transport is not None:
            self._reading = True
            if not holdings.starved:
                self._transport.resume_reading()

    # The end.

    def report_error(
        self, context: RequestContext, code: int, count: int, message: str | None, subject: dict[str, object]
    ) -> None:
        """A request is answered with an error code."""
        self.server.refusals.request(context, code, count, message, subject)

    def close(self, reason: str, context: RequestContext | None = None, **detail: object) -> None:
        """Close for a logged reason, as Kafka does with what it cannot answer. `context`: of the request to blame."""
        if self._transport is None:
            return
        self.server.refusals.connection(self.peer, self._client_id, context, reason, detail)
        self.close_quietly()

    def close_quietly(self) -> None:
        """Close without a word: idle for too long, or the broker stops."""
        transport = self._transport
        if transport is None:
            return
        paused = self._paused or self._sending is not None
        self._leave()
        # A client that does not read would keep what is unsent in memory until it does.
        if paused:
            transport.abort()
            return
        transport.close()
        if transport.get_write_buffer_size():
            self._linger = self.server.later(_LINGER_S, transport.abort)

    def _leave(self) -> None:
        """Nothing is served or answered from now on."""
        self._transport = None
        self._holdings.drop()
        self._stop_answering()
