"""The coordination service in the broker's process: a tree in memory, and a journal on disk.

Brokers of one process can share a store, each with a session. Operations are applied in the order of the calls. All
operations that are waiting share one write and one sync of the journal. No result is returned and no watch fires before
the changes are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

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


@dataclass(slots=True, eq=False)
class PendingCommit:
    """Operations that become durable together: functions that undo them, and their operations for the journal.

    `steps`: in the order of the operations, what follows once they are durable: watches are set and fired, and callers
    get the results. So an operation does not fire a watch that a later one sets. Each step is called with the error of
    the commit.
    """

    undo: list[Undo] = field(default_factory=list)
    persistent_ops: list[Op] = field(default_factory=list)
    steps: list[Callable[[CoordinationError | None], None]] = field(default_factory=list)

    def change_watches(self, change: Callable[[], object]) -> None:
        """Call `change` once the commit is durable."""

        def step(error: CoordinationError | None) -> None:
            if error is None:
                change()

        self.steps.append(step)


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
        return await self._read(self._store.tree.get, path, watch)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        def operation(commit: PendingCommit) -> list[Node | None]:
            nodes = map(self._store.tree.nodes.get, paths)
            return [None if node is None else Node(node.data, node.version, node.owner) for node in nodes]

        return await self.submit(operation)

    async def exists(self, path: str, watch: Watch | None = None) -> int | None:
        return await self._read(self._store.tree.version, path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        return await self._read(self._store.tree.children, path, watch, children=True)

    def _read(self, read: Callable[[str], T], path: str, watch: Watch | None, *, children: bool = False) -> Future[T]:
        """Read a node. The watch is not set if that raises."""

        def operation(commit: PendingCommit) -> T:
            result = read(path)
            self._store.watch(commit, self, path, watch, children=children)
            return result

        return self.submit(operation)

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
        self._queue: list[Callable[[PendingCommit], None]] = []
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

        def run(commit: PendingCommit) -> None:
            outcome: T | CoordinationError
            try:
                outcome = operation(commit)
            except CoordinationError as error:
                outcome = error
            commit.steps.append(partial(_complete, future, outcome))

        if self._failure is not None:
            future.set_exception(self._failure)
        else:
            self._queue.append(run)
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
        commit.change_watches(partial(self._notify, applied.events))
        commit.undo += applied.undo
        commit.persistent_ops += applied.persistent_ops
        return applied.nodes

    async def _drain(self) -> None:
        while self._queue or self._file_check_due:
            waiting, self._queue = self._queue, []
            commit = PendingCommit()
            for run in waiting:
                run(commit)
            commit_error = await self._persist(commit)
            await self._restore_files()
            # As in ZooKeeper, an event comes before the responses that have the change, and after the response of the
            # read that has set the watch: kazoo drops an event for which it has no watch yet.
            for step in commit.steps:
                step(commit_error)
            if self._journal.wants_snapshot and self._failure is None:
                error = await self._write_snapshot()
                if error is not None:
                    log.warning("coordination journal not compacted, it keeps growing", reason=error)
        self._draining = False

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
        files = ", ".join(missing)
        error = await self._write_snapshot()
        if error is not None:
            if not self._missing_logged:
                log.error("coordination files are missing and cannot be rewritten", files=files, reason=error)
            self._missing_logged = True
        elif self._failure is None:
            self._missing_logged = False
            log.warning("coordination files were missing, rewritten", files=files)

    def _fail(self, error: JournalFailed) -> CoordinationError:
        self._failure = Unavailable(error.path, error.detail)
        self._on_failure(self._failure)
        return self._failure

    async def _write_snapshot(self) -> OSError | None:
        """Write the tree as a snapshot, which empties the journal. Returns the error if nothing was written."""
        snapshot = encode_snapshot(self.tree, self._journal.number)
        try:
            await self._environment.offload(self._journal.compact, snapshot)
        except OSError as error:
            return error
        except JournalFailed as error:
            self._fail(error)
        else:
            self._unwritten.clear()
        return None

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
            commit.change_watches(partial(self._watches.add, path, (session, callback), children=children))

    def remove_watches(self, commit: PendingCommit, session: EmbeddedSession) -> None:
        """Remove the watches of a session."""
        commit.change_watches(lambda: self._watches.remove(lambda watcher: watcher[0] is session))

    def _notify(self, events: list[WatchEvent]) -> None:
        for (_, callback), event in self._watches.fire(events):
            self._environment.loop.call_soon(callback, event)


def _complete(future: Future[T], outcome: T | CoordinationError, commit_error: CoordinationError | None) -> None:
    """Set the outcome of an operation, or the error of its commit, unless the caller has been cancelled."""
    outcome = commit_error or outcome
    if future.done():
        return
    if isinstance(outcome, CoordinationError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
