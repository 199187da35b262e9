"""ZooKeeperServer: listens, and accepts connections."""

from __future__ import annotations

import asyncio
import socket
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
        self._listener: asyncio.AbstractServer | None = None

    async def start(self, port: int = 0, listener: socket.socket | None = None) -> int:
        """Listen on loopback, or on a socket that listens already, and return the port. Raises OSError."""
        if listener is None:
            self._listener = await self._loop.create_server(self._new_connection, "127.0.0.1", port)
        else:
            self._listener = await self._loop.create_server(self._new_connection, sock=listener)
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        """Close the connections, before the store is closed."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in list(self._connections):
            connection.close()
        self._sessions.stop()

    def _new_connection(self) -> ZooKeeperConnection:
        connection = ZooKeeperConnection(self._store, self._sessions, self._digest, self._connections)
        if len(self._connections) >= MAX_CONNECTIONS:
            log.warning("too many connections in ZooKeeper's protocol", limit=MAX_CONNECTIONS)
            connection.is_refused = True
        return connection
