"""Fetch on the broker's side: sessions and waiting.

A request is served from the `ready` partitions of its session. When they hold less than it asks for, it waits; each
partition whose high watermark moves tells the sessions that watch it, and the answer is made in the next turn of
the loop, so that appends of one turn share one answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.replica.fetch.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    FetchPartition,
    FetchSession,
    FetchSessionCache,
)
from kbroker.replica.fetch.log_reads import (
    READ_COMMITTED,
    FetchReadResult,
    fall_silent,
    read,
    read_cold_blocking,
    take_cold,
    told,
)
from kbroker.replica.purgatory import DelayedOperation
from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode
from protocol.fast.fetch import FetchRequest, FetchResponse, FetchResult, TopicKey

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.replica.partition import Partition
    from kbroker.replica.replica_manager import ReplicaManager
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.fetch")

# One answer holds at most this many bytes of records, however much the client and fetch.max.bytes would allow: longer
# ones would hold up everybody else on the loop, and the client asks again at once. The first batch is given whole all
# the same.
MAX_ANSWER_BYTES = 8 * 1024 * 1024
# Answers that clients are slow to read may hold this much in all; what is given shrinks on the way there.
MAX_UNSENT_BYTES = 48 * 1024 * 1024


class FetchManager:
    """All fetch sessions of a broker. `unsent_bytes` is kept by the network room."""

    def __init__(self, environment: Environment, replicas: ReplicaManager, slots: int, max_bytes: int) -> None:
        """`slots`: max.incremental.fetch.session.cache.slots; `max_bytes`: fetch.max.bytes."""
        self.unsent_bytes = 0
        # Bytes of records in responses, by topic name or id as the request names it.
        self.bytes_out: dict[TopicKey, int] = {}
        self.sessions = FetchSessionCache(slots, environment.random)
        self.replicas = replicas
        self.environment = environment
        self._max_bytes = min(max_bytes, MAX_ANSWER_BYTES)
        self._cold_reads: set[Task[None]] = set()

    def fetch(self, request: FetchRequest, by_id: bool) -> FetchResponse | DelayedResponse[FetchResponse]:
        """Read what the request asks for; delayed, if there is not enough to read yet."""
        try:
            session = self._session(request, by_id)
        except KafkaError as error:
            return FetchResponse(error.code, 0, [])
        budget = self.budget(request)
        try:
            found = read(session, request, budget, self.attach)
        except BaseException:
            self.release(session)
            raise
        # More than is ever given would never be reached: with whole batches, half of it always is.
        enough = min(request.min_bytes, max(budget // 2, 1))
        if not found.cold and (
            found.size >= enough or found.urgent or request.max_wait_ms <= 0 or not session.partitions
        ):
            return self.respond(session, found)
        fetch = DelayedFetch(self, session, request)
        fetch.wait(found, enough)
        return fetch

    def respond(self, session: FetchSession, found: FetchReadResult) -> FetchResponse:
        """Make the response, and note what the session has been told.

        Results are grouped under their topics, in the order in which topics first appear.
        """
        topics: dict[TopicKey, list[FetchResult]] = {}
        for fetched, result in found.results:
            of_topic = topics.get(fetched.key)
            if of_topic is None:
                topics[fetched.key] = [result]
            else:
                of_topic.append(result)
            size = len(result.records)
            if size:
                self.bytes_out[fetched.key] = self.bytes_out.get(fetched.key, 0) + size
            partition: Partition | None = fetched.target
            if result.error_code or result.diverging is not None or partition is None:
                fetched.told = None
                continue
            fetched.told = (result.high_watermark, result.log_start_offset)
            if result.records:
                session.served(fetched)
            elif fetched.offset >= partition.high_watermark and fetched.told == told(partition):
                fall_silent(session, fetched, partition)
        self.release(session)
        return FetchResponse(0, session.id, list(topics.items()))

    def budget(self, request: FetchRequest) -> int:
        """Bytes of records that the answer to a request may hold."""
        left = max(MAX_UNSENT_BYTES - self.unsent_bytes, 0) // 4
        return min(request.max_bytes, self._max_bytes, left)

    # Sessions.

    def _session(self, request: FetchRequest, by_id: bool) -> FetchSession:
        now_ms = self.environment.clock.mono_ms()
        epoch = request.session_epoch
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id:
                self._end(self.sessions.remove(request.session_id))
            if epoch == INITIAL_EPOCH:
                session, evicted = self.sessions.create(by_id, now_ms)
                self._end(evicted)
            else:
                session = FetchSession(0, by_id, now_ms)
        else:
            session = self.sessions.resume(request.session_id, epoch, by_id, now_ms)
            self._supersede(session)
        _, removed = session.apply(request.topics, request.forgotten)
        for fetched in removed:
            if fetched.target is not None:
                fetched.target.fetchers.pop(fetched, None)
        if session.incremental and not session.partitions:
            # Nothing is left to be remembered: as Kafka does, say so by giving no session.
            self._end(self.sessions.remove(session.id))
            return FetchSession(0, by_id, now_ms)
        return session

    def attach(self, fetched: FetchPartition) -> Partition:
        """Look for the partition that is fetched. Raises KafkaError."""
        partition = fetched.target = self.replicas.find(fetched.key, fetched.index)
        if partition is None:
            raise KafkaError(self.replicas.absence(fetched.key, fetched.index))
        return partition

    def _end(self, session: FetchSession | None) -> None:
        """The session is over: no partition knows it any more, and who waits in it waits in vain."""
        if session is not None:
            session.over = True
            self._supersede(session)
            self.release(session)

    def _supersede(self, session: FetchSession) -> None:
        """Another request takes over: the one that waits must not take from the session what the other is told."""
        if session.waiter is not None:
            session.waiter.answer(FetchReadResult())

    @staticmethod
    def release(session: FetchSession) -> None:
        """A request has been served. If there is no next one in its session, no partition need know it any more."""
        if session.id and not session.over:
            return
        for fetched in session.partitions.values():
            if fetched.target is not None:
                fetched.target.fetchers.pop(fetched, None)
                fetched.target = None

    # Reads that wait for the disk.

    def read_cold(self, fetch: DelayedFetch, found: FetchReadResult) -> None:
        task = self.environment.loop.create_task(self._read_cold(fetch, found))
        self._cold_reads.add(task)
        task.add_done_callback(self._cold_reads.discard)

    async def _read_cold(self, fetch: DelayedFetch, found: FetchReadResult) -> None:
        budget = self.budget(fetch.request) - found.size
        try:
            outcomes = await self.environment.offload(read_cold_blocking, found.cold, budget)
        except Exception as error:
            log.failure("read failed", error, partition=found.cold[0].partition.tp)
            outcomes = [KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)] * len(found.cold)
        if fetch.is_done:
            return
        if any(cold.partition.closed for cold in found.cold):
            # What failed because the partition has gone has another error now.
            fetch.proceed()
            return
        take_cold(found, fetch.session, fetch.request, outcomes)
        fetch.answer(found)


class DelayedFetch(DelayedResponse[FetchResponse]):
    """A request that waits, for records or for the disk."""

    __slots__ = ("_deadline", "_enough", "_fetching", "_gained", "_scheduled", "request", "session")

    def __init__(self, fetching: FetchManager, session: FetchSession, request: FetchRequest) -> None:
        super().__init__()
        self.session = session
        self.request = request
        self._fetching = fetching
        self._deadline: Deadline | None = None
        self._gained = 0
        self._enough = 0
        self._scheduled = False

    @property
    def read_committed(self) -> bool:
        return self.request.isolation_level == READ_COMMITTED

    def wait(self, found: FetchReadResult, enough: int) -> None:
        """For the disk; or until there are `enough` bytes, or the time is over."""
        self.session.waiter = self
        if found.cold:
            self._fetching.read_cold(self, found)
            return
        # What is not ready listens already.
        for fetched in self.session.ready:
            if fetched.target is not None:
                fetched.target.fetchers[fetched] = None
        self._gained, self._enough = found.size, enough
        self._deadline = Deadline(self._fetching.environment.clock.mono_ms() + self.request.max_wait_ms, self)
        self._fetching.replicas.watch(self._deadline)

    def gained(self, size: int) -> None:
        """A partition grew by `size` bytes; 0 says that it changed in a way that must be answered."""
        self._gained += size
        if not self._scheduled and self._deadline is not None and (size == 0 or self._gained >= self._enough):
            self._scheduled = True
            self._fetching.environment.loop.call_soon(self.proceed)

    def proceed(self) -> None:
        """The waiting is over: read again and answer, with or without enough."""
        if self.is_done:
            return
        self._stop_waiting()
        try:
            found = read(self.session, self.request, self._fetching.budget(self.request), self._fetching.attach)
        except Exception as error:
            # Nobody is above who would hear of it. The next request will tell.
            log.failure("fetch failed", error)
            found = FetchReadResult()
        if found.cold:
            self._fetching.read_cold(self, found)
        else:
            self.answer(found)

    def answer(self, found: FetchReadResult) -> None:
        if not self.is_done:
            self._end()
            self.complete(self._fetching.respond(self.session, found))

    def abandon(self) -> None:
        """The session is left as if the request had not been made."""
        if not self.is_done:
            super().abandon()
            self._end()
            self._fetching.release(self.session)

    def _end(self) -> None:
        self._stop_waiting()
        if self.session.waiter is self:
            self.session.waiter = None

    def _stop_waiting(self) -> None:
        deadline, self._deadline = self._deadline, None
        if deadline is not None and deadline.finish():
            self._fetching.replicas.purgatory.completed()


class Deadline(DelayedOperation):
    """When a fetch is answered with what there is."""

    __slots__ = ("_fetch",)

    def __init__(self, deadline_ms: int, fetch: DelayedFetch) -> None:
        super().__init__(deadline_ms)
        self._fetch = fetch

    def expire(self) -> None:
        if self.finish():
            self._fetch.proceed()
