"""The coordination service in the broker's process: a tree in memory, and a journal on disk.

Brokers of one process can share a store, each with a session. Operations are applied in the order of the calls. All
operations that are waiting share one write and one sync of the journal. No result is returned and no watch fires before
the changes are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from kbroker.coordination.data_tree import DataTree, Undo, roll_back
from kbroker.coordination.interface import (
    ANY_VERSION,
    CoordinationError,
    Create,
    Delete,
    Node,
    NoSpace,
    Op,
    SessionExpired,
    Set,
    Unavailable,
    Watch,
    WatchEvent,
    WatchManager,
)
from kbroker.coordination.journal import Journal, JournalFailed, encode_snapshot
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.log.log_health import NO_SPACE

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle

    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.metadata")

# The interval at which the store checks that its files exist.
FILE_CHECK_INTERVAL_S = 600.0

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


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


class QueuedOperation(Generic[T_co]):
    """A call that waits for its commit, then its result or error, and the future of its caller.

    `watch_changes_end`: the end index of its changes in the watch changes of the commit.
    """

    __slots__ = ("_error", "_future", "_operation", "_result", "watch_changes_end")

    def __init__(self, operation: Callable[[PendingCommit], T_co], future: Future[T_co]) -> None:
        self._operation = operation
        self._future = future
        self._result: T_co | None = None
        self._error: CoordinationError | None = None
        self.watch_changes_end = 0

    def run(self, commit: PendingCommit) -> None:
        try:
            self._result = self._operation(commit)
        except CoordinationError as error:
            self._error = error
        self.watch_changes_end = len(commit.watch_changes)

    def complete(self, commit_error: CoordinationError | None) -> None:
        """Set the outcome, unless the caller has been cancelled."""
        if self._future.done():
            return
        if (error := commit_error or self._error) is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(cast(T_co, self._result))


class EmbeddedSession:
    """One session. It never expires by itself; `expire` is for tests and simulation."""

    def __init__(self, store: EmbeddedStore, session_id: int) -> None:
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

        return await self.submit(operation)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        def operation(commit: PendingCommit) -> list[Node | None]:
            nodes = map(self._store.tree.nodes.get, paths)
            return [None if node is None else Node(node.data, node.version, node.owner) for node in nodes]

        return await self.submit(operation)

    async def exists(self, path: str, watch: Watch | None = None) -> int | None:
        def operation(commit: PendingCommit) -> int | None:
            self._store.watch(commit, self, path, watch)
            return self._store.tree.version(path)

        return await self.submit(operation)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        def operation(commit: PendingCommit) -> list[str]:
            names = self._store.tree.children(path)
            self._store.watch(commit, self, path, watch, children=True)
            return names

        return await self.submit(operation)

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        await self.multi([Create(path, data, ephemeral)])

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        def operation(commit: PendingCommit) -> int:
            (node,) = self._store.apply(commit, [Set(path, data, version)], self._id)
            return node.version if node is not None else 0

        return await self.submit(operation)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi([Delete(path, version)])

    async def multi(self, ops: Sequence[Op]) -> None:
        await self.submit(lambda commit: self._store.apply(commit, ops, self._id))

    async def sync(self) -> None:
        """Reads always have every change."""

    def on_expired(self, callback: Callable[[], None]) -> None:
        self._on_expired.append(callback)

    async def close(self) -> None:
        if not self._is_closed:
            await self.submit(self._end)

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

    def submit(self, operation: Callable[[PendingCommit], T]) -> Future[T]:
        """Run an operation after the earlier ones, unless the session has ended by then."""

        def guarded(commit: PendingCommit) -> T:
            if self._is_closed:
                raise SessionExpired
            return operation(commit)

        return self._store.submit(guarded)


class EmbeddedStore:
    """The service. Open it once in a process, and create a session for each broker."""

    def __init__(
        self,
        environment: Environment,
        journal: Journal,
        tree: DataTree,
        on_failure: Callable[[CoordinationError], None] = lambda _: None,
        last_session: int = 0,
    ) -> None:
        """`on_failure` is called when the journal fails. All operations fail from then on."""
        self._environment = environment
        self._on_failure = on_failure
        self._journal = journal
        self.tree = tree
        self._queue: list[QueuedOperation[object]] = []
        self._draining = False
        self._failure: CoordinationError | None = None
        # Changes that are only in memory because the disk is full. The next record of the journal begins with them.
        self._unwritten: list[Op] = []
        # Whether to check that the files exist, and whether missing files were logged.
        self._file_check_due = False
        self._missing_logged = False
        self._timer: TimerHandle | None = None
        self._last_session = last_session
        self._watches: WatchManager[tuple[EmbeddedSession, Watch]] = WatchManager()

    @classmethod
    async def open(
        cls,
        environment: Environment,
        directory: str,
        on_failure: Callable[[CoordinationError], None] = lambda _: None,
        last_session: int = 0,
    ) -> EmbeddedStore:
        """Open the store in a directory, which is created if it is missing. Sessions get ids above `last_session`.

        Raises JournalCorrupted, JournalFailed, OSError.
        """
        journal = Journal(environment.disk, directory)
        tree = await environment.offload(journal.load)
        if journal.missing:
            reason = "changes after the snapshot are lost"
            log.warning("coordination file missing at startup", file=journal.missing[0], reason=reason)
            journal.missing = []
        store = cls(environment, journal, tree, on_failure, last_session)
        store._schedule_file_check()
        return store

    @property
    def is_empty(self) -> bool:
        """Whether the tree has no nodes, because the store is new or its files were removed."""
        return self.tree.is_empty

    def session(self) -> EmbeddedSession:
        self._last_session += 1
        return EmbeddedSession(self, self._last_session)

    async def close(self) -> None:
        """Close the store, after its sessions."""
        if self._timer is not None:
            self._timer.cancel()
        # The next start needs the files, which may have been removed.
        self._file_check_due = True
        await self.submit(lambda commit: None)
        await self._environment.offload(self._journal.close)
        self._failure = Unavailable("", "the store is closed")

    def submit(self, operation: Callable[[PendingCommit], T]) -> Future[T]:
        """Run an operation after the earlier ones. Its result is returned once all changes that it saw are durable.

        Futures are done in the order of the calls.
        """
        future: Future[T] = self._environment.loop.create_future()
        if self._failure is not None:
            future.set_exception(self._failure)
        else:
            self._queue.append(QueuedOperation[T](operation, future))
            self._start_draining()
        return future

    def _start_draining(self) -> None:
        if not self._draining:
            self._draining = True
            self._environment.loop.create_task(self._drain())

    def _schedule_file_check(self) -> None:
        self._timer = self._environment.loop.call_later(FILE_CHECK_INTERVAL_S, self._check_files_now)

    def _check_files_now(self) -> None:
        """Check the files now, because the process may be killed before the next change."""
        self._file_check_due = True
        self._start_draining()
        self._schedule_file_check()

    def apply(self, commit: PendingCommit, ops: Sequence[Op], session: int) -> list[Node | None]:
        """Apply all operations or none. Returns the node after each operation, None if it was deleted or checked."""
        applied = self.tree.apply(ops, session)
        commit.watch_changes.append(partial(self._notify, applied.events))
        commit.undo += applied.undo
        commit.persistent_ops += applied.persistent_ops
        return applied.nodes

    async def _drain(self) -> None:
        while self._queue or self._file_check_due:
            waiting, self._queue = self._queue, []
            commit = PendingCommit()
            for operation in waiting:
                operation.run(commit)
            commit_error = await self._persist(commit)
            await self._restore_files()
            self._report(waiting, commit, commit_error)
            if self._journal.wants_snapshot and self._failure is None:
                await self._compact()
        self._draining = False

    def _report(
        self, operations: list[QueuedOperation[object]], commit: PendingCommit, commit_error: CoordinationError | None
    ) -> None:
        """Set, fire and remove watches, and complete the futures, in the order of the operations.

        As in ZooKeeper, an event comes before the responses that have the change, and after the response of the read
        that has set the watch: kazoo drops an event for which it has no watch yet.
        """
        begin = 0
        for operation in operations:
            if commit_error is None:
                for change_watches in commit.watch_changes[begin : operation.watch_changes_end]:
                    change_watches()
            begin = operation.watch_changes_end
            operation.complete(commit_error)

    async def _persist(self, commit: PendingCommit) -> CoordinationError | None:
        if self._failure is not None:
            roll_back(commit.undo)
            return self._failure
        if not commit.persistent_ops:
            return None
        try:
            await self._environment.offload(self._journal.append, [*self._unwritten, *commit.persistent_ops])
        except OSError as error:
            is_full = error.errno in NO_SPACE
            if is_full and all(isinstance(op, Set) and op.per_session for op in commit.persistent_ops):
                self._unwritten += commit.persistent_ops
                return None
            roll_back(commit.undo)
            return NoSpace("", str(error)) if is_full else Unavailable("", str(error))
        except JournalFailed as error:
            roll_back(commit.undo)
            return self._fail(error)
        self._unwritten.clear()
        return None

    async def _restore_files(self) -> None:
        """Write the files again if they were removed; Journal.append checks that, too."""
        if self._file_check_due:
            self._file_check_due = False
            await self._environment.offload(self._journal.check_files)
        missing = self._journal.missing
        if not missing or self._failure is not None:
            return
        files, snapshot = ", ".join(missing), encode_snapshot(self.tree, self._journal.number)
        try:
            await self._environment.offload(self._journal.compact, snapshot)
        except OSError as error:
            if not self._missing_logged:
                log.error("coordination files are missing and cannot be rewritten", files=files, reason=error)
            self._missing_logged = True
        except JournalFailed as error:
            self._fail(error)
        else:
            self._unwritten.clear()
            self._missing_logged = False
            log.warning("coordination files were missing, rewritten", files=files)

    def _fail(self, error: JournalFailed) -> CoordinationError:
        self._failure = Unavailable(error.path, error.detail)
        self._on_failure(self._failure)
        return self._failure

    async def _compact(self) -> None:
        snapshot = encode_snapshot(self.tree, self._journal.number)
        try:
            await self._environment.offload(self._journal.compact, snapshot)
        except OSError as error:
            log.warning("coordination journal not compacted, it keeps growing", reason=error)
        except JournalFailed as error:
            self._fail(error)
        else:
            self._unwritten.clear()

    def watch(
        self,
        commit: PendingCommit,
        session: EmbeddedSession,
        path: str,
        callback: Watch | None,
        *,
        children: bool = False,
    ) -> None:
        if callback is not None:
            commit.watch_changes.append(partial(self._watches.add, path, (session, callback), children=children))

    def remove_watches(self, commit: PendingCommit, session: EmbeddedSession) -> None:
        """Remove the watches of a session."""
        commit.watch_changes.append(lambda: self._watches.remove(lambda watcher: watcher[0] is session))

    def _notify(self, events: list[WatchEvent]) -> None:
        for (_, callback), event in self._watches.fire(events):
            self._environment.loop.call_soon(callback, event)
