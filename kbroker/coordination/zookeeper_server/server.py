"""ZooKeeperServer: listens, accepts connections, and runs their requests as operations of the embedded store.

Requests of a connection are handled in order, and so are their responses.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from hmac import compare_digest
from typing import cast

from kbroker.coordination.embedded import EmbeddedSession, EmbeddedStore, PendingCommit
from kbroker.coordination.interface import CoordinationError, SessionExpired, Unavailable, Watch, WatchEvent
from kbroker.coordination.zookeeper_server import messages
from kbroker.coordination.zookeeper_server.messages import (
    JuteReader,
    MalformedRequest,
    RequestRefused,
    RequestType,
    ZooKeeperError,
    encode_buffer,
    encode_string,
)
from kbroker.coordination.zookeeper_server.sessions import ServedSession, SessionTable
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger

log = EventLogger("kbroker.metadata")

LENGTH_BYTES = 4
# As in ZooKeeper (jute.maxbuffer): a connection with a larger request is closed.
MAX_FRAME_BYTES = 0xFFFFF
# A connection with this number of requests without a response is not read.
MAX_UNANSWERED = 256
MAX_CONNECTIONS = 1024

# Returns the body of the response, once the commit is durable.
ResponseOperation = Callable[[PendingCommit], bytes]


class RequestOperations:
    """The operations of one connection. `watch` is called with the events of its watches."""

    def __init__(self, store: EmbeddedStore, session: EmbeddedSession, watch: Watch) -> None:
        self._store = store
        self._session = session
        self._watch = watch

    def operation(self, kind: int, reader: JuteReader) -> ResponseOperation:
        """Decode a request. Raises MalformedRequest, RequestRefused."""
        match kind:
            case RequestType.GET_DATA | RequestType.EXISTS | RequestType.GET_CHILDREN | RequestType.GET_CHILDREN2:
                return self._read(kind, reader)
            case RequestType.MULTI:
                return self._multi(reader)
            case RequestType.SYNC:
                path = reader.read_string()
                return lambda commit: encode_string(path)
            case RequestType.CHECK:
                raise RequestRefused(ZooKeeperError.UNIMPLEMENTED)
            case _:
                return self._write(kind, reader)

    def _read(self, kind: int, reader: JuteReader) -> ResponseOperation:
        path, watches = messages.decode_path(reader), reader.read_boolean()
        watch = self._watch if watches else None
        reads_children = kind in (RequestType.GET_CHILDREN, RequestType.GET_CHILDREN2)

        def operation(commit: PendingCommit) -> bytes:
            # EXISTS sets the watch if there is no node, too.
            if kind == RequestType.EXISTS or path in self._store.tree.nodes:
                self._store.watch(commit, self._session, path, watch, children=reads_children)
            node, names = self._store.tree.get(path), self._store.tree.children(path)
            stat = messages.encode_node_stat(node, len(names))
            match kind:
                case RequestType.EXISTS:
                    return stat
                case RequestType.GET_DATA:
                    return encode_buffer(node.data) + stat
                case RequestType.GET_CHILDREN:
                    return messages.encode_names(names)
                case _:
                    return messages.encode_names(names) + stat

        return operation

    def _multi(self, reader: JuteReader) -> ResponseOperation:
        parts = messages.decode_multi(reader)
        ops = [op for _, op in parts]

        def operation(commit: PendingCommit) -> bytes:
            try:
                nodes = self._store.apply(commit, ops, self._session.session_id)
            except (SessionExpired, Unavailable):
                raise
            except CoordinationError as error:
                return messages.encode_multi_error(len(parts), error)
            return messages.encode_multi_results(parts, nodes)

        return operation

    def _write(self, kind: int, reader: JuteReader) -> ResponseOperation:
        op = messages.decode_op(kind, reader)

        def operation(commit: PendingCommit) -> bytes:
            (node,) = self._store.apply(commit, [op], self._session.session_id)
            return messages.encode_result(kind, op, node)

        return operation


class ZooKeeperConnection(asyncio.Protocol):
    """One client. `session` is None until it has sent its first request."""

    def __init__(
        self,
        store: EmbeddedStore,
        sessions: SessionTable,
        digest: bytes,
        connections: dict[ZooKeeperConnection, None],
        listener: int,
        is_refused: bool,
    ) -> None:
        """`digest`: the credentials of all clients, empty if they need none. `connections`: the open ones.

        `listener`: the number of the one that has accepted this connection. `is_refused`: closed when it is open.
        """
        self.session: ServedSession | None = None
        self._is_refused = is_refused
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
        if self._is_refused:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        transport, self._transport = self._transport, None
        self._connections.pop(self, None)
        if self.session is not None and transport is not None:
            self._sessions.disconnect(transport, self.session)

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
        assert self._transport is not None
        session = self._sessions.connect(self._transport, messages.decode_connect(frame), self._listener)
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
        operation: Callable[[PendingCommit], bytes | ZooKeeperError]
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


def first_session_id(now_ms: int) -> int:
    """Return an id below those of this start and above those of earlier ones, as ZooKeeper does."""
    return (now_ms << 20) & (1 << 62) - 1


class ZooKeeperServer:
    """`digest`: the credentials `user:password` without which requests are refused; empty if all are accepted."""

    def __init__(
        self,
        environment: Environment,
        store: EmbeddedStore,
        digest: str = "",
        session_timeouts_ms: tuple[int, int] = (1_000, 60_000),
    ) -> None:
        """`session_timeouts_ms`: the least and the most session timeout."""
        self._loop = environment.loop
        self._store = store
        self._digest = digest.encode()
        self._sessions = SessionTable(environment, store, session_timeouts_ms)
        self._connections: dict[ZooKeeperConnection, None] = {}
        self._listeners: list[asyncio.AbstractServer] = []

    async def start(self, port: int = 0) -> int:
        """Listen on loopback, and return the port. Raises OSError."""
        listener = await self._loop.create_server(partial(self._new_connection, 0), "127.0.0.1", port)
        self._listeners.append(listener)
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

    async def serve(self, listeners: Sequence[socket.socket]) -> None:
        """Accept connections at sockets that listen already. Each is for one client process: see `end_sessions`."""
        for number, listener in enumerate(listeners):
            self._listeners.append(await self._loop.create_server(partial(self._new_connection, number), sock=listener))

    def end_sessions(self, listener: int) -> None:
        """End the sessions of the process that connects to this listener: it has ended, so nothing is in progress."""
        self._sessions.end_all_of(listener)

    @property
    def has_sessions(self) -> bool:
        return self._sessions.has_sessions

    async def stop(self) -> None:
        """Close the connections, before the store is closed."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for connection in list(self._connections):
            connection.close()
        self._sessions.stop()

    def _new_connection(self, listener: int) -> ZooKeeperConnection:
        is_refused = len(self._connections) >= MAX_CONNECTIONS
        if is_refused:
            log.warning("too many connections in ZooKeeper's protocol", limit=MAX_CONNECTIONS)
        return ZooKeeperConnection(self._store, self._sessions, self._digest, self._connections, listener, is_refused)
