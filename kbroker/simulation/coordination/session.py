"""A client of the simulated coordination service: one session, as a program has it."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, cast

from kbroker.metadata.store.coordination import (
    ANY_VERSION,
    CoordinationError,
    Create,
    Delete,
    Node,
    NoNode,
    Op,
    SessionExpired,
    Set,
    Unavailable,
    Watch,
    WatchEvent,
)
from kbroker.metadata.store.watch_manager import WatchManager
from kbroker.simulation.coordination.messages import (
    Answer,
    Closed,
    Connection,
    Event,
    Hello,
    Kind,
    Ping,
    Pong,
    Request,
    Result,
    Told,
    Welcome,
)

if TYPE_CHECKING:
    from kbroker.simulation.coordination.service import SimCoordination

# How long until a lost connection is tried anew, and how long until the next try, in seconds.
RECONNECT_S = (0.02, 0.5)
TRY_S = (1.0, 2.0)


class SimSession:
    """The Coordination interface. It gives up a connection on which nothing was heard for two thirds of the session's
    timeout, and so an operation after at most twice that; it pings after one third. It is the program itself that does
    so: one that is paused does not."""

    def __init__(
        self,
        service: "SimCoordination",
        loop: asyncio.AbstractEventLoop,
        number: int,
        timeout_s: float,
        random: Random,
    ) -> None:
        self._service = service
        self._loop = loop
        self._number = number
        self._patience_s = timeout_s * 2 / 3
        self._ping_s = timeout_s / 3
        self._random = random
        self._over = False
        self._callbacks: list[Callable[[], None]] = []
        self._watches: WatchManager[Watch] = WatchManager()
        # Whose leaving is asked for and not yet answered.
        self._leaving: dict[Request, Watch] = {}
        self._seen = 0
        self._connection: Connection | None = None
        self._connected = False
        self._heard_at = self._asked_at = self._try_at = 0.0
        self._waiting: deque[Request] = deque()
        self._asked: deque[Request] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._connect()

    @property
    def session_id(self) -> int:
        return self._number

    # The interface.

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        return cast(Node, await self._ask("get", path, watch=watch))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Asked at once and answered one by one: others may write between two of them."""
        asked = [self._send("get", path) for path in paths]
        found: list[Node | None] = []
        for index, request in enumerate(asked):
            try:
                found.append(cast(Node, await request.answer))
            except NoNode:
                found.append(None)
            except BaseException:
                _forget(asked[index + 1 :])
                raise
        return found

    async def exists(self, path: str, watch: Watch | None = None) -> int | None:
        return cast(int | None, await self._ask("exists", path, watch=watch))

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        return cast(list[str], await self._ask("children", path, watch=watch))

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        await self._ask("multi", ops=[Create(path, data, ephemeral)])

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        return cast(int, await self._ask("set", path, ops=[Set(path, data, version)]))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._ask("multi", ops=[Delete(path, version)])

    async def multi(self, ops: Sequence[Op]) -> None:
        await self._ask("multi", ops=list(ops))

    def on_expired(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    async def close(self) -> None:
        """If the service cannot be told, the session expires by and by."""
        if self._over:
            return
        with suppress(Unavailable, SessionExpired):
            await self._ask("close")
        self._finish()

    # Asking.

    async def _ask(self, kind: Kind, path: str = "", *, ops: Sequence[Op] = (), watch: Watch | None = None) -> Result:
        return await self._send(kind, path, ops, watch).answer

    def _send(self, kind: Kind, path: str = "", ops: Sequence[Op] = (), watch: Watch | None = None) -> Request:
        if self._over:
            raise SessionExpired
        request = Request(kind, self._loop.time(), self._loop.create_future(), path, ops, watch is not None)
        if watch is not None:
            self._leaving[request] = watch
        if self._connected:
            self._pass_on(request)
        else:
            self._waiting.append(request)
        self._set_timer()
        return request

    def _pass_on(self, request: Request) -> None:
        assert self._connection is not None
        self._asked.append(request)
        self._asked_at = self._loop.time()
        self._connection.requests.send(request)

    # Hearing.

    def _hear(self, connection: Connection, message: Told) -> None:
        if connection is not self._connection or self._over:
            return
        self._heard_at = self._loop.time()
        match message:
            case Answer():
                self._take(message)
            case Event(number, event):
                self._seen = number
                self._fire(event)
            case Welcome(alive):
                self._arrived() if alive else self._expired()
            case Closed():
                self._disconnect()
            case Pong():
                pass
        self._set_timer()

    def _take(self, answer: Answer) -> None:
        request = self._asked.popleft()
        assert request is answer.request, "answers come in the order of the requests"
        watch = self._leaving.pop(request, None)
        if watch is not None and answer.error is None:
            self._watches.add(request.path, watch, children=request.kind == "children")
        _settle(request, answer.result, answer.error)

    def _fire(self, event: WatchEvent) -> None:
        for watch, what in self._watches.fire([event]):
            self._loop.call_soon(watch, what)

    # The connection.

    def _connect(self) -> None:
        if self._connection is not None:
            self._service.disconnected(self._connection)
        self._connection = self._service.connect(self._number, self._loop, self._hear)
        self._connection.requests.send(Hello(self._seen))
        self._try_at = self._loop.time() + self._random.uniform(*TRY_S)
        self._set_timer()

    def _arrived(self) -> None:
        self._connected = True
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            self._pass_on(request)

    def _disconnect(self) -> None:
        """What was asked and not answered may have been done or not."""
        assert self._connection is not None
        self._service.disconnected(self._connection)
        self._connection = None
        self._connected = False
        self._try_at = self._loop.time() + self._random.uniform(*RECONNECT_S)
        self._refuse(self._asked, Unavailable("", "the connection to the service is lost"))

    def _refuse(self, requests: deque[Request], error: CoordinationError) -> None:
        while requests:
            request = requests.popleft()
            self._leaving.pop(request, None)
            _settle(request, None, error)

    def _expired(self) -> None:
        self._finish()
        for callback in self._callbacks:
            callback()

    def _finish(self) -> None:
        self._over = True
        if self._connection is not None:
            self._service.disconnected(self._connection)
        if self._timer is not None:
            self._timer.cancel()
        self._refuse(self._asked, SessionExpired())
        self._refuse(self._waiting, SessionExpired())

    # Time.

    def _set_timer(self) -> None:
        if self._over:
            return
        when = self._next_deadline()
        if self._timer is not None:
            if self._timer.when() <= when and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._on_time)

    def _next_deadline(self) -> float:
        if self._connected:
            return min(self._heard_at + self._patience_s, self._asked_at + self._ping_s)
        if self._waiting:
            return min(self._try_at, self._waiting[0].called_at + self._patience_s)
        return self._try_at

    def _on_time(self) -> None:
        self._timer = None
        now = self._loop.time()
        if self._connected:
            if now >= self._heard_at + self._patience_s:
                self._disconnect()
            elif now >= self._asked_at + self._ping_s:
                self._ping(now)
        else:
            late = deque[Request]()
            while self._waiting and now >= self._waiting[0].called_at + self._patience_s:
                late.append(self._waiting.popleft())
            self._refuse(late, Unavailable("", "the service cannot be reached"))
            if now >= self._try_at:
                self._connect()
        self._set_timer()

    def _ping(self, now: float) -> None:
        assert self._connection is not None
        self._asked_at = now
        self._connection.requests.send(Ping(self._seen))


def _forget(requests: Sequence[Request]) -> None:
    """Nobody waits for their answers."""
    for request in requests:
        if not request.answer.cancel() and not request.answer.cancelled():
            request.answer.exception()


def _settle(request: Request, result: Result, error: CoordinationError | None) -> None:
    if request.answer.done():
        return
    if error is not None:
        request.answer.set_exception(error)
    else:
        request.answer.set_result(result)
