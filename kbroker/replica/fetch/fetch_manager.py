"""Serves Fetch requests from fetch sessions.

A request is served from the `ready` partitions of its session. If they have fewer than `min_bytes`, the request waits
(`DelayedFetch`): each partition whose high watermark advances notifies the sessions that fetch it.
"""

from __future__ import annotations

from asyncio import Lock
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from kbroker.authorization.authorizer import Access
from kbroker.common import ANONYMOUS, Buffer, KafkaError, Principal
from kbroker.replica.fetch.cold_reads import ColdReadResult, read_cold_blocking
from kbroker.replica.fetch.fetch_reads import FetchReads, wait_for_change
from kbroker.replica.fetch.fetch_response_cache import FetchResponseCache
from kbroker.replica.fetch.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    MANY_PARTITIONS,
    DelayedFetch,
    FetchPartition,
    FetchSession,
    FetchSessionCache,
)
from kbroker.replica.fetch.partition_reads import (
    add_cold_results,
    check_fetch,
    look_up,
    read_partitions,
    renew_access,
    use_access,
)
from kbroker.replica.replication_throttle import LeaderThrottle, unlimited_quota
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import yield_if_due
from protocol.errors import ErrorCode
from protocol.fast.fetch import Buffers, FetchRequest, FetchResponse, FetchResult, TopicKey

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.replica.partition import Partition
    from kbroker.replica.replica_manager import ReplicaManager
    from kbroker.replica.replication_throttle import ReplicationQuota
    from kbroker.runtime.environment import Environment


def record_positions(session: FetchSession, request: FetchRequest, partitions: ReplicaManager, now_ms: int) -> None:
    """Record the new positions of a follower; `now_ms` is monotonic. This may complete Produce requests.

    Partitions with an error are skipped here. The response has the error, or the diverging epoch.
    """
    for fetched in list(session.ready):
        if not fetched.is_unrecorded:
            continue
        try:
            partition: Partition | None = fetched.target  # type: ignore[assignment]
            if partition is None or partition.is_closed:
                partition = look_up(session, fetched, partitions)
            if check_fetch(partition, fetched, request) is not None:
                continue
        except KafkaError:
            continue
        fetched.is_unrecorded = False
        partitions.isr_manager.record_follower_fetch(
            partition, request.replica_id, request.replica_epoch, fetched.offset, fetched.log_start_offset, now_ms
        )


log = EventLogger("kbroker.fetch")

# The most bytes of records in a response, even if the client and fetch.max.bytes allow more; only a larger first batch
# exceeds it. Larger responses would delay other clients, and the client sends its next request immediately.
MAX_RESPONSE_BYTES = 8 * 1024 * 1024
# The most bytes of responses that clients have not read. The more there are, the smaller new responses are.
MAX_UNSENT_BYTES = 48 * 1024 * 1024
# The most bytes of records in a response to a follower. Slow consumers do not make it smaller.
MAX_FOLLOWER_RESPONSE_BYTES = 16 * 1024 * 1024
# Sessions of followers: one for each other broker, and those of its former starts.
MAX_FOLLOWER_SESSIONS = 1000


