"""The coordination service in the broker's process: a tree in memory, and a journal on disk.

Brokers of one process can share a store, each with a session. Operations are applied in the order of the calls. All
operations that are waiting share one write and one sync of the journal. No result is returned and no watch fires before
the changes are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.metadata.store.coordination import (
    CoordinationError,
    Node,
    NoSpace,
    Op,
    Set,
    Unavailable,
    Watch,
    WatchEvent,
)
from kbroker.metadata.store.data_tree import DataTree, roll_back
from kbroker.metadata.store.embedded_session import EmbeddedSession, PendingCommit, StoreOperation
from kbroker.metadata.store.journal import Journal, JournalFailed, encode_snapshot
from kbroker.metadata.store.watch_manager import WatchManager
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.log.log_health import NO_SPACE

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle

    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.metadata")

# The interval at which the store checks that its files exist.
FILE_CHECK_INTERVAL_S = 600.0


class OperationOutcome(NamedTuple):
    """The result or the error of an operation, and the end index of its changes in the watch changes of the commit."""

    future: Future[Any]
    result: Any
    error: CoordinationError | None
    watch_changes_end: int


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
        self._tree = tree
        self._queue: list[tuple[StoreOperation, Future[Any]]] = []
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
        return self._tree.is_empty

    def session(self) -> EmbeddedSession:
        self._last_session += 1
        return EmbeddedSession(self, self._last_session)

    async def close(self) -> None:
        """Close the store, after its sessions."""
        if self._timer is not None:
            self._timer.cancel()
        # The next start needs the files, which may have been removed.
        self._file_check_due = True
        await self.run(lambda commit: None)
        await self._environment.offload(self._journal.close)
        self._failure = Unavailable("", "the store is closed")

    async def run(self, operation: StoreOperation) -> Any:
        """Run an operation after the earlier ones. Returns its result once all changes that it saw are durable."""
        return await self.submit(operation)

    def submit(self, operation: StoreOperation) -> Future[Any]:
        """Run an operation after the earlier ones. Futures are done in the order of the calls."""
        future: Future[Any] = self._environment.loop.create_future()
        if self._failure is not None:
            future.set_exception(self._failure)
        else:
            self._queue.append((operation, future))
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
        applied = self._tree.apply(ops, session)
        commit.watch_changes.append(partial(self._notify, applied.events))
        commit.undo += applied.undo
        commit.persistent_ops += applied.persistent_ops
        return applied.nodes

    @property
    def tree(self) -> DataTree:
        return self._tree

    async def _drain(self) -> None:
        while self._queue or self._file_check_due:
            waiting, self._queue = self._queue, []
            commit = PendingCommit()
            outcomes = [
                OperationOutcome(future, *self._attempt(operation, commit), len(commit.watch_changes))
                for operation, future in waiting
            ]
            commit_error = await self._persist(commit)
            await self._restore_files()
            self._report(outcomes, commit, commit_error)
            if self._journal.wants_snapshot and self._failure is None:
                await self._compact()
        self._draining = False

    def _report(
        self, outcomes: list[OperationOutcome], commit: PendingCommit, commit_error: CoordinationError | None
    ) -> None:
        """Set, fire and remove watches, and complete the futures, in the order of the operations.

        As in ZooKeeper, an event comes before the responses that have the change, and after the response of the read
        that has set the watch: kazoo drops an event for which it has no watch yet.
        """
        begin = 0
        for outcome in outcomes:
            if commit_error is None:
                for change_watches in commit.watch_changes[begin : outcome.watch_changes_end]:
                    change_watches()
            begin = outcome.watch_changes_end
            if outcome.future.done():
                continue
            if (error := commit_error or outcome.error) is not None:
                outcome.future.set_exception(error)
            else:
                outcome.future.set_result(outcome.result)

    def _attempt(self, operation: StoreOperation, commit: PendingCommit) -> tuple[Any, CoordinationError | None]:
        try:
            return operation(commit), None
        except CoordinationError as error:
            return None, error

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
        files, snapshot = ", ".join(missing), encode_snapshot(self._tree, self._journal.number)
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
        snapshot = encode_snapshot(self._tree, self._journal.number)
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
