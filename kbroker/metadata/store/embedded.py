"""Coordination inside one process: a tree in memory, a journal on disk. The default.

Several brokers of one process may share one store, each with its own session. Operations run in the order
in which they were called; those that wait together share one write and one sync. A change is seen by
nobody, its author and the watchers included, before it is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.metadata.store.coordination import (
    ANY_VERSION,
    CoordinationError,
    Create,
    Delete,
    Node,
    NoRoom,
    Op,
    SessionExpired,
    Set,
    Unavailable,
    Watch,
    WatchEvent,
)
from kbroker.metadata.store.data_tree import DataTree, Undo, roll_back
from kbroker.metadata.store.journal import Journal, JournalFailed, encode_snapshot
from kbroker.metadata.store.watch_manager import WatchManager
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.shortage import NO_ROOM

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle

    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.metadata")

# How often the store checks that its files exist, in seconds.
LOOK_S = 600.0

Work = Callable[["PendingCommit"], Any]


class PendingCommit:
    """Operations that become durable together."""

    __slots__ = ("events", "lasting", "undo")

    def __init__(self) -> None:
        self.events: list[WatchEvent] = []
        self.undo: list[Undo] = []
        self.lasting: list[Op] = []


class EmbeddedStore:
    """The service. `open` it once in the process, then take one `session` for each broker."""

    def __init__(
        self,
        environment: Environment,
        journal: Journal,
        tree: DataTree,
        lost: Callable[[CoordinationError], None] = lambda _: None,
    ) -> None:
        """`lost` is told when the journal's disk has failed: nothing is answered from then on."""
        self._environment = environment
        self._lost = lost
        self._journal = journal
        self._tree = tree
        self._queue: list[tuple[Work, Future[Any]]] = []
        self._draining = False
        self._failure: CoordinationError | None = None
        # Changes that are kept in memory because the disk is full; the next record of the journal begins with them.
        self._unwritten: list[Op] = []
        # Whether to check that the files exist; whether it has been logged that they are missing.
        self._look_due = False
        self._complained = False
        self._timer: TimerHandle | None = None
        self._last_session = 0
        self._watches: WatchManager[tuple[EmbeddedSession, Watch]] = WatchManager()

    @classmethod
    async def open(
        cls, environment: Environment, directory: str, lost: Callable[[CoordinationError], None] = lambda _: None
    ) -> EmbeddedStore:
        """Reads the files in `directory`, made if absent. Raises journal.Damaged, OSError."""
        journal = Journal(environment.disk, directory)
        tree = await environment.offload(journal.load)
        if journal.missing:
            reason = "what was changed after the snapshot was written is lost"
            log.warning("coordination file missing at the start", file=journal.missing[0], reason=reason)
            journal.missing = []
        store = cls(environment, journal, tree, lost)
        store._look_later()
        return store

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written, or all of it is gone."""
        return self._tree.is_empty

    def session(self) -> EmbeddedSession:
        self._last_session += 1
        return EmbeddedSession(self, self._last_session)

    async def close(self) -> None:
        """After every session is closed."""
        if self._timer is not None:
            self._timer.cancel()
        # The next start needs what somebody may have removed.
        self._look_due = True
        await self.run(lambda batch: None)
        await self._environment.offload(self._journal.close)
        self._failure = Unavailable("", "the store is closed")

    async def run(self, work: Work) -> Any:
        """Does `work` on the tree in its turn; gives its result once everything that it could see is
        durable.
        """
        if self._failure is not None:
            raise self._failure
        turn: Future[Any] = self._environment.loop.create_future()
        self._queue.append((work, turn))
        self._begin()
        return await turn

    def _begin(self) -> None:
        if not self._draining:
            self._draining = True
            self._environment.loop.create_task(self._drain())

    def _look_later(self) -> None:
        self._timer = self._environment.loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        """Check the files although nothing has changed: the process may be killed before the next change."""
        self._look_due = True
        self._begin()
        self._look_later()

    def change(self, batch: PendingCommit, ops: Sequence[Op], session: int) -> None:
        applied = self._tree.apply(ops, session)
        batch.events += applied.events
        batch.undo += applied.undo
        batch.lasting += applied.lasting

    @property
    def tree(self) -> DataTree:
        return self._tree

    async def _drain(self) -> None:
        while self._queue or self._look_due:
            waiting, self._queue = self._queue, []
            batch = PendingCommit()
            outcomes = [(turn, *self._attempt(work, batch)) for work, turn in waiting]
            fault = await self._persist(batch)
            await self._complete()
            for turn, result, error in outcomes:
                if turn.done():
                    continue
                if (refusal := fault or error) is not None:
                    turn.set_exception(refusal)
                else:
                    turn.set_result(result)
            if not fault:
                self._notify(batch.events)
            if self._journal.wants_snapshot and self._failure is None:
                await self._compact()
        self._draining = False

    def _attempt(self, work: Work, batch: PendingCommit) -> tuple[Any, CoordinationError | None]:
        try:
            return work(batch), None
        except CoordinationError as error:
            return None, error

    async def _persist(self, batch: PendingCommit) -> CoordinationError | None:
        if self._failure is not None:
            roll_back(batch.undo)
            return self._failure
        if not batch.lasting:
            return None
        try:
            await self._environment.offload(self._journal.append, [*self._unwritten, *batch.lasting])
        except OSError as error:
            is_full = error.errno in NO_ROOM
            if is_full and all(isinstance(op, Set) and op.per_session for op in batch.lasting):
                self._unwritten += batch.lasting
                return None
            roll_back(batch.undo)
            return NoRoom("", str(error)) if is_full else Unavailable("", str(error))
        except JournalFailed as error:
            roll_back(batch.undo)
            return self._fail(error)
        self._unwritten.clear()
        return None

    async def _complete(self) -> None:
        """Rewrite the files if somebody has removed them. `Journal.append` has checked that already."""
        if self._look_due:
            self._look_due = False
            await self._environment.offload(self._journal.look)
        missing = self._journal.missing
        if not missing or self._failure is not None:
            return
        files, snapshot = ", ".join(missing), encode_snapshot(self._tree, self._journal.number)
        try:
            await self._environment.offload(self._journal.compact, snapshot)
        except OSError as error:
            if not self._complained:
                log.error("coordination files are missing and cannot be rewritten", files=files, reason=error)
            self._complained = True
        except JournalFailed as error:
            self._fail(error)
        else:
            self._unwritten.clear()
            self._complained = False
            log.warning("coordination files were missing, rewritten", files=files)

    def _fail(self, error: JournalFailed) -> CoordinationError:
        self._failure = Unavailable(error.path, error.detail)
        self._lost(self._failure)
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

    def watch(self, session: EmbeddedSession, path: str, callback: Watch | None, *, children: bool = False) -> None:
        if callback is not None:
            self._watches.add(path, (session, callback), children=children)

    def forget_watches(self, session: EmbeddedSession) -> None:
        self._watches.forget(lambda watcher: watcher[0] is session)

    def _notify(self, events: list[WatchEvent]) -> None:
        for (_, callback), event in self._watches.fire(events):
            self._environment.loop.call_soon(callback, event)


class EmbeddedSession:
    """One session: the Coordination interface. It does not expire by itself; `expire` is for tests and
    simulation.
    """

    def __init__(self, store: EmbeddedStore, session_id: int) -> None:
        self._store = store
        self._id = session_id
        self._over = False
        self._expired: list[Callable[[], None]] = []

    @property
    def session_id(self) -> int:
        return self._id

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        def work(batch: PendingCommit) -> Node:
            node = self._store.tree.get(path)
            self._store.watch(self, path, watch)
            return node

        return await self._run(work)  # type: ignore[no-any-return]

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        def work(batch: PendingCommit) -> list[Node | None]:
            nodes = map(self._store.tree.nodes.get, paths)
            return [None if node is None else Node(node.data, node.version) for node in nodes]

        return await self._run(work)  # type: ignore[no-any-return]

    async def exists(self, path: str, watch: Watch | None = None) -> int | None:
        def work(batch: PendingCommit) -> int | None:
            self._store.watch(self, path, watch)
            return self._store.tree.version(path)

        return await self._run(work)  # type: ignore[no-any-return]

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        def work(batch: PendingCommit) -> list[str]:
            names = self._store.tree.children(path)
            self._store.watch(self, path, watch, children=True)
            return names

        return await self._run(work)  # type: ignore[no-any-return]

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        await self.multi([Create(path, data, ephemeral)])

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        def work(batch: PendingCommit) -> int:
            self._store.change(batch, [Set(path, data, version)], self._id)
            return self._store.tree.get(path).version

        return await self._run(work)  # type: ignore[no-any-return]

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi([Delete(path, version)])

    async def multi(self, ops: Sequence[Op]) -> None:
        await self._run(lambda batch: self._store.change(batch, ops, self._id))

    def on_expired(self, callback: Callable[[], None]) -> None:
        self._expired.append(callback)

    async def close(self) -> None:
        if not self._over:
            await self._run(self._end)

    async def expire(self) -> None:
        """What ZooKeeper does to a session that it has not heard of for too long."""
        await self.close()
        for callback in self._expired:
            callback()

    def _end(self, batch: PendingCommit) -> None:
        self._over = True
        self._store.forget_watches(self)
        owned = self._store.tree.ephemerals(self._id)
        self._store.change(batch, [Delete(path) for path in owned], self._id)

    async def _run(self, work: Work) -> Any:
        def guarded(batch: PendingCommit) -> Any:
            if self._over:
                raise SessionExpired
            return work(batch)

        return await self._store.run(guarded)
