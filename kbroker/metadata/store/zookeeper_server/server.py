"""ZooKeeperServer: listens, and accepts connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from kbroker.metadata.store.zookeeper_server.sessions import SessionTable
from kbroker.metadata.store.zookeeper_server.zookeeper_connection import ZooKeeperConnection
from kbroker.runtime.event_log import EventLogger

if TYPE_CHECKING:
    from kbroker.metadata.store.embedded import EmbeddedStore
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.metadata")

MAX_CONNECTIONS = 1024


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
        connection = ZooKeeperConnection(self._store, self._sessions, self._digest, self._connections, listener)
        if len(self._connections) >= MAX_CONNECTIONS:
            log.warning("too many connections in ZooKeeper's protocol", limit=MAX_CONNECTIONS)
            connection.is_refused = True
        return connection
