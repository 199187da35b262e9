"""The client side of a session with the simulated coordination service."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Protocol, cast

from kbroker.coordination.interface import (
    ANY_VERSION,
    CoordinationError,
    Create,
    Delete,
    Node,
    NoNode,
    Op,
    SessionExpired,
    Set,
    TooLarge,
    Unavailable,
    Watch,
    WatchEvent,
    WatchManager,
)
from kbroker.simulation.coordination.server import (
    ConnectionClosed,
    ConnectRequest,
    ConnectResponse,
    Kind,
    OperationRequest,
    OperationResponse,
    Ping,
    PingResponse,
    Result,
    ServiceMessage,
    SessionConnection,
    WatchNotification,
)

# The delay before a lost connection is opened again, and before the next attempt, in seconds.
RECONNECT_S = (0.02, 0.5)
CONNECT_RETRY_S = (1.0, 2.0)
# The limit of a request, as in kbroker/coordination/zookeeper/client.py, and about how many bytes an operation has
# besides its path and data.
MAX_REQUEST_BYTES = 0xFFFFF
OP_OVERHEAD_BYTES = 50


class SessionService(Protocol):
    """The part of the coordination service that a session uses."""

    def connect(
        self,
        number: int,
        loop: asyncio.AbstractEventLoop,
        receive: Callable[[SessionConnection, ServiceMessage], None],
    ) -> SessionConnection: ...

    def disconnected(self, connection: SessionConnection) -> None: ...


class SimSession:
    """Implements Coordination as kbroker/coordination/zookeeper/session.py does.

    It pings after a third of the session's timeout and closes a connection on which nothing was received for two
    thirds, so an operation fails after at most 4/3 of the timeout. The program's own loop runs these timers: a paused
    program neither pings nor reconnects.
    """

    def __init__(
        self,
        service: SessionService,
        loop: asyncio.AbstractEventLoop,
        number: int,
        timeout_s: float,
        random: Random,
    ) -> None:
        self._service = service
        self._loop = loop
        self._number = number
        self._timeout_s = timeout_s
        self._receive_timeout_s = timeout_s * 2 / 3
        self._ping_interval_s = timeout_s / 3
        self._random = random
        self._over = False
        self._callbacks: list[Callable[[], None]] = []
        self._watches: WatchManager[Watch] = WatchManager()
        # Watches whose request has no response yet.
        self._pending_watches: dict[OperationRequest, Watch] = {}
        # The number of the last transaction whose effects have been received.
        self._last_seen = 0
        self._connection: SessionConnection | None = None
        self._connected = False
        self._last_received_at = self._last_sent_at = self._connect_at = 0.0
        # Requests that wait for a connection, and those that wait for a response.
        self._unsent: deque[OperationRequest] = deque()
        self._in_flight: deque[OperationRequest] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._connect()

    @property
    def session_id(self) -> int:
        return self._number

    @property
    def is_connected(self) -> bool:
        return self._connected

    @property
    def timeout_ms(self) -> int:
        return round(self._timeout_s * 1000)

    # Coordination.

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        return cast(Node, await self._call("get", path, watch=watch))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Send one request per path at once; writes of other sessions may come between them."""
        requests = [self._send("get", path) for path in paths]
        nodes: list[Node | None] = []
        for index, request in enumerate(requests):
            try:
                nodes.append(cast(Node, await request.response))
            except NoNode:
                nodes.append(None)
            except BaseException:
                _abandon(requests[index + 1 :])
                raise
        return nodes

    async def exists(self, path: str, watch: Watch | None = None) -> int | None:
        return cast(int | None, await self._call("exists", path, watch=watch))

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        return cast(list[str], await self._call("children", path, watch=watch))

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        await self.multi([Create(path, data, ephemeral)])

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        ops = [Set(path, data, version)]
        _check_size(ops)
        return cast(int, await self._call("set", path, ops=ops))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi([Delete(path, version)])

    async def multi(self, ops: Sequence[Op]) -> None:
        if ops:
            _check_size(ops)
            await self._call("multi", ops=list(ops))

    async def sync(self) -> None:
        await self._call("sync")

    def on_expired(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    async def close(self) -> None:
        """Close the session. If the service is unreachable, it expires later."""
        if self._over:
            return
        with suppress(Unavailable, SessionExpired):
            await self._call("close")
        self._end()

    # Requests.

    async def _call(self, kind: Kind, path: str = "", *, ops: Sequence[Op] = (), watch: Watch | None = None) -> Result:
        return await self._send(kind, path, ops, watch).response

    def _send(self, kind: Kind, path: str = "", ops: Sequence[Op] = (), watch: Watch | None = None) -> OperationRequest:
        if self._over:
            raise SessionExpired
        request = OperationRequest(kind, self._loop.time(), self._loop.create_future(), path, ops, watch is not None)
        if watch is not None:
            self._pending_watches[request] = watch
        if self._connected:
            self._transmit(request)
        else:
            self._unsent.append(request)
        self._set_timer()
        return request

    def _transmit(self, request: OperationRequest) -> None:
        assert self._connection is not None
        self._in_flight.append(request)
        self._last_sent_at = self._loop.time()
        self._connection.requests.send(request)

    # Messages of the service.

    def _receive(self, connection: SessionConnection, message: ServiceMessage) -> None:
        if connection is not self._connection or self._over:
            return
        self._last_received_at = self._loop.time()
        match message:
            case OperationResponse():
                self._on_response(message)
            case WatchNotification(event, seen):
                self._last_seen = seen
                self._fire_watches(event)
            case ConnectResponse(alive):
                self._on_connected() if alive else self._on_session_expired()
            case ConnectionClosed():
                self._disconnect()
            case PingResponse():
                pass
        self._set_timer()

    def _on_response(self, response: OperationResponse) -> None:
        request = self._in_flight.popleft()
        assert request is response.request, "responses arrive in the order of the requests"
        self._last_seen = response.seen
        watch = self._pending_watches.pop(request, None)
        if watch is not None and response.error is None:
            self._watches.add(request.path, watch, children=request.kind == "children")
        _complete(request, response.result, response.error)

    def _fire_watches(self, event: WatchEvent) -> None:
        for watch, fired in self._watches.fire([event]):
            self._loop.call_soon(watch, fired)

    # The connection.

    def _connect(self) -> None:
        if self._connection is not None:
            self._service.disconnected(self._connection)
        self._connection = self._service.connect(self._number, self._loop, self._receive)
        self._connection.requests.send(ConnectRequest(self._last_seen))
        self._connect_at = self._loop.time() + self._random.uniform(*CONNECT_RETRY_S)
        self._set_timer()

    def _on_connected(self) -> None:
        self._connected = True
        # The service has forgotten the watches with the last connection.
        for watch, event in self._watches.lose_all():
            self._loop.call_soon(watch, event)
        unsent, self._unsent = self._unsent, deque()
        for request in unsent:
            self._transmit(request)

    def _disconnect(self) -> None:
        """Fail the requests in flight: they may have been applied or not."""
        assert self._connection is not None
        self._service.disconnected(self._connection)
        self._connection = None
        self._connected = False
        self._connect_at = self._loop.time() + self._random.uniform(*RECONNECT_S)
        self._fail_all(self._in_flight, Unavailable("", "the connection to the service is lost"))

    def _fail_all(self, requests: deque[OperationRequest], error: CoordinationError) -> None:
        while requests:
            request = requests.popleft()
            self._pending_watches.pop(request, None)
            _complete(request, None, error)

    def _on_session_expired(self) -> None:
        self._end()
        for callback in self._callbacks:
            callback()

    def _end(self) -> None:
        self._over = True
        if self._connection is not None:
            self._service.disconnected(self._connection)
        if self._timer is not None:
            self._timer.cancel()
        self._fail_all(self._in_flight, SessionExpired())
        self._fail_all(self._unsent, SessionExpired())

    # Timers.

    def _set_timer(self) -> None:
        if self._over:
            return
        when = self._next_deadline()
        if self._timer is not None:
            if self._timer.when() <= when and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._on_timer)

    def _next_deadline(self) -> float:
        if self._connected:
            return min(self._last_received_at + self._receive_timeout_s, self._last_sent_at + self._ping_interval_s)
        if self._unsent:
            return min(self._connect_at, self._unsent[0].called_at + self._receive_timeout_s)
        return self._connect_at

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        if self._connected:
            if now >= self._last_received_at + self._receive_timeout_s:
                self._disconnect()
            elif now >= self._last_sent_at + self._ping_interval_s:
                self._ping(now)
        else:
            timed_out = deque[OperationRequest]()
            while self._unsent and now >= self._unsent[0].called_at + self._receive_timeout_s:
                timed_out.append(self._unsent.popleft())
            self._fail_all(timed_out, Unavailable("", "the service cannot be reached"))
            if now >= self._connect_at:
                self._connect()
        self._set_timer()

    def _ping(self, now: float) -> None:
        assert self._connection is not None
        self._last_sent_at = now
        self._connection.requests.send(Ping())


def _check_size(ops: Sequence[Op]) -> None:
    size = sum(len(op.path) + len(getattr(op, "data", b"")) + OP_OVERHEAD_BYTES for op in ops)
    if size > MAX_REQUEST_BYTES:
        raise TooLarge(ops[0].path, f"{len(ops)} operations have {size} bytes, the service allows {MAX_REQUEST_BYTES}")


def _abandon(requests: Sequence[OperationRequest]) -> None:
    """Cancel the responses; nothing awaits them."""
    for request in requests:
        if not request.response.cancel() and not request.response.cancelled():
            request.response.exception()


def _complete(request: OperationRequest, result: Result, error: CoordinationError | None) -> None:
    if request.response.done():
        return
    if error is not None:
        request.response.set_exception(error)
    else:
        request.response.set_result(result)
