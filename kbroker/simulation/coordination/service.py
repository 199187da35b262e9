"""The coordination service, as an ensemble of ZooKeeper shows itself to its clients, in virtual time.

What it guarantees, and tests hold it to:
- It applies requests one at a time, whole, in the order in which they arrive. A session's arrive in the order in which
  they were sent and its answers come in that order. (`get_many` is as many requests: others may write in between.)
- A watch fires once, with the first change after it was left. A session hears of it, in the order of the changes,
  before it gets any answer that was made after the change: it cannot see new data before it is told. That holds across
  lost connections; a watch whose leaving was not answered is not left.
- A session that has not been heard of for its timeout is over: its ephemeral nodes are deleted. It is told when it
  reaches the service again, not before; until then it may believe to be alive.
- What is asked over a connection that is lost raises Unavailable: it may have been done or not, or be done later, but
  not after the session has connected anew.

State outlives what happens to brokers. All chance comes from one seed.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random

from kbroker.metadata.store.coordination import CoordinationError, Delete, WatchEvent
from kbroker.metadata.store.data_tree import AppliedOps, DataTree
from kbroker.metadata.store.watch_manager import WatchManager
from kbroker.simulation.coordination.messages import (
    Answer,
    Asked,
    Closed,
    Connection,
    Event,
    Hello,
    Ping,
    Pong,
    Request,
    Result,
    Told,
    Welcome,
)
from kbroker.simulation.coordination.session import SimSession
from kbroker.simulation.network.channel import Channel

Range = tuple[float, float]

DELAY_S: Range = (0.000_1, 0.002)
WATCH_DELAY_S: Range = (0.000_1, 0.05)


class ServedSession:
    """What the service knows of a session. `unseen`: events that the client may not have got. `connection`: the one
    that it is on; `connections`: those on which something may still come."""

    def __init__(self, number: int, host: str, timeout_s: float, now: float) -> None:
        self.number = number
        self.host = host
        self.timeout_s = timeout_s
        self.heard_at = now
        self.over = False
        self.connection: Connection | None = None
        self.connections: dict[Connection, None] = {}
        self.unseen: list[Event] = []
        self.events = 0


class SimCoordination:
    """The service. `delay_s`: (least, most) of a message's way, in seconds; `watch_delay_s`: of a watch event's, which
    all that is told after it waits for. `injected` counts what was done to it; `trace` is told
    what it applied: (session, kind, path or number of changes, "ok" or the error's name)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.delay_s = DELAY_S
        self.watch_delay_s = WATCH_DELAY_S
        self.injected: Counter[str] = Counter()
        self.trace: Callable[[int, str, object, str], None] | None = None
        self.tree = DataTree()
        self._loop = loop
        self._random = random
        self._watches: WatchManager[int] = WatchManager()
        self._sessions: dict[int, ServedSession] = {}
        self._no_requests: dict[str, None] = {}
        self._no_answers: dict[str, None] = {}
        self._down = False

    def session(self, loop: asyncio.AbstractEventLoop, host: str, timeout_ms: int = 6000) -> SimSession:
        """A new session of a program on `loop`; it connects by itself."""
        number = len(self._sessions) + 1
        served = ServedSession(number, host, timeout_ms / 1000, self._loop.time())
        self._sessions[number] = served
        self._loop.call_later(served.timeout_s, self._look_at, served)
        return SimSession(self, loop, number, timeout_ms / 1000, self._random)

    # Faults.

    def cut(self, host: str, *, requests: bool = True, answers: bool = True) -> None:
        """What this host sends, or what it is sent, does not arrive until `heal`, if its connection lives so long."""
        self.injected["cut"] += 1
        if requests:
            self._no_requests[host] = None
        if answers:
            self._no_answers[host] = None

    def heal(self, host: str) -> None:
        self._no_requests.pop(host, None)
        self._no_answers.pop(host, None)
        for session in self._sessions.values():
            if session.host == host:
                for connection in session.connections:
                    connection.requests.there_is_a_way()
                    connection.answers.there_is_a_way()

    def heal_all(self) -> None:
        """The service is as it was in the beginning; sessions that are over stay so."""
        self.delay_s, self.watch_delay_s = DELAY_S, WATCH_DELAY_S
        for host in (*self._no_requests, *self._no_answers):
            self.heal(host)
        if self._down:
            self.start()

    def slow(self, delay_s: Range) -> None:
        """Every message takes so long, (least, most) in seconds."""
        self.injected["slow"] += 1
        self.delay_s = self.watch_delay_s = delay_s

    def expire(self, number: int) -> None:
        """End a session as if it had not been heard of for its timeout."""
        self.injected["expire"] += 1
        self._expire(self._sessions[number])

    def sessions(self, host: str | None = None) -> list[int]:
        """Those that are not over, the oldest first."""
        return [
            number
            for number, session in self._sessions.items()
            if not session.over and (host is None or session.host == host)
        ]

    def stop(self) -> None:
        """The service is away: connections are lost, with or without the answers that are on their way. Sessions do
        not expire meanwhile."""
        self.injected["stop"] += 1
        self._down = True
        for session in self._sessions.values():
            if session.connection is not None:
                if self._random.random() < 0.5:
                    session.connection.answers.lose()
                _disconnect(session)

    def start(self) -> None:
        """It is back; sessions have their whole timeout to come back in."""
        self._down = False
        for session in self._sessions.values():
            session.heard_at = self._loop.time()

    # Connections.

    def connect(
        self, number: int, loop: asyncio.AbstractEventLoop, tell: Callable[[Connection, Told], None]
    ) -> Connection:
        session = self._sessions[number]
        host = session.host
        connection = Connection(number)
        connection.requests = Channel(
            self._loop,
            self._delay_of_request,
            lambda: host not in self._no_requests,
            lambda message: self._hear(session, connection, message),
        )
        connection.answers = Channel(
            loop, self._delay_of_answer, lambda: host not in self._no_answers, lambda message: tell(connection, message)
        )
        session.connections[connection] = None
        return connection

    def disconnected(self, connection: Connection) -> None:
        """The client has given it up. What it had sent may arrive all the same."""
        connection.answers.close()
        session = self._sessions[connection.session]
        if connection is not session.connection or self._random.random() < 0.5:
            _forget(session, connection)

    def _delay_of_request(self, message: Asked) -> float:
        return self._random.uniform(*self.delay_s)

    def _delay_of_answer(self, message: Told) -> float:
        return self._random.uniform(*(self.watch_delay_s if isinstance(message, Event) else self.delay_s))

    # What sessions ask.

    def _hear(self, session: ServedSession, connection: Connection, message: Asked) -> None:
        if isinstance(message, Hello):
            self._greet(session, connection, message)
            return
        if connection is not session.connection:
            # It has moved to a newer one.
            return
        session.heard_at = self._loop.time()
        if isinstance(message, Ping):
            _prune(session, message.seen)
            connection.answers.send(Pong())
        else:
            self._serve(session, connection, message)

    def _greet(self, session: ServedSession, connection: Connection, hello: Hello) -> None:
        if self._down:
            connection.answers.send(Closed())
            return
        session.heard_at = self._loop.time()
        connection.answers.send(Welcome(not session.over))
        for older in list(session.connections):
            if older is not connection:
                _forget(session, older)
        if session.over:
            return
        session.connection = connection
        _prune(session, hello.seen)
        for event in session.unseen:
            connection.answers.send(event)

    def _serve(self, session: ServedSession, connection: Connection, request: Request) -> None:
        result: Result = None
        error: CoordinationError | None = None
        try:
            result = self._do(session, request)
        except CoordinationError as refusal:
            error = refusal
        if self.trace is not None:
            outcome = "ok" if error is None else type(error).__name__
            self.trace(session.number, request.kind, request.path or len(request.ops), outcome)
        connection.answers.send(Answer(request, result, error))

    def _do(self, session: ServedSession, request: Request) -> Result:
        path = request.path
        result: Result = None
        match request.kind:
            case "get":
                result = self.tree.get(path)
            case "exists":
                result = self.tree.version(path)
            case "children":
                result = self.tree.children(path)
            case "multi":
                self._announce(self.tree.apply(request.ops, session.number))
            case "set":
                self._announce(self.tree.apply(request.ops, session.number))
                result = self.tree.version(path)
            case "close":
                self._end(session)
        if request.watch:
            self._watches.add(path, session.number, children=request.kind == "children")
        return result

    def _announce(self, applied: AppliedOps) -> None:
        for number, event in self._watches.fire(applied.events):
            self._notify(self._sessions[number], event)

    def _notify(self, session: ServedSession, what: WatchEvent) -> None:
        session.events += 1
        event = Event(session.events, what)
        session.unseen.append(event)
        if session.connection is not None:
            session.connection.answers.send(event)

    # The end of sessions.

    def _look_at(self, session: ServedSession) -> None:
        """Is it still heard of?"""
        if session.over:
            return
        ends_at = session.heard_at + session.timeout_s
        if self._down:
            ends_at = self._loop.time() + session.timeout_s
        if ends_at > self._loop.time():
            self._loop.call_later(ends_at - self._loop.time(), self._look_at, session)
        else:
            self._expire(session)

    def _expire(self, session: ServedSession) -> None:
        if self.trace is not None:
            self.trace(session.number, "expire", session.host, "ok")
        self._end(session)
        _disconnect(session)

    def _end(self, session: ServedSession) -> None:
        if session.over:
            return
        session.over = True
        session.unseen.clear()
        self._watches.forget(lambda number: number == session.number)
        self._announce(self.tree.apply([Delete(path) for path in self.tree.ephemerals(session.number)], session.number))


def _disconnect(session: ServedSession) -> None:
    """The service closes the connection."""
    if session.connection is not None:
        session.connection.requests.close()
        session.connection.answers.send(Closed())
        session.connection = None


def _forget(session: ServedSession, connection: Connection) -> None:
    """Nothing that the client sent on it arrives any more."""
    connection.requests.close()
    session.connections.pop(connection, None)
    if connection is session.connection:
        session.connection = None


def _prune(session: ServedSession, seen: int) -> None:
    session.unseen = [event for event in session.unseen if event.number > seen]
