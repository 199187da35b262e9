"""One connection to a peer: the handshake, then requests, whose responses may come in any order.

Unlike a client, a peer handles the requests of a connection at the same time, so a request that waits delays no other.
Responses are found by their correlation ids.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future, TimerHandle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from kbroker.common import Buffer, KafkaError
from kbroker.interbroker.frame_protocol import FrameProtocol, PeerFrameBuffers, channel_binding, send_frame
from kbroker.interbroker.handshake import MAX_HANDSHAKE_BYTES, HandshakeError, InitiatorHandshake
from protocol.apis import ALL_APIS
from protocol.errors import ErrorCode, MalformedError
from protocol.framing import has_flexible_request_header
from protocol.varints import skip_tagged_fields

MAX_RESPONSE_BYTES = 1 << 30
# Size of the frame, API key, version, correlation id, size of the client id.
_HEADER = Struct(">ihhih")
_HEADER_BYTES = _HEADER.size - 4
_NO_CLIENT_ID = -1
_MAX_CORRELATION_ID = (1 << 31) - 1


@dataclass(slots=True, eq=False)
class PeerStats:
    """Counts since the start, summed over all peers. `connections`: the number of open ones."""

    connections: int = 0
    connection_failures: int = 0
    requests_without_response: int = 0


class PeerUnavailable(KafkaError):
    """No response was received (NETWORK_EXCEPTION, REQUEST_TIMED_OUT). The peer may have handled the request."""


def tls_failure(error: object) -> HandshakeError:
    """Return the error for a failed TLS handshake. The peer runs, so it is no sign that this broker is cut off."""
    detail = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
    return HandshakeError("TLS handshake failed", detail=detail)


class _PendingRequest(NamedTuple):
    """`deadline_s`: the loop's time. `received_before`: the number of frames that had arrived when it was sent."""

    api_key: int
    is_flexible: bool
    future: Future[memoryview]
    deadline_s: float
    received_before: int


