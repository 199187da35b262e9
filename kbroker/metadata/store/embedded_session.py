"""A session of the embedded coordination service, and the commit that its calls add operations to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kbroker.metadata.store.coordination import (
    ANY_VERSION,
    Create,
    Delete,
    Node,
    Op,
    SessionExpired,
    Set,
    Watch,
)
from kbroker.metadata.store.data_tree import DataTree, Undo

if TYPE_CHECKING:
    from asyncio import Future


# A call of a session, applied to the tree as part of a commit.
StoreOperation = Callable[["PendingCommit"], Any]


class PendingCommit:
    """Operations that become durable together: functions that undo them, and their operations for the journal.

    `watch_changes`: sets and fires watches, in the order of the operations, once they are durable. So an operation does
    not fire a watch that a later one sets.
    """

    __slots__ = ("persistent_ops", "undo", "watch_changes")

    def __init__(self) -> None:
        self.undo: list[Undo] = []
        self.persistent_ops: list[Op] = []
        self.watch_changes: list[Callable[[], None]] = []


class SessionStore(Protocol):
    """The EmbeddedStore of a session."""

    @property
    def tree(self) -> DataTree: ...

    def apply(self, commit: PendingCommit, ops: Sequence[Op], session: int) -> list[Node | None]: ...

    def submit(self, operation: StoreOperation) -> Future[Any]: ...

    def watch(
        self,
        commit: PendingCommit,
        session: EmbeddedSession,
        path: str,
        callback: Watch | None,
        *,
        children: bool = False,
    ) -> None: ...

    def remove_watches(self, commit: PendingCommit, session: EmbeddedSession) -> None: ...


class EmbeddedSession:
    """One session. It never expires by itself; `expire` is for tests and simulation."""

    def __init__(self, store: SessionStore, session_id: int) -> None:
        self._store = store
        self._id = session_id
        self._is_closed = False
        self._on_expired: list[Callable[[], None]] = []

    @property
    def session_id(self) -> int:
        return self._id

    @property
    def is_connected(self) -> bool:
        return True

    @property
    def timeout_ms(self) -> int:
        return 0

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        def operation(commit: PendingCommit) -> Node:
            node = self._store.tree.get(path)
            self._store.watch(commit, self, path, watch)
            return node

        return await self._run(operation)  # type: ignore[no-any-return]

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        def operation(commit: PendingCommit) -> list[Node | None]:
            nodes = map(self._store.tree.nodes.get, paths)
            return [None if node is None else Node(node.data, node.version, node.owner) for node in nodes]

        return await self._run(operation)  # type: ignore[no-any-return]

    async def exists(self, path: str, watch: Watch | None = None) -> int | None:
        def operation(commit: PendingCommit) -> int | None:
            self._store.watch(commit, self, path, watch)
            return self._store.tree.version(path)

        return await self._run(operation)  # type: ignore[no-any-return]

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        def operation(commit: PendingCommit) -> list[str]:
            names = self._store.tree.children(path)
            self._store.watch(commit, self, path, watch, children=True)
            return names

        return await self._run(operation)  # type: ignore[no-any-return]

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        await self.multi([Create(path, data, ephemeral)])

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        def operation(commit: PendingCommit) -> int:
            (node,) = self._store.apply(commit, [Set(path, data, version)], self._id)
            return node.version if node is not None else 0

        return await self._run(operation)  # type: ignore[no-any-return]

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi([Delete(path, version)])

    async def multi(self, ops: Sequence[Op]) -> None:
        await self._run(lambda commit: self._store.apply(commit, ops, self._id))

    async def sync(self) -> None:
        """Reads always have every change."""

    def on_expired(self, callback: Callable[[], None]) -> None:
        self._on_expired.append(callback)

    async def close(self) -> None:
        if not self._is_closed:
            await self._run(self._end)

    async def expire(self) -> None:
        """Expire the session, as ZooKeeper does after its timeout without a heartbeat."""
        await self.close()
        for callback in self._on_expired:
            callback()

    def _end(self, commit: PendingCommit) -> None:
        self._is_closed = True
        self._store.remove_watches(commit, self)
        owned = self._store.tree.ephemerals(self._id)
        self._store.apply(commit, [Delete(path) for path in owned], self._id)

    async def _run(self, operation: StoreOperation) -> Any:
        return await self.submit(operation)

    def submit(self, operation: StoreOperation) -> Future[Any]:
        """Run an operation after the earlier ones, unless the session has ended by then."""

        def guarded(commit: PendingCommit) -> Any:
            if self._is_closed:
                raise SessionExpired
            return operation(commit)

        return self._store.submit(guarded)