class FetchManager:
    """`unsent_bytes`: the size of the responses that clients have not read yet, set by the server.

    `bytes_out`: bytes of records in responses to consumers, by topic name or id, whichever the requests use.
    `replication_bytes_out`: those in responses to followers. `reassignment_bytes_out`: the part of the latter for
    followers that a reassignment adds.
    """

    def __init__(
        self,
        environment: Environment,
        replicas: ReplicaManager,
        slots: int,
        max_bytes: int,
        leader_quota: ReplicationQuota | None = None,
    ) -> None:
        """`slots`: max.incremental.fetch.session.cache.slots. `max_bytes`: fetch.max.bytes."""
        self.unsent_bytes = 0
        self.bytes_out: dict[TopicKey, int] = {}
        self.replication_bytes_out = self.reassignment_bytes_out = 0
        self.sessions = FetchSessionCache(slots, environment.random)
        # Consumers cannot evict these.
        self.follower_sessions = FetchSessionCache(MAX_FOLLOWER_SESSIONS, environment.random, max_bytes=1 << 40)
        self.response_cache = FetchResponseCache(replicas)
        self.throttle = LeaderThrottle(leader_quota or unlimited_quota(), environment.clock)
        self.environment = environment
        self.replicas = replicas
        self._max_bytes = min(max_bytes, MAX_RESPONSE_BYTES)
        # Reads from disk, and the rest of large requests.
        self._tasks: set[Task[None]] = set()
        self._large_batch = Lock()

    def fetch(
        self,
        request: FetchRequest,
        uses_topic_ids: bool,
        listener: str,
        in_turns: bool = False,
        principal: Principal = ANONYMOUS,
        access: Access | None = None,
        is_throttled: bool = False,
    ) -> FetchResponse | DelayedFetch:
        """Read the requested records. The response is delayed if there are too few, or if they are only on disk.

        `listener`: the one over which the request came. With `in_turns` the session is busy, except while the request
        waits for records. `access`: what the client may read; None if that is everything. With `is_throttled` nothing
        is read: a session only gets its new positions.
        """
        if is_throttled and not request.session_id:
            return FetchResponse(0, 0, [])
        try:
            session = self._find_session(request, uses_topic_ids, principal)
        except KafkaError as error:
            return FetchResponse(error.code, 0, [])
        session.is_busy = in_turns
        max_bytes = self.max_bytes_for(request)
        try:
            session.update(request.topics, request.forgotten)
            if session.size_bytes != session.counted_bytes or not session.partitions:
                session = self._count_session(session)
            session.listener = listener
            if access is not session.access:
                use_access(session, access, self.replicas)
            if is_throttled:
                return self._respond(session, FetchReads())
            if request.replica_id >= 0:
                record_positions(session, request, self.replicas, self.environment.clock.mono_ms())
            reads = read_partitions(session, request, max_bytes, self.replicas, self.throttle)
        except BaseException:
            session.is_busy = False
            session.end_request()
            raise
        min_bytes = request.min_bytes
        if reads.size < min_bytes:
            # Responses consist of complete batches, so they may never reach `max_bytes`, but they do reach half of it.
            min_bytes = min(min_bytes, max(max_bytes // 2, 1))
        if not reads.cold and (
            reads.size >= min_bytes or reads.must_respond or request.max_wait_ms <= 0 or not session.partitions
        ):
            return self._respond(session, reads)
        deadline_ms = self.environment.clock.mono_ms() + request.max_wait_ms
        if reads.is_throttled:
            deadline_ms = self.throttle.deadline_ms(deadline_ms)
        end_wait = self._end_wait_in_turns if in_turns else self._read_and_complete
        delayed = DelayedFetch(
            self.replicas.purgatory, session, request, min_bytes, deadline_ms, self.environment.loop.call_soon,
            end_wait, self._end_request, in_turns,
        )  # fmt: skip
        if reads.cold:
            self._start(self._read_cold(delayed, reads))
        else:
            session.is_busy = False
            delayed.wait_for_bytes(reads.size)
        return delayed

    def find_cached(self, request_bytes: bytes) -> list[Buffer] | None:
        """Return the body of a cached response to a request with these bytes; None if there is no valid one."""
        cached = self.response_cache.find(request_bytes)
        # While clients do not read their responses, new ones are smaller.
        if cached is None or self.unsent_bytes:
            return None
        self.bytes_out[cached.key] = self.bytes_out.get(cached.key, 0) + cached.records_bytes
        return cached.body

    def cache_response(
        self, request_bytes: bytes, request: FetchRequest, response: FetchResponse, body: Buffers
    ) -> None:
        """Cache a response that `fetch` has just returned, if the same request may be repeated."""
        if not self.unsent_bytes:
            self.response_cache.add(request_bytes, request, response, body)

    def max_bytes_for(self, request: FetchRequest) -> int:
        """Return how many bytes of records the response may contain."""
        if request.replica_id >= 0:
            return min(request.max_bytes, MAX_FOLLOWER_RESPONSE_BYTES)
        return self.max_consumer_bytes(request.max_bytes)

    def max_consumer_bytes(self, wanted: int) -> int:
        """Return how many bytes of records a response to a consumer may contain, which wants at most `wanted`."""
        limit = self._max_bytes
        if self.unsent_bytes:
            limit = min(limit, max(MAX_UNSENT_BYTES - self.unsent_bytes, 0) // 4)
        return limit if limit < wanted else wanted

    def _respond(self, session: FetchSession, reads: FetchReads) -> FetchResponse:
        """Build the response, with topics in the order in which they were read. Record in the session what it sends."""
        topics: dict[TopicKey, list[FetchResult]] = {}
        for fetched, result in reads.results:
            if session.is_busy:
                yield_if_due()
            key = fetched.key
            results = topics.get(key)
            if results is None:
                topics[key] = [result]
            else:
                results.append(result)
            size = len(result.records)
            if size:
                if session.replica_id < 0:
                    self.bytes_out[key] = self.bytes_out.get(key, 0) + size
                else:
                    self.replication_bytes_out += size
                    target = fetched.target
                    if target is not None and target.is_leader_throttled:
                        self.throttle.record(size)
                    if target is not None and session.replica_id in target.adding_replicas:
                        self.reassignment_bytes_out += size
            if session.id:
                _record_sent(session, fetched, result, size)
        session.is_busy = False
        if not session.id or session.is_closed:
            session.end_request()
        return FetchResponse(0, session.id, list(topics.items()))

    # Sessions.

    def _find_session(self, request: FetchRequest, uses_topic_ids: bool, principal: Principal) -> FetchSession:
        """Return the session of a request, which the request may then update. Raises KafkaError."""
        epoch = request.session_epoch
        if epoch == FINAL_EPOCH and not request.session_id:
            session = FetchSession(0, uses_topic_ids, 0)
            session.replica_id = request.replica_id
            return session
        sessions = self.sessions if request.replica_id < 0 else self.follower_sessions
        now_ms = self.environment.clock.mono_ms()
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if request.session_id:
                self._close(sessions.close(request.session_id, principal))
            if epoch == INITIAL_EPOCH:
                if request.replica_id >= 0:
                    self._close_sessions_of(request.replica_id)
                session, evicted = sessions.create(uses_topic_ids, now_ms, principal)
                self._close(evicted)
            else:
                session = FetchSession(0, uses_topic_ids, now_ms)
            session.replica_id = request.replica_id
        else:
            session = sessions.resume(request.session_id, epoch, uses_topic_ids, now_ms, principal)
            if session.waiter is not None:
                self._end_waiter(session)
        return session

    def _count_session(self, session: FetchSession) -> FetchSession:
        """Count the memory of an updated session. Returns it, or another one without an id if it is empty."""
        if session.id:
            now_ms = self.environment.clock.mono_ms()
            sessions = self.sessions if session.replica_id < 0 else self.follower_sessions
            if session.is_incremental and not session.partitions:
                # As in Kafka, an empty session is closed, and the response has no session id.
                self._close(sessions.remove(session.id))
                return FetchSession(0, session.uses_topic_ids, now_ms)
            for evicted in sessions.count_bytes(session, now_ms):
                self._close(evicted)
                yield_if_due()
        return session

    def _close_sessions_of(self, replica_id: int) -> None:
        """Close the sessions of a follower's former connections, so that partitions do not notify them."""
        for session in self.follower_sessions.all():
            if session.replica_id == replica_id:
                self._close(self.follower_sessions.remove(session.id))

    def _close(self, session: FetchSession | None) -> None:
        if session is not None:
            session.is_closed = True
            self._end_waiter(session)
            self._end_request(session)

    def _end_waiter(self, session: FetchSession) -> None:
        """Complete the waiting request of a session without records, because a later request replaces it."""
        if session.waiter is not None:
            waiter, session.waiter = session.waiter, None
            waiter.complete(FetchResponse(0, session.id, []))

    # Delayed fetches.

    def _end_wait_in_turns(self, delayed: DelayedFetch) -> None:
        self._call_in_turns(self._read_and_complete, delayed)

    def _call_in_turns(self, function: Callable[..., None], *arguments: Any) -> None:
        rest = self.environment.turns.call(function, *arguments)
        if rest is not None:
            self._start(rest)

    def _end_request(self, session: FetchSession) -> None:
        """End an abandoned request, or a session that was closed or evicted: 89,000 partitions take 145 ms."""
        if len(session.partitions) > MANY_PARTITIONS:
            self._call_in_turns(session.end_request)
        else:
            session.end_request()

    def _read_and_complete(self, delayed: DelayedFetch) -> None:
        """Read again after the wait, and respond with the available records.

        If a read filter has left too few of the new bytes, the wait continues.
        """
        if delayed.is_done:
            return
        request, session = delayed.request, delayed.session
        self.replicas.purgatory.cancel(delayed)
        session.is_busy = delayed.in_turns
        try:
            renew_access(session, self.replicas)
            max_bytes = self.max_bytes_for(request)
            reads = read_partitions(session, request, max_bytes, self.replicas, self.throttle)
        except Exception as error:
            log.failure("fetch failed", error)
            reads = FetchReads()
        if reads.cold:
            self._start(self._read_cold(delayed, reads))
        else:
            self._complete_or_wait(delayed, reads)

    def _complete_or_wait(self, delayed: DelayedFetch, reads: FetchReads) -> None:
        """Respond, unless a read filter has left too little and the wait is not over."""
        session = delayed.session
        if delayed.is_done:
            # The connection of a large request, or the session, was closed while the partitions were read.
            if session.is_busy:
                session.is_busy = False
                session.end_request()
        elif (
            reads.is_filtered
            and reads.size < delayed.min_bytes
            and not (reads.must_respond or delayed.must_complete)
            and self.environment.clock.mono_ms() < delayed.deadline_ms
        ):
            session.is_busy = False
            delayed.wait_for_bytes(reads.size)
        else:
            response = self._respond(session, reads)
            session.waiter = None
            delayed.complete(response)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.environment.loop.create_task(self.environment.turns.run(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_cold(self, delayed: DelayedFetch, reads: FetchReads) -> None:
        session, cold = delayed.session, reads.cold
        max_bytes = self.max_bytes_for(delayed.request) - reads.size
        offload, clock = self.environment.offload, self.environment.clock
        results: list[ColdReadResult]
        try:
            results = await offload(read_cold_blocking, cold, max_bytes, clock, False, delayed.in_turns)
            if not results:
                # At most one thread has a large decompressed batch.
                async with self._large_batch:
                    results = await offload(read_cold_blocking, cold[:1], max_bytes, clock, True, delayed.in_turns)
        except Exception as error:
            log.failure("read failed", error, partition=cold[0].partition.tp)
            results = [KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)] * len(cold)
        if not delayed.is_done:
            renew_access(session, self.replicas)
            add_cold_results(reads, session, delayed.request, results, self.replicas)
        self._complete_or_wait(delayed, reads)


def _record_sent(session: FetchSession, fetched: FetchPartition, result: FetchResult, size: int) -> None:
    """Record in the session what a response contains of a partition: `size` bytes of records, offsets or an error."""
    partition: Partition | None = fetched.target  # type: ignore[assignment]
    if result.error_code or result.diverging is not None or result.preferred_read_replica >= 0 or partition is None:
        fetched.last_sent = None
        if session.is_incremental and session.replica_id < 0:
            # There may be more of them than in one response.
            session.move_to_end(fetched)
        return
    fetched.last_sent = (result.high_watermark, result.log_start_offset)
    if size:
        session.move_to_end(fetched)
    elif fetched.last_sent == (partition.state.high_watermark, partition.log.log_start_offset):
        wait_for_change(session, fetched, partition)
