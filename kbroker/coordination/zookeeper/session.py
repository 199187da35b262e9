"""ZooKeeperSession: a session of a ZooKeeper ensemble as the coordination interface, on the event loop.

A request is sent at once, or when the session is connected again. It fails with Unavailable after `timeout_s` without
a connection, or without a response; the connection is then closed, because ZooKeeper responds in order and would not
respond to any later request either. So a call takes at most twice `timeout_s`.
"""

from asyncio import AbstractEventLoop, Future, Task, TimerHandle, gather, sleep, wait
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kazoo.client import KazooState
from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.serialization import Exists, GetACL, GetChildren, GetData, SetACL, Sync
from kazoo.protocol.states import ZnodeStat

from kbroker.config.broker.zookeeper_settings import ZooKeeperSettings
from kbroker.coordination.interface import (
    ANY_VERSION,
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
    WatchManager,
)
from kbroker.coordination.zookeeper.client import (
    Call,
    SessionClient,
    acl,
    coordination_error,
    transaction,
    transaction_results,
)
from kbroker.runtime.event_log import EventLogger

log = EventLogger("kbroker.metadata")

# Requests that have no response yet. More wait in the session: kazoo's queue blocks the event loop when it is full.
MAX_IN_FLIGHT = 64
# kazoo drops a connection on which nothing is received for this part of the session timeout, unless it sends requests.
READ_TIMEOUT = 2 / 3
# `close` waits at most this time, in seconds, for ZooKeeper's response.
CLOSE_S = 3.0
# The interval of attempts to open another session while this one is not connected, as a part of the session timeout.
PROBE_INTERVAL = 1 / 3


