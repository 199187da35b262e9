"""Fetch on the broker's side: sessions, reads, waiting.

A request is served from the `ready` partitions of its session. When they hold less than it asks for, it waits; each
partition whose high watermark moves tells the sessions that watch it, and the answer is made in the next turn of
the loop, so that appends of one turn share one answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.model import Buffer, KafkaError
from kbroker.state.fetch_session import FINAL_EPOCH, INITIAL_EPOCH, FetchPartition, FetchSession, FetchSessionCache
from kbroker.state.purgatory import Operation, Purgatory
from protocol.errors import ErrorCode
from protocol.fetch_wire import FetchRequest, FetchResult

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.replica.manager import ReplicaManager
    from kbroker.replica.partition import Partition
    from kbroker.world import World

# One answer holds at most this many bytes of records, however much the client would take: longer ones would hold
# up everybody else on the loop, and the client asks again at once. The first batch is given whole all the same.
MAX_ANSWER_BYTES = 4 * 1024 * 1024
# Answers that clients are slow to read may hold this much in all; what is given shrinks on the way there.
MAX_UNSENT_BYTES = 128 * 1024 * 1024
READ_COMMITTED = 1

Results = list[tuple[FetchPartition, FetchResult]]
# (error code, session id, results)
Answer = Callable[[int, int, Results], None]


class DelayedFetch(Operation):
    """A fetch that waits for min bytes or its time."""

    __slots__ = ("_answer", "_fetching", "_gained", "_request", "_scheduled", "_session")

    def __init__(
        self, fetching: Fetching, session: FetchSession, request: FetchRequest, have: int, deadline_ms: int, answer: Answer
    ) -> None:
        super().__init__(deadline_ms)
        self._fetching = fetching
        self._session = session
        self._request = request
        self._gained = have
        self._answer = answer
        self._scheduled = False

    def gained(self, size: int) -> None:
        """A partition grew by `size` bytes; 0 says that it changed in a way that must be answered."""
        self._gained += size
        if not self._scheduled and (size == 0 or self._gained >= self._request.min_bytes):
            self._scheduled = True
            self._fetching.soon(self._complete)

    def _complete(self) -> None:
        if self.finish():
            self._fetching.purgatory.completed()
            self._reply()

    def expire(self) -> None:
        if self.finish():
            self._reply()

    def _reply(self) -> None:
        if self._session.waiter is self:
            self._session.waiter = None
        self._fetching.finish(self._session, self._request, self._answer)


class Fetching:
    """All fetch sessions of a broker. `unsent_bytes` is kept by the network room."""

    def __init__(self, world: World, replicas: ReplicaManager, purgatory: Purgatory, slots: int) -> None:
        self.purgatory = purgatory
        self.unsent_bytes = 0
        self.sessions = FetchSessionCache(slots, world.random)
        self._world = world
        self._replicas = replicas
        self._cold_reads: set[Task[None]] = set()

    def _start_cold(
        self, session: FetchSession, request: FetchRequest, answer: Answer, cold: tuple[FetchPartition, int]
    ) -> None:
        task = self._world.loop.create_task(self._read_cold(session, request, answer, cold))
        self._cold_reads.add(task)
        task.add_done_callback(self._cold_reads.discard)

    def soon(self, callback: Callable[[], None]) -> None:
        self._world.loop.call_soon(callback)

    def fetch(self, request: FetchRequest, by_id: bool, answer: Answer) -> None:
        """Serve a request; `answer` is called once, now or when there is enough to say."""
        now_ms = self._world.clock.mono_ms()
        try:
            session = self._session(request, by_id, now_ms)
        except KafkaError as error:
            answer(error.code, 0, [])
            return
        results, size, urgent, cold = self._read(session, request)
        if cold is not None and not size:
            self._start_cold(session, request, answer, cold)
            return
        if urgent or size >= request.min_bytes or request.max_wait_ms <= 0 or not session.partitions:
            self._give(session, results, answer)
            return
        delayed = DelayedFetch(self, session, request, size, now_ms + request.max_wait_ms, answer)
        session.waiter = delayed
        self._replicas.watch(delayed)

    def finish(self, session: FetchSession, request: FetchRequest, answer: Answer) -> None:
        """The waiting is over: read again and answer, with or without enough."""
        results, size, _, cold = self._read(session, request)
        if cold is not None and not size:
            self._start_cold(session, request, answer, cold)
        else:
            self._give(session, results, answer)

    # Sessions.

    def _session(self, request: FetchRequest, by_id: bool, now_ms: int) -> FetchSession:
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id:
                self._detach(self.sessions.remove(request.session_id))
            if epoch == INITIAL_EPOCH:
                session, evicted = self.sessions.create(by_id, now_ms)
                self._detach(evicted)
            else:
                session = FetchSession(0, by_id, now_ms)
        else:
            session = self.sessions.resume(request.session_id, epoch, by_id, now_ms)
        added, removed = session.apply(request.topics, request.forgotten)
        for fetched in added:
            self._attach(fetched)
        for fetched in removed:
            if fetched.target is not None:
                fetched.target.fetchers.pop(fetched, None)
        return session

    def _attach(self, fetched: FetchPartition) -> Partition | None:
        partition = self._replicas.find(fetched.key, fetched.index)
        if partition is not None:
            fetched.target = partition
            partition.fetchers[fetched] = None
        return partition

    def _detach(self, session: FetchSession | None) -> None:
        """The session is over: no partition knows it any more."""
        if session is None:
            return
        for fetched in session.partitions.values():
            if fetched.target is not None:
                fetched.target.fetchers.pop(fetched, None)

    # Reads.

    def _budget(self, request: FetchRequest) -> int:
        left = max(MAX_UNSENT_BYTES - self.unsent_bytes, 0) // 4
        return min(request.max_bytes, MAX_ANSWER_BYTES, left)

    def _read(
        self, session: FetchSession, request: FetchRequest
    ) -> tuple[Results, int, bool, tuple[FetchPartition, int] | None]:
        """Read what is ready: (results, bytes of records, whether it must be answered now, a read that would block)."""
        results: Results = []
        total, urgent = 0, False
        cold = None
        budget = self._budget(request)
        whole = not session.incremental
        for fetched in list(session.partitions.values() if whole else session.ready):
            if total >= budget and total and not whole:
                break
            partition = fetched.target or self._attach(fetched)
            try:
                limit = min(fetched.max_bytes, budget - total)
                data, upper = self._read_one(partition, fetched, request, limit, not total)
            except KafkaError as error:
                urgent = True
                fetched.told = None
                results.append((fetched, _failed(fetched.index, error.code)))
                continue
            assert partition is not None
            if data is None:
                cold = cold or (fetched, limit)
                data = b""
            seen = (partition.state.high_watermark, partition.log.log_start_offset)
            if data or whole or fetched.told != seen:
                total += len(data)
                results.append((fetched, _result(partition, fetched, request, data)))
            elif limit > 0 and fetched.offset >= upper:
                # It has nothing to say until it says so itself.
                session.ready.pop(fetched, None)
        return results, total, urgent, cold

    def _read_one(
        self, partition: Partition | None, fetched: FetchPartition, request: FetchRequest, limit: int, first: bool
    ) -> tuple[Buffer | None, int]:
        if partition is None:
            by_id = isinstance(fetched.key, bytes)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition.check_leader(fetched.current_epoch)
        if request.replica_id >= 0:
            # Not one of this partition's replicas: replication comes with the cluster.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = partition.log
        if log.offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        committed = request.isolation_level == READ_COMMITTED
        upper = partition.last_stable_offset if committed else partition.state.high_watermark
        if fetched.offset == upper:
            return b"", upper
        if not log.log_start_offset <= fetched.offset <= log.log_end_offset:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if fetched.offset > upper or (limit <= 0 and not first):
            return b"", upper
        return log.read(fetched.offset, max(limit, 0), upper, first), upper

    async def _read_cold(
        self, session: FetchSession, request: FetchRequest, answer: Answer, cold: tuple[FetchPartition, int]
    ) -> None:
        """No page of what was asked for is in memory: read one partition in a thread, and answer with that."""
        fetched, limit = cold
        partition: Partition | None = fetched.target
        if partition is None:
            self.finish(session, request, answer)
            return
        upper = partition.state.high_watermark
        try:
            data = await self._world.offload(partition.log.read_blocking, fetched.offset, max(limit, 0), upper, True)
        except KafkaError as error:
            fetched.told = None
            self._give(session, [(fetched, _failed(fetched.index, error.code))], answer)
            return
        except OSError:
            self._give(session, [(fetched, _failed(fetched.index, ErrorCode.KAFKA_STORAGE_ERROR))], answer)
            return
        result = (fetched, _result(partition, fetched, request, data))
        if session.incremental:
            self._give(session, [result], answer)
            return
        others = [
            (other, _result(other.target, other, request, b""))
            for other in session.partitions.values()
            if other is not fetched and other.target is not None
        ]
        self._give(session, [result, *others], answer)

    def _give(self, session: FetchSession, results: Results, answer: Answer) -> None:
        for fetched, result in results:
            if result.error_code == 0:
                fetched.told = (result.high_watermark, result.log_start_offset)
                if result.records:
                    session.served(fetched)
        if not session.id:
            self._detach(session)
        answer(0, session.id, results)


def _result(partition: Partition, fetched: FetchPartition, request: FetchRequest, data: Buffer) -> FetchResult:
    return FetchResult(
        fetched.index,
        0,
        partition.state.high_watermark,
        partition.last_stable_offset,
        partition.log.log_start_offset,
        [] if request.isolation_level == READ_COMMITTED else None,
        data,
    )


def _failed(index: int, code: ErrorCode) -> FetchResult:
    return FetchResult(index, code, -1, -1, -1, [], b"")