class PeerConnection(FrameProtocol):
    """`ready` is done when requests can be sent; it raises PeerUnavailable or HandshakeError.

    `on_end` is called once, when the connection is closed by either side.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        buffers: PeerFrameBuffers,
        handshake: InitiatorHandshake,
        on_end: Callable[[PeerConnection], None],
        stats: PeerStats,
    ) -> None:
        super().__init__(buffers, MAX_HANDSHAKE_BYTES)
        self.ready: Future[None] = loop.create_future()
        self.is_ready = False
        self._loop = loop
        self._stats = stats
        # None after the handshake has ended.
        self._handshake: InitiatorHandshake | None = handshake
        self._binding = b""
        self._on_end: Callable[[PeerConnection], None] | None = on_end
        self._pending: dict[int, _PendingRequest] = {}
        self._last_correlation_id = 0
        self._received = 0
        # Fires at the first deadline, or earlier: a timer for each request would take longer than sending it.
        self._timer: TimerHandle | None = None
        self._timer_s = 0.0

    @property
    def is_open(self) -> bool:
        return self.is_ready and self.transport is not None

    def on_open(self) -> None:
        assert self.transport is not None
        assert self._handshake is not None
        self._binding = channel_binding(self.transport)
        send_frame(self.transport, self._handshake.hello)

    def request(self, api_key: int, version: int, body: Sequence[Buffer], timeout_s: float) -> Future[memoryview]:
        """Send a request. The result is the body of the response; raises PeerUnavailable."""
        loop, transport = self._loop, self.transport
        future: Future[memoryview] = loop.create_future()
        if transport is None:
            future.set_exception(PeerUnavailable(ErrorCode.NETWORK_EXCEPTION, "The connection to the peer was closed."))
            return future
        self._last_correlation_id = 0 if (last := self._last_correlation_id) == _MAX_CORRELATION_ID else last + 1
        correlation_id = self._last_correlation_id
        is_flexible = has_flexible_request_header(api_key, version)
        tags = b"\0" if is_flexible else b""
        size = _HEADER_BYTES + len(tags) + sum(map(len, body))
        header = _HEADER.pack(size, api_key, version, correlation_id, _NO_CLIENT_ID)
        transport.write(b"".join((header, tags, *body)))
        deadline_s = loop.time() + timeout_s
        self._pending[correlation_id] = _PendingRequest(api_key, is_flexible, future, deadline_s, self._received)
        if self._timer is None or deadline_s < self._timer_s:
            self._set_timer(deadline_s)
        return future

    def _set_timer(self, deadline_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = deadline_s
        self._timer = self._loop.call_at(deadline_s, self._on_deadline)

    def _on_deadline(self) -> None:
        """Fail the requests whose time is over."""
        self._timer = None
        now_s = self._loop.time()
        late = [number for number, pending in self._pending.items() if pending.deadline_s <= now_s]
        is_silent = False
        for correlation_id in late:
            pending = self._pending.pop(correlation_id)
            is_silent = is_silent or pending.received_before == self._received
            self._stats.requests_without_response += 1
            if not pending.future.done():
                name = ALL_APIS[pending.api_key].name
                pending.future.set_exception(
                    PeerUnavailable(ErrorCode.REQUEST_TIMED_OUT, f"The peer has not responded to {name} in time.")
                )
        if is_silent:
            # No frame has arrived since one of these requests was sent. A new connection may reach the peer.
            self.close("The peer does not respond.")
        elif self._pending:
            self._set_timer(min(pending.deadline_s for pending in self._pending.values()))

    # Frames.

    def on_frame(self, frame: memoryview, is_shared: bool) -> None:
        self._received += 1
        if self._handshake is not None:
            self._end_handshake(self._handshake, bytes(frame))
            return
        pending = self._pending.pop(int.from_bytes(frame[:4], "big"), None)
        if pending is None:
            # The request has timed out.
            return
        if pending.future.done():
            return
        pos = 4
        if pending.is_flexible:
            try:
                pos = 5 if frame[4] == 0 else skip_tagged_fields(frame, 4)
            except (IndexError, MalformedError):
                pending.future.set_exception(PeerUnavailable(ErrorCode.NETWORK_EXCEPTION, "A malformed response."))
                self.close("The peer has sent a malformed response.")
                return
        body = frame[pos:]
        pending.future.set_result(memoryview(bytes(body)) if is_shared else body)

    def _end_handshake(self, handshake: InitiatorHandshake, challenge: bytes) -> None:
        try:
            proof = handshake.answer(challenge, self._binding)
        except HandshakeError as error:
            if not self.ready.done():
                self.ready.set_exception(error)
            self.close("The handshake has failed.")
            return
        assert self.transport is not None
        send_frame(self.transport, proof)
        self._handshake = None
        self.max_frame_bytes = MAX_RESPONSE_BYTES
        self.is_ready = True
        self._stats.connections += 1
        if not self.ready.done():
            self.ready.set_result(None)

    def on_malformed(self, size: int) -> None:
        self.close(f"The peer has sent a frame of {size} bytes.")

    # The end.

    def on_lost(self, error: Exception | None) -> None:
        if self._binding and not self.ready.done():
            # The end of the peer's TLS handshake follows that of this one: it refuses this broker's certificate.
            self.ready.set_exception(tls_failure(error or "the peer has closed the connection"))
        self._end(str(error) if error is not None else "The peer has closed the connection.")

    def close(self, reason: str) -> None:
        """Close the connection: the requests in flight fail with PeerUnavailable."""
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.abort()
        self._end(reason)

    def _end(self, reason: str) -> None:
        on_end, self._on_end = self._on_end, None
        pending, self._pending = self._pending, {}
        self._stats.requests_without_response += len(pending)
        if self.is_ready and on_end is not None:
            self._stats.connections -= 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for request in pending.values():
            if not request.future.done():
                request.future.set_exception(PeerUnavailable(ErrorCode.NETWORK_EXCEPTION, reason))
        if not self.ready.done():
            self.ready.set_exception(PeerUnavailable(ErrorCode.NETWORK_EXCEPTION, reason))
        if on_end is not None:
            on_end(self)
