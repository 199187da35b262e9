"""A coordination service that behaves as a ZooKeeper ensemble does for its clients, in virtual time.

What it guarantees, and what it does not, as kbroker/coordination/interface.py says:
- The leader applies writes atomically, one at a time, in the order of arrival. The requests of a connection arrive in
  the order in which they were sent, and the responses arrive in that order. (`get_many` is several requests.)
- Reads come from the server of the connection, which may be behind the leader. It has what the session has seen before,
  also on other servers, every write of the session, successful or not, and what was written before a `sync`.
- A watch fires once, at the first change after it was set. The session receives the notification, in the order of the
  changes, before any response that was produced after the change: it never sees new data before the notification.
  Watches end with their connection; the session reports each as `lost` when it is connected again. A watch whose
  request got no response is not set.
- A session from which nothing is received for its timeout expires: its ephemeral nodes are deleted. It is notified when
  it reaches the service again, not before; until then it may believe that it is alive.
- A request on a connection that is lost raises Unavailable. If it is a write, it may have been applied or not, or be
  applied later, also after the session has connected again and has read, but not after the session's next `sync` or
  successful write, and not after the session's end.

Brokers come and go; the service's state stays. All randomness comes from one seed.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random

from kbroker.coordination.data_tree import DataNode, DataTree
from kbroker.coordination.interface import CoordinationError, Delete, Op
from kbroker.simulation.coordination.server import (
    ClientMessage,
    ConnectionClosed,
    ConnectRequest,
    ConnectResponse,
    OperationRequest,
    OperationResponse,
    Ping,
    PingResponse,
    Result,
    Server,
    ServiceMessage,
    SessionConnection,
    Transaction,
)
from kbroker.simulation.coordination.session import SimSession
from kbroker.simulation.network.link import DelayedChannel, DelayRange

SERVERS = 3
# The session timeout of brokers.
SESSION_MS = 6_000
# The delay of a message, and the delay until a server applies a transaction of the leader.
DELAY_S: DelayRange = (0.000_1, 0.002)
LAG_S: DelayRange = (0.000_1, 0.05)
# How much later the requests of a lost connection may arrive.
LATE_S: DelayRange = (0.0, 2.0)
WRITES = ("multi", "set")


class ServiceSession:
    """The service's state of a session.

    `connection` is the current one, to `server`; `connections` are all on which messages may still arrive.
    """

    def __init__(self, number: int, host: str, timeout_s: float, server: Server, now: float) -> None:
        self.number = number
        self.host = host
        self.timeout_s = timeout_s
        self.server = server
        self.last_received_at = now
        self.over = False
        self.connection: SessionConnection | None = None
        self.connections: dict[SessionConnection, None] = {}


class SimCoordination:
    """The service.

    `tree` is the leader's. `delay_s` is the range of a message's delay, `lag_s` that of the delay with which servers
    apply transactions. `injected` counts injected faults. `trace` is called with each applied request: session, kind,
    path or number of changes, "ok" or the error's name.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random) -> None:
        self.delay_s = DELAY_S
        self.lag_s = LAG_S
        self.injected: Counter[str] = Counter()
        self.trace: Callable[[int, str, object, str], None] | None = None
        # Called after each transaction.
        self.on_commit: Callable[[], None] = lambda: None
        self.tree = DataTree()
        self._loop = loop
        self._random = random
        self._transactions: list[Transaction] = []
        self._servers = self._new_servers()
        self._sessions: dict[int, ServiceSession] = {}
        # Hosts whose requests, or whose responses, do not arrive.
        self._requests_cut: dict[str, None] = {}
        self._responses_cut: dict[str, None] = {}
        self._down = False
        # When the last messages have arrived that were delayed by a fault.
        self._delayed_until = 0.0

    def _new_servers(self) -> list[Server]:
        """Return servers that have the data of `tree`, and apply later transactions."""

        def lag_s() -> float:
            return self._random.uniform(*self.lag_s)

        return [Server(self._loop, self._transactions, lag_s, copy_of(self.tree)) for _ in range(SERVERS)]

    def session(self, loop: asyncio.AbstractEventLoop, host: str, timeout_ms: int = SESSION_MS) -> SimSession:
        """Return a new session of a program on `loop`; it connects in the background."""
        number = len(self._sessions) + 1
        session = ServiceSession(number, host, timeout_ms / 1000, self._servers[0], self._loop.time())
        self._sessions[number] = session
        self._loop.call_later(session.timeout_s, self._check_timeout, session)
        return SimSession(self, loop, number, timeout_ms / 1000, self._random)

    # Faults.

    def cut(self, host: str, *, requests: bool = True, responses: bool = True) -> None:
        """Hold the messages from this host, or those to it, until `heal`; they are lost with their connection."""
        self.injected["cut"] += 1
        if requests:
            self._requests_cut[host] = None
        if responses:
            self._responses_cut[host] = None

    def heal(self, host: str) -> None:
        self._requests_cut.pop(host, None)
        self._responses_cut.pop(host, None)
        for session in self._sessions.values():
            if session.host == host:
                for connection in session.connections:
                    connection.requests.retransmit()
                    connection.responses.retransmit()

    def heal_all(self) -> None:
        """End all faults. Expired sessions stay expired."""
        self._delayed_until = max(self._delayed_until, self._loop.time() + max(self.delay_s[1], self.lag_s[1]))
        self.delay_s, self.lag_s = DELAY_S, LAG_S
        for host in (*self._requests_cut, *self._responses_cut):
            self.heal(host)
        if self._down:
            self.start()

    def is_prompt(self, host: str) -> bool:
        """Return whether nothing keeps a connected session of this host from learning of a change at once."""
        has_delays = (self.delay_s, self.lag_s) != (DELAY_S, LAG_S) or self._loop.time() < self._delayed_until
        return not (self._down or has_delays or host in self._requests_cut or host in self._responses_cut)

    def slow(self, delay_s: DelayRange) -> None:
        """Delay every message by this range."""
        self.injected["slow"] += 1
        self.delay_s = delay_s

    def lag(self, lag_s: DelayRange) -> None:
        """Apply later transactions with a delay of this range on each server."""
        self.injected["lag"] += 1
        self.lag_s = lag_s

    def expire(self, number: int) -> None:
        """Expire a session."""
        self.injected["expire"] += 1
        self._expire(self._sessions[number])

    def sessions(self, host: str | None = None) -> list[int]:
        """Return the sessions that are alive, oldest first."""
        return [
            number
            for number, session in self._sessions.items()
            if not session.over and (host is None or session.host == host)
        ]

    def stop(self) -> None:
        """Stop the service. Connections close; responses in flight may be lost. Sessions do not expire meanwhile."""
        self.injected["stop"] += 1
        self._down = True
        for session in self._sessions.values():
            if session.connection is not None:
                if self._random.random() < 0.5:
                    session.connection.responses.drop()
                _disconnect(session)

    def start(self) -> None:
        """Start the service again. Each session has its whole timeout to reconnect."""
        self._down = False
        for server in self._servers:
            server.apply_up_to(len(self._transactions))
        for session in self._sessions.values():
            session.last_received_at = self._loop.time()

    def write(self, ops: Sequence[Op]) -> None:
        """Apply writes of an operator's tool. Raises CoordinationError."""
        self.injected["write"] += 1
        self._commit(ops, 0)

    # Lost and restored data.

    def copy(self) -> DataTree:
        """Return a copy of the data as it is now, as an operator's backup of a server's data directory has it."""
        return copy_of(self.tree)

    def replace_data(self, copy: DataTree | None = None) -> None:
        """Replace the data of all servers by a copy, None for no data. No session of before is known any more.

        As in ZooKeeper, the ephemeral nodes of a copy last until the timeout of their sessions.
        """
        self.injected["replace data"] += 1
        for session in self._sessions.values():
            session.over = True
            _disconnect(session)
        for server in self._servers:
            server.stop()
        # The checks of invariants hold the tree.
        self.tree.nodes = copy_of(copy or DataTree()).nodes
        self._transactions = []
        self._servers = self._new_servers()
        owners = {node.owner for node in self.tree.nodes.values() if node.owner}
        self._loop.call_later(SESSION_MS / 1000, self._delete_ephemerals, self._transactions, owners)

    def _delete_ephemerals(self, transactions: Sequence[Transaction], owners: Iterable[int]) -> None:
        """Delete the ephemeral nodes of sessions that a copy had, unless the data was replaced again."""
        if transactions is self._transactions:
            for number in owners:
                self._commit([Delete(path) for path in self.tree.ephemerals(number)], number)

    # Connections.

    def connect(
        self,
        number: int,
        loop: asyncio.AbstractEventLoop,
        receive: Callable[[SessionConnection, ServiceMessage], None],
    ) -> SessionConnection:
        """Open a connection for session `number`; `receive` is called on `loop` with each message."""
        session = self._sessions[number]
        host = session.host
        connection = SessionConnection(number)
        connection.requests = DelayedChannel(
            self._loop,
            lambda message: self._random.uniform(*self.delay_s) + connection.late_s,
            lambda: host not in self._requests_cut,
            lambda message: self._receive(session, connection, message),
        )
        connection.responses = DelayedChannel(
            loop,
            lambda message: self._random.uniform(*self.delay_s),
            lambda: host not in self._responses_cut,
            lambda message: receive(connection, message),
        )
        session.connections[connection] = None
        return connection

    def disconnected(self, connection: SessionConnection) -> None:
        """Called when the client has closed the connection. Requests that it had sent may still arrive, late."""
        connection.responses.close()
        session = self._sessions[connection.session]
        if connection is not session.connection or self._random.random() < 0.5:
            _drop_connection(session, connection)
        else:
            connection.late_s = self._random.uniform(*LATE_S)
            connection.requests.retransmit()

    # Requests.

    def _receive(self, session: ServiceSession, connection: SessionConnection, message: ClientMessage) -> None:
        if isinstance(message, ConnectRequest):
            self._accept(session, connection, message)
        elif connection is session.connection:
            session.last_received_at = self._loop.time()
            if isinstance(message, Ping):
                connection.responses.send(PingResponse())
            else:
                self._serve(session, connection, message)
        elif isinstance(message, OperationRequest) and message.kind in WRITES and not session.over:
            # The session has moved to a newer connection, but this write was on its way to the leader.
            self._serve(session, connection, message)

    def _accept(self, session: ServiceSession, connection: SessionConnection, request: ConnectRequest) -> None:
        if self._down:
            connection.responses.send(ConnectionClosed())
            return
        session.last_received_at = self._loop.time()
        connection.responses.send(ConnectResponse(not session.over))
        if session.connection is not None:
            session.server.forget(session.connection)
            session.connection.responses.close()
        if session.over:
            for older in list(session.connections):
                if older is not connection:
                    _drop_connection(session, older)
            return
        session.connection = connection
        session.server = self._random.choice(self._servers)
        session.server.apply_up_to(request.last_seen)

    def _serve(self, session: ServiceSession, connection: SessionConnection, request: OperationRequest) -> None:
        result: Result = None
        error: CoordinationError | None = None
        try:
            result = self._execute(session, request)
        except CoordinationError as failure:
            error = failure
        if self.trace is not None:
            outcome = "ok" if error is None else type(error).__name__
            self.trace(session.number, request.kind, request.path or len(request.ops), outcome)
        if connection is session.connection:
            self._respond(session, connection, request, result, error)

    def _respond(
        self,
        session: ServiceSession,
        connection: SessionConnection,
        request: OperationRequest,
        result: Result,
        error: CoordinationError | None,
    ) -> None:
        if request.kind in (*WRITES, "sync"):
            session.server.apply_up_to(len(self._transactions))
            if error is None:
                for older in list(session.connections):
                    if older is not connection:
                        _drop_connection(session, older)
        if request.watch and error is None:
            session.server.watches.add(request.path, connection, children=request.kind == "children")
        connection.responses.send(OperationResponse(request, result, error, session.server.applied))

    def _execute(self, session: ServiceSession, request: OperationRequest) -> Result:
        """Apply a write at the leader, or read from the session's server."""
        result: Result = None
        tree = session.server.tree
        match request.kind:
            case "get":
                result = tree.get(request.path)
            case "exists":
                result = tree.version(request.path)
            case "children":
                result = tree.children(request.path)
            case "multi":
                self._commit(request.ops, session.number)
            case "set":
                self._commit(request.ops, session.number)
                result = self.tree.version(request.path)
            case "close":
                self._end_session(session)
        return result

    def _commit(self, ops: Sequence[Op], session: int) -> None:
        self.tree.apply(ops, session)
        self._transactions.append(Transaction(ops, session))
        for server in self._servers:
            server.commit(len(self._transactions))
        self.on_commit()

    # The end of sessions.

    def _check_timeout(self, session: ServiceSession) -> None:
        if session.over:
            return
        expires_at = session.last_received_at + session.timeout_s
        if self._down:
            expires_at = self._loop.time() + session.timeout_s
        if expires_at > self._loop.time():
            self._loop.call_later(expires_at - self._loop.time(), self._check_timeout, session)
        else:
            self._expire(session)

    def _expire(self, session: ServiceSession) -> None:
        if self.trace is not None:
            self.trace(session.number, "expire", session.host, "ok")
        self._end_session(session)
        _disconnect(session)

    def _end_session(self, session: ServiceSession) -> None:
        if session.over:
            return
        session.over = True
        self._commit([Delete(path) for path in self.tree.ephemerals(session.number)], session.number)


def _disconnect(session: ServiceSession) -> None:
    """Close the session's connection, as the service."""
    if session.connection is not None:
        session.server.forget(session.connection)
        session.connection.requests.close()
        session.connection.responses.send(ConnectionClosed())
        session.connection = None


def _drop_connection(session: ServiceSession, connection: SessionConnection) -> None:
    """Lose the requests that are still in flight on it."""
    connection.requests.close()
    session.connections.pop(connection, None)
    if connection is session.connection:
        session.server.forget(connection)
        session.connection = None


def copy_of(tree: DataTree) -> DataTree:
    copy = DataTree()
    for path, node in tree.nodes.items():
        copied = copy.nodes[path] = DataNode(node.data, node.version, node.owner)
        copied.children = set(node.children)
    return copy