class ZooKeeperSession:
    """Implements Coordination. `chroot` is the path of the node that stands for the root of the tree."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        settings: ZooKeeperSettings,
        on_server_time: Callable[[int], None] = lambda time_ms: None,
    ) -> None:
        """Create a session that is not connected; `start` connects it. Raises OSError for TLS files."""
        self.chroot = ""
        self.connected: Future[None] = loop.create_future()
        self._loop = loop
        self._settings = settings
        self._timeout_s = settings.session_timeout_s * READ_TIMEOUT
        self._acl = acl(settings.set_acl)
        self._client = SessionClient(loop, settings, self._on_state, self._on_event)
        self._on_server_time = on_server_time
        self._session_id = 0
        self._is_connected = False
        self._is_over = False
        self._on_expired: list[Callable[[], None]] = []
        self._watches: WatchManager[Watch] = WatchManager()
        # Both in the order of their deadlines.
        self._unsent: deque[Call] = deque()
        self._in_flight: dict[Call, None] = {}
        self._timer: TimerHandle | None = None
        # Runs while the session is not connected.
        self._refusal_check: Task[None] | None = None

    def start(self) -> None:
        """Connect in the background: `connected` is done when the session exists."""
        self._client.start_async()

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    @property
    def timeout_ms(self) -> int:
        return self._client.timeout_ms

    @property
    def last_warning(self) -> str:
        """The reason why the last attempt to connect has failed; empty if none has failed."""
        return self._client.last_warning.text

    # Coordination.

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        return _node(await self._start(GetData(self.chroot + path, watch and self._client.watch), path, watch))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        futures = [self._start(GetData(self.chroot + path, None), path) for path in paths]
        nodes: list[Node | None] = []
        try:
            for future in futures:
                try:
                    nodes.append(_node(await future))
                except NoNode:
                    nodes.append(None)
        finally:
            for future in futures[len(nodes) :]:
                if not future.cancel() and not future.cancelled():
                    future.exception()  # retrieved, because nothing awaits it
        return nodes

    async def exists(self, path: str, watch: Watch | None = None) -> int | None:
        request = Exists(self.chroot + path, watch and self._client.watch)
        stat: ZnodeStat | None = await self._start(request, path, watch)
        return None if stat is None else int(stat.version)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        request = GetChildren(self.chroot + path, watch and self._client.watch)
        return sorted(await self._start(request, path, watch))

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        await self._write([Create(path, data, ephemeral)])

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        (stat,) = await self._write([Set(path, data, version)])
        return int(stat.version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._write([Delete(path, version)])

    async def multi(self, ops: Sequence[Op]) -> None:
        if ops:
            await self._write(ops)

    async def protect(self, path: str) -> None:
        """Give the ACL of new nodes to a node and those below it that everyone may use. Raises CoordinationError."""
        with suppress(NoNode):  # another broker has deleted it meanwhile
            acl, stat = await self._start(GetACL(self.chroot + path), path)
            if any(entry.id.scheme == "world" for entry in acl):
                await self._start(SetACL(self.chroot + path, self._acl, ANY_VERSION), path)
            names = await self.children(path) if stat.numChildren else []
            await gather(*(self.protect(f"{path}/{name}") for name in names))

    async def sync(self) -> None:
        await self._start(Sync(self.chroot or "/"), "")

    def on_expired(self, callback: Callable[[], None]) -> None:
        self._on_expired.append(callback)

    async def close(self) -> None:
        """Close the session. If ZooKeeper cannot be reached, it expires later."""
        if self._is_over:
            return
        self._end()
        ended = self._loop.create_future()
        timer = self._loop.call_later(min(self._timeout_s, CLOSE_S), partial(_complete, ended))
        self._client.end(partial(_complete, ended))
        await ended
        timer.cancel()

    # Requests.

    async def _write(self, ops: Sequence[Op]) -> Sequence[Any]:
        request = transaction(ops, self.chroot, self._acl)
        results = transaction_results(await self._start(request, ""), ops)
        for result in results:
            if isinstance(result, ZnodeStat):
                self._on_server_time(result.mtime)
        return results

    def _start(self, request: object, path: str, watch: Watch | None = None) -> Future[Any]:
        """Return the future of kazoo's result."""
        if self._is_over:
            raise SessionExpired
        future: Future[Any] = self._loop.create_future()
        deadline = self._loop.time() + self._timeout_s
        self._unsent.append(Call(request, path, future, deadline, watch, self._client.calls, self._on_outcome))
        self._send_all()
        if self._timer is None:
            self._set_timer()
        return future

    def _send_all(self) -> None:
        """Send the requests that wait, as long as the session is connected."""
        while self._unsent and self._is_connected and len(self._in_flight) < MAX_IN_FLIGHT:
            call = self._unsent.popleft()
            if not call.future.done():
                call.deadline = self._loop.time() + self._timeout_s
                self._in_flight[call] = None
                self._client.send(call.request, call)

    def _on_outcome(self, call: Call, result: object, error: Exception | None) -> None:
        self._in_flight.pop(call, None)
        if isinstance(error, ConnectionLoss):
            # The change of the state is reported after the outcomes of all requests.
            self._is_connected = False
        if error is not None:
            call.fail(coordination_error(error, call.path))
        elif not call.future.done():
            # kazoo sets the watch of `exists` if there is no node, too; it has no error then.
            if call.watch is not None:
                self._watches.add(call.path, call.watch, children=isinstance(call.request, GetChildren))
            call.future.set_result(result)
        if self._unsent:
            self._send_all()

    # What kazoo reports.

    def _on_event(self, kind: str, path: str) -> None:
        event = WatchEvent(kind, path.removeprefix(self.chroot))
        for watch, fired in self._watches.fire([event]):
            self._loop.call_soon(watch, fired)

    def _on_state(self, state: str, session_id: int) -> None:
        if self._is_over:
            return
        if state == KazooState.CONNECTED:
            self._on_connected(session_id)
        elif state == KazooState.SUSPENDED:
            self._is_connected = False
            log.warning("the connection to ZooKeeper is lost", reason=self.last_warning)
            if self._refusal_check is None and self.connected.done():
                self._refusal_check = self._loop.create_task(self._end_if_refused())
        else:
            log.warning("the ZooKeeper session has ended", session=f"0x{self._session_id:x}")
            self._expire()

    def _expire(self) -> None:
        self._end()
        self._client.end(lambda: None)
        for callback in self._on_expired:
            callback()

    async def _end_if_refused(self) -> None:
        """End the session if it stays unconnected for its timeout while the servers accept other sessions."""
        timeout_s = self._client.timeout_ms / 1000
        served_s: float | None = None
        while not self._is_connected and not self._is_over:
            if not await self._is_served():
                served_s = None
            elif served_s is None:
                served_s = self._loop.time()
            elif self._loop.time() - served_s > timeout_s and not self._is_connected and not self._is_over:
                log.error(
                    "ZooKeeper refuses this session and accepts others: its data may be older than what it has seen",
                    session=f"0x{self._session_id:x}", reason=self.last_warning,
                )  # fmt: skip
                self._refusal_check = None
                self._expire()
                return
            await sleep(timeout_s * PROBE_INTERVAL)
        self._refusal_check = None

    async def _is_served(self) -> bool:
        """Return whether the servers accept a new session."""
        probe = ZooKeeperSession(self._loop, self._settings)
        probe.start()
        try:
            done, _ = await wait([probe.connected], timeout=self._timeout_s)
        finally:
            await probe.close()
        return bool(done)

    def _on_connected(self, session_id: int) -> None:
        self._is_connected = True
        self._timeout_s = self._client.timeout_ms / 1000 * READ_TIMEOUT
        if not self.connected.done():
            self._session_id = session_id
            self.connected.set_result(None)
        else:
            log.info("connected to ZooKeeper again", session=f"0x{session_id:x}")
        # The server has forgotten the watches with the connection.
        for watch, event in self._watches.lose_all():
            self._loop.call_soon(watch, event)
        self._send_all()

    def _end(self) -> None:
        self._is_over = True
        self._is_connected = False
        if self._timer is not None:
            self._timer.cancel()
        if self._refusal_check is not None:
            self._refusal_check.cancel()
            self._refusal_check = None
        for call in (*self._in_flight, *self._unsent):
            call.fail(SessionExpired())
        self._unsent.clear()
        self._in_flight.clear()

    # Deadlines.

    def _set_timer(self) -> None:
        if not self._is_over:
            heads = [next(iter(calls)).deadline for calls in (self._in_flight, self._unsent) if calls]
            if heads:
                self._timer = self._loop.call_at(min(heads), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._unsent and self._unsent[0].deadline <= now:
            self._unsent.popleft().fail(Unavailable("", "ZooKeeper cannot be reached"))
        late = [call for call in self._in_flight if call.deadline <= now]
        for call in late:
            call.fail(Unavailable(call.path, "ZooKeeper does not respond"))
        if late:
            self._client.disconnect()
            # Until kazoo has found the connection closed, the requests of later calls would be lost with it.
            self._is_connected = False
        self._set_timer()


def _node(result: Any) -> Node:
    data, stat = result
    return Node(data or b"", stat.version, stat.ephemeralOwner)


def _complete(future: Future[None]) -> None:
    if not future.done():
        future.set_result(None)
