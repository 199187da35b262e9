"""A connection of ZooKeeper's protocol: frames, the session that it belongs to, requests and responses in order."""

from __future__ import annotations

import asyncio
from functools import partial
from hmac import compare_digest
from typing import TYPE_CHECKING, cast

from kbroker.metadata.store.coordination import CoordinationError, WatchEvent
from kbroker.metadata.store.zookeeper_server import messages
from kbroker.metadata.store.zookeeper_server.jute import JuteReader, MalformedRequest
from kbroker.metadata.store.zookeeper_server.messages import RequestRefused, RequestType, ZooKeeperError
from kbroker.metadata.store.zookeeper_server.operations import RequestOperations
from kbroker.metadata.store.zookeeper_server.sessions import ServedSession, SessionTable
from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    from kbroker.metadata.store.embedded import EmbeddedStore

log = EventLogger("kbroker.metadata")

LENGTH_BYTES = 4
# As in ZooKeeper (jute.maxbuffer): a connection with a larger request is closed.
MAX_FRAME_BYTES = 0xFFFFF
# A connection with this number of requests without a response is not read.
MAX_UNANSWERED = 256


class ZooKeeperConnection(asyncio.Protocol):
    """One client. `session` is None until it has sent its first request. `is_refused`: closed when it is open."""

    def __init__(
        self,
        store: EmbeddedStore,
        sessions: SessionTable,
        digest: bytes,
        connections: dict[ZooKeeperConnection, None],
        listener: int,
    ) -> None:
        """`digest`: the credentials of all clients, empty if they need none. `connections`: the open ones.

        `listener`: the number of the one that has accepted this connection.
        """
        self.session: ServedSession | None = None
        self.is_refused = False
        self._store = store
        self._sessions = sessions
        self._digest = digest
        self._connections = connections
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._operations: RequestOperations | None = None
        self._is_authorized = not digest
        self._unanswered = 0
        self._is_write_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections[self] = None
        if self.is_refused:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.pop(self, None)
        if self.session is not None:
            self._sessions.disconnect(self, self.session)

    def close(self) -> None:
        """Send the responses that were written, and close the connection."""
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._pause_or_resume()

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._pause_or_resume()

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            while self._transport is not None and not self._transport.is_closing():
                frame = self._next_frame()
                if frame is None:
                    break
                self._handle(frame)
        except MalformedRequest:
            log.warning("a request in ZooKeeper's protocol is malformed, the connection is closed")
            self.close()
        self._pause_or_resume()

    def _next_frame(self) -> bytes | None:
        """Return the next request, None if it is not complete. Raises MalformedRequest."""
        if len(self._received) < LENGTH_BYTES:
            return None
        size = int.from_bytes(self._received[:LENGTH_BYTES], "big")
        if size > MAX_FRAME_BYTES:
            raise MalformedRequest
        end = LENGTH_BYTES + size
        if len(self._received) < end:
            return None
        frame = bytes(memoryview(self._received)[LENGTH_BYTES:end])
        del self._received[:end]
        return frame

    def _handle(self, frame: bytes) -> None:
        if self.session is None:
            self._connect(frame)
            return
        self.session.touch()
        reader = JuteReader(frame)
        xid, kind = reader.read_int(), reader.read_int()
        if kind == RequestType.PING:
            self._send(messages.encode_reply(messages.PING_XID))
        elif kind == RequestType.AUTH:
            self._authenticate(reader)
        elif kind == RequestType.CLOSE:
            self._sessions.end(self.session, then=partial(self._respond_to_close, xid))
        else:
            self._start(xid, kind, reader)

    def _connect(self, frame: bytes) -> None:
        session = self._sessions.connect(self, messages.decode_connect(frame), self._listener)
        if session is None:
            self._send(messages.encode_connect(0, 0, bytes(messages.PASSWORD_BYTES)))
            self.close()
            return
        self.session = session
        self._operations = RequestOperations(self._store, session.embedded, self._on_event)
        self._send(messages.encode_connect(session.timeout_ms, session.id, session.password))

    def _authenticate(self, reader: JuteReader) -> None:
        """Accept any credentials, as ZooKeeper does, but only the right ones authorize requests."""
        scheme, credentials = messages.decode_auth(reader)
        if scheme == "digest" and compare_digest(credentials, self._digest):
            self._is_authorized = True
        self._send(messages.encode_reply(messages.AUTH_XID))

    def _start(self, xid: int, kind: int, reader: JuteReader) -> None:
        """Start a request; the service completes requests in the order in which they were started."""
        session, operations = self.session, self._operations
        assert session is not None
        assert operations is not None
        try:
            if not self._is_authorized:
                raise RequestRefused(ZooKeeperError.NO_AUTH)
            operation = operations.operation(kind, reader)
        except RequestRefused as refusal:
            code = refusal.code
            operation = lambda commit: code  # noqa: E731
        self._unanswered += 1
        future = session.embedded.submit(operation)
        future.add_done_callback(partial(self._respond, xid))

    def _respond(self, xid: int, outcome: asyncio.Future[bytes | ZooKeeperError]) -> None:
        self._unanswered -= 1
        error = outcome.exception()
        if isinstance(error, CoordinationError):
            self._send(messages.encode_reply(xid, messages.error_code(error)))
        elif error is not None:
            log.error("a request in ZooKeeper's protocol failed", reason=repr(error))
            self._send(messages.encode_reply(xid, ZooKeeperError.SYSTEM_ERROR))
        else:
            result = outcome.result()
            if isinstance(result, ZooKeeperError):
                self._send(messages.encode_reply(xid, result))
            else:
                self._send(messages.encode_reply(xid, ZooKeeperError.OK, result))
        self._pause_or_resume()

    def _respond_to_close(self, xid: int) -> None:
        self._send(messages.encode_reply(xid))
        self.close()

    def _on_event(self, event: WatchEvent) -> None:
        self._send(messages.encode_event(event))

    def _send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _pause_or_resume(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._is_write_paused or self._unanswered >= MAX_UNANSWERED:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
