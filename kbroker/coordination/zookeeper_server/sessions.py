"""The sessions of clients: their timeouts and their current connections."""

import asyncio
from asyncio import Future
from collections.abc import Callable
from contextlib import suppress
from hmac import compare_digest

from kbroker.coordination.embedded import EmbeddedSession, EmbeddedStore, PendingCommit
from kbroker.coordination.interface import CoordinationError
from kbroker.coordination.zookeeper_server.messages import PASSWORD_BYTES, SessionRequest
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger

log = EventLogger("kbroker.metadata")

# A timer that is this late shows that the process was paused: the requests of its clients are not read yet.
LATE_S = 0.5


class ServedSession:
    """A session of a client, which outlives its connections. It expires after `timeout_ms` without a request.

    `listener`: the number of the listener at which it was opened.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        embedded: EmbeddedSession,
        timeout_ms: int,
        password: bytes,
        listener: int,
    ) -> None:
        self.embedded = embedded
        self.listener = listener
        self.id = embedded.session_id
        self.timeout_ms = timeout_ms
        self.password = password
        # Of its current connection.
        self.transport: asyncio.Transport | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.expires_at_s = 0.0
        self._loop = loop
        self.touch()

    def touch(self) -> None:
        self.expires_at_s = self._loop.time() + self.timeout_ms / 1000

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class SessionTable:
    """All sessions, by id."""

    def __init__(self, environment: Environment, store: EmbeddedStore, timeouts_ms: tuple[int, int]) -> None:
        """`timeouts_ms`: the least and the most session timeout."""
        self._environment = environment
        self._loop = environment.loop
        self._store = store
        self._min_timeout_ms, self._max_timeout_ms = timeouts_ms
        self._sessions: dict[int, ServedSession] = {}

    @property
    def has_sessions(self) -> bool:
        return bool(self._sessions)

    def connect(self, transport: asyncio.Transport, request: SessionRequest, listener: int = 0) -> ServedSession | None:
        """Return a new session, or the session that the client names; None if it has expired."""
        if not request.session:
            session = self._new_session(request.timeout_ms, listener)
        else:
            known = self._sessions.get(request.session)
            if known is None or not compare_digest(known.password, request.password):
                return None
            session = known
            session.touch()
        if session.transport is not None:
            # The client has connected again, and does not read the old connection any more.
            session.transport.close()
            self._forget_watches(session)
        session.transport = transport
        return session

    def disconnect(self, transport: asyncio.Transport, session: ServedSession) -> None:
        """The connection is closed. The session forgets its watches, unless it has another connection already."""
        if session.transport is transport:
            session.transport = None
            self._forget_watches(session)

    def end(self, session: ServedSession, then: Callable[[], None] = lambda: None) -> None:
        """End a session: delete its ephemeral nodes, then call `then`."""
        self._sessions.pop(session.id, None)
        session.cancel_timer()
        self._loop.create_task(self._end(session, then))

    def end_all_of(self, listener: int) -> None:
        """End the sessions that were opened at a listener: the only process that connects to it has ended."""
        for session in [session for session in self._sessions.values() if session.listener == listener]:
            log.info("a session ends with its process", session=f"0x{session.id:x}")
            self._end_now(session)

    def stop(self) -> None:
        """Stop the timers. The sessions end with the store, which does not store ephemeral nodes."""
        for session in self._sessions.values():
            session.cancel_timer()
        self._sessions.clear()

    def _new_session(self, timeout_ms: int, listener: int) -> ServedSession:
        timeout_ms = min(max(timeout_ms, self._min_timeout_ms), self._max_timeout_ms)
        password = self._environment.random.randbytes(PASSWORD_BYTES)
        session = ServedSession(self._loop, self._store.session(), timeout_ms, password, listener)
        self._sessions[session.id] = session
        self._set_timer(session)
        return session

    def _set_timer(self, session: ServedSession) -> None:
        session.timer = self._loop.call_at(session.expires_at_s, self._check, session, session.expires_at_s)

    def _check(self, session: ServedSession, due_s: float) -> None:
        """Expire the session if its time has passed."""
        now = self._loop.time()
        if now - due_s > LATE_S:
            log.warning("the coordination service was paused", seconds=round(now - due_s, 1))
            session.touch()
        if session.expires_at_s > now:
            self._set_timer(session)
            return
        log.warning("a session has expired", session=f"0x{session.id:x}", timeout_ms=session.timeout_ms)
        self._end_now(session)

    def _end_now(self, session: ServedSession) -> None:
        self.end(session)
        if session.transport is not None:
            session.transport.close()

    async def _end(self, session: ServedSession, then: Callable[[], None]) -> None:
        with suppress(CoordinationError):
            await session.embedded.close()
            then()

    def _forget_watches(self, session: ServedSession) -> None:
        """Remove the watches of the session's former connection."""

        def operation(commit: PendingCommit) -> None:
            self._store.remove_watches(commit, session.embedded)

        # Retrieves the error of a store that has failed or is closed.
        self._store.submit(operation).add_done_callback(Future.exception)
