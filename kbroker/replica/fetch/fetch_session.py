"""Fetch sessions (KIP-227): the partitions that a consumer fetches, remembered between its requests.

A session has a set of the partitions that may have something to send (`ready`). A partition adds itself when its high
watermark moves, so the cost of an incremental fetch depends on the partitions that have changed, not on all that are
fetched. A request without a session is served by the same code, with a session that is dropped afterwards.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

from kbroker.authorization.authorizer import Access
from kbroker.common import ANONYMOUS, KafkaError, Principal
from kbroker.replica.fetch.read_filter import ReadView
from kbroker.runtime.delayed_response import DelayedResponse, Purgatory
from kbroker.runtime.turns import yield_if_due
from protocol.errors import ErrorCode
from protocol.fast.fetch import FetchedPartition, FetchRequest, FetchResponse, TopicKey

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 2**31 - 1
# A session with more partitions is ended in turns.
MANY_PARTITIONS = 256
# The memory of one partition in a session besides its topic's name. Measured: 300 bytes, 500 if the partition exists.
PARTITION_BYTES = 512
# The memory of all sessions: some 98,000 partitions, 98 for each of 1,000 sessions (the default number of slots).
MAX_SESSION_BYTES = 48 << 20


class FetchTarget(Protocol):
    """A partition of this broker, which notifies its fetchers of changes."""

    fetchers: dict[FetchPartition, None]
    replica_fetchers: dict[FetchPartition, None]
    is_leader_throttled: bool
    adding_replicas: Sequence[int]


def partition_bytes(key: TopicKey) -> int:
    """Return an upper bound of the memory of one partition of a topic in a session."""
    return PARTITION_BYTES + len(key) * (1 if isinstance(key, bytes) or key.isascii() else 4)


class FetchPartition:
    """One partition of a session: the client's fetch position, and what was sent last.

    `log_start_offset`: of a follower. `is_unrecorded`: the position is new, and the leader has not recorded it yet.
    """

    __slots__ = (
        "current_epoch", "index", "is_unrecorded", "key", "last_epoch", "last_sent", "log_start_offset", "max_bytes",
        "offset", "session", "target", "view",
    )  # fmt: skip

    def __init__(self, session: FetchSession, key: TopicKey, requested: FetchedPartition) -> None:
        self.session = session
        self.key = key
        self.index, self.current_epoch, self.offset, self.last_epoch, self.max_bytes, self.log_start_offset = requested
        self.is_unrecorded = True
        # The broker's partition; None if it was not looked up yet or not found.
        self.target: FetchTarget | None = None
        # The view that is fetched; `target` is then a partition of its source.
        self.view: ReadView | None = None
        # (high watermark, log start offset) in the last response; None if the next response must include the partition.
        self.last_sent: tuple[int, int] | None = None

    def update(self, requested: FetchedPartition) -> None:
        if requested[1] != self.current_epoch:
            # A follower has dropped the response of the former leader epoch, perhaps with the high watermark.
            self.last_sent = None
        _, self.current_epoch, self.offset, self.last_epoch, self.max_bytes, self.log_start_offset = requested
        self.is_unrecorded = True

    def detach(self) -> None:
        """Stop the notifications from the partition."""
        if self.target is not None:
            fetchers = self.target.fetchers if self.session.replica_id < 0 else self.target.replica_fetchers
            fetchers.pop(self, None)


class FetchSession:
    """The partitions of one consumer, of one follower (`replica_id` ≥ 0), or of one request (id 0).

    `is_closed`: it was closed or evicted. `size_bytes`: an upper bound of its memory; the cache has counted
    `counted_bytes` of it. `withheld`: throttled partitions that are not `ready` until the quota allows, or until
    `next_look_ms` (monotonic). `is_busy`: a large request is being handled in turns, which ends the session itself if
    it is closed meanwhile. `listener`: the one over which the last request came. `principal`: who has created it, and
    alone can use it. `access`: what its client may read, as last checked; None without an authorizer.
    """

    __slots__ = (
        "access", "counted_bytes", "epoch", "id", "is_busy", "is_closed", "is_incremental", "last_used_ms", "listener",
        "next_look_ms", "partitions", "principal", "ready", "replica_id", "size_bytes", "uses_topic_ids", "waiter",
        "withheld",
    )  # fmt: skip

    def __init__(self, session_id: int, uses_topic_ids: bool, now_ms: int, principal: Principal = ANONYMOUS) -> None:
        self.id = session_id
        self.principal = principal
        self.access: Access | None = None
        self.replica_id = -1
        self.listener = ""
        self.uses_topic_ids = uses_topic_ids
        self.epoch = INITIAL_EPOCH + 1
        # Whether the first request has been served.
        self.is_incremental = False
        self.is_closed = False
        self.last_used_ms = now_ms
        self.partitions: dict[tuple[TopicKey, int], FetchPartition] = {}
        self.ready: dict[FetchPartition, None] = {}
        self.withheld: dict[FetchPartition, None] = {}
        self.next_look_ms = 0
        self.size_bytes = 0
        self.counted_bytes = 0
        self.waiter: DelayedFetch | None = None
        self.is_busy = False

    def update(
        self, topics: list[tuple[TopicKey, list[FetchedPartition]]], forgotten: list[tuple[TopicKey, list[int]]]
    ) -> None:
        """Add, update and remove partitions as the request says."""
        partitions, ready = self.partitions, self.ready
        for key, requested_partitions in topics:
            for requested in requested_partitions:
                if self.is_busy:
                    yield_if_due()
                partition_key = (key, requested[0])
                partition = partitions.get(partition_key)
                if partition is None:
                    partition = partitions[partition_key] = FetchPartition(self, key, requested)
                    if self.id:
                        self.size_bytes += partition_bytes(key)
                else:
                    partition.update(requested)
                ready[partition] = None
        if self.is_incremental:
            for key, indexes in forgotten:
                for index in indexes:
                    if self.is_busy:
                        yield_if_due()
                    partition = self.partitions.pop((key, index), None)
                    if partition is not None:
                        self.size_bytes -= partition_bytes(key)
                        self.ready.pop(partition, None)
                        self.withheld.pop(partition, None)
                        partition.detach()

    def move_to_end(self, partition: FetchPartition) -> None:
        """Move a partition to the end of the order after its records were sent, so that no other one starves."""
        self.ready.pop(partition, None)
        self.ready[partition] = None

    def end_request(self) -> None:
        """Called when a request was served. If the session ends with it, partitions stop notifying the session."""
        if self.is_busy or (self.id and not self.is_closed):
            return
        is_follower, partitions = self.replica_id >= 0, self.partitions
        are_many = len(partitions) > MANY_PARTITIONS
        # Up to 100,000 partitions refer to the session; otherwise they stay in memory until a garbage collection.
        while partitions:
            _, partition = partitions.popitem()
            target = partition.target
            if target is not None:
                # As `detach` does: each request without a session ends here.
                (target.replica_fetchers if is_follower else target.fetchers).pop(partition, None)
                partition.target = None
            if are_many:
                self.ready.pop(partition, None)
                yield_if_due()
        self.ready.clear()
        self.withheld.clear()


class FetchSessionCache:
    """At most `slots` sessions (max.incremental.fetch.session.cache.slots) of at most `max_bytes` in all.

    The least recently used is the first. A full cache evicts sessions that were not used for `eviction_ms`. If that is
    not enough, a session gets the id 0, and its client sends full requests, as with Kafka.
    """

    __slots__ = ("_random", "_sessions", "eviction_ms", "max_bytes", "size_bytes", "slots")

    def __init__(
        self, slots: int, random: Random, eviction_ms: int = 120_000, max_bytes: int = MAX_SESSION_BYTES
    ) -> None:
        self.slots = slots
        self.eviction_ms = eviction_ms
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[FetchSession]:
        return list(self._sessions.values())

    def create(
        self, uses_topic_ids: bool, now_ms: int, principal: Principal = ANONYMOUS
    ) -> tuple[FetchSession, FetchSession | None]:
        """Return (new session, the session that was evicted for it or None)."""
        evicted = None
        if len(self._sessions) >= self.slots:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.last_used_ms < self.eviction_ms:
                return FetchSession(0, uses_topic_ids, now_ms, principal), None
            evicted = self.remove(oldest.id)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._random.randrange(1, 2**31)
        session = self._sessions[session_id] = FetchSession(session_id, uses_topic_ids, now_ms, principal)
        return session, evicted

    def count_bytes(self, session: FetchSession, now_ms: int) -> list[FetchSession]:
        """Count the memory of a session whose partitions have changed, in turns. Returns the sessions evicted for it.

        If there is no space, the session is removed and gets the id 0: its client sends full requests from then on.
        """
        self.size_bytes += session.size_bytes - session.counted_bytes
        session.counted_bytes = session.size_bytes
        excess = self.size_bytes - self.max_bytes
        evicted = []
        for oldest in list(self._sessions.values()):
            if excess <= 0 or now_ms - oldest.last_used_ms < self.eviction_ms:
                break
            evicted.append(oldest)
            excess -= oldest.counted_bytes
            yield_if_due()
        if excess > 0:
            self.remove(session.id)
            session.id = 0
            return []
        for oldest in evicted:
            self.remove(oldest.id)
            yield_if_due()
        return evicted

    def resume(
        self, session_id: int, epoch: int, uses_topic_ids: bool, now_ms: int, principal: Principal = ANONYMOUS
    ) -> FetchSession:
        """Return the session that an incremental request continues. Raises KafkaError."""
        session = self._sessions.get(session_id)
        if session is None or session.principal != principal:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.is_busy:
            # A large request of another connection is being handled.
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.last_used_ms = now_ms
        session.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        session.is_incremental = True
        self._sessions.move_to_end(session_id)
        return session

    def close(self, session_id: int, principal: Principal) -> FetchSession | None:
        """Remove a session as its client asks, unless it is another client's."""
        session = self._sessions.get(session_id)
        return self.remove(session_id) if session is not None and session.principal == principal else None

    def remove(self, session_id: int) -> FetchSession | None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.size_bytes -= session.counted_bytes
            session.counted_bytes = 0
        return session


class DelayedFetch(DelayedResponse[FetchResponse]):
    """A request that waits for `min_bytes` or its deadline, or for the disk.

    When the wait for bytes is over, `end_wait` is called; it reads the records and completes the request. The call is
    made in the next iteration of the event loop, so the appends of one iteration share a response.

    `deadline_ms`: the end of the wait (monotonic). `must_complete`: the wait is over, even if a read filter drops all
    new records. `in_turns`: the request is large. `end_request` is called when the request is abandoned.
    """

    __slots__ = (
        "_call_soon", "_end_request", "_end_wait", "_gained_bytes", "_is_waiting", "deadline_ms", "in_turns",
        "min_bytes", "must_complete", "request", "session",
    )  # fmt: skip
    purgatory: Purgatory

    def __init__(
        self,
        purgatory: Purgatory,
        session: FetchSession,
        request: FetchRequest,
        min_bytes: int,
        deadline_ms: int,
        call_soon: Callable[[Callable[[DelayedFetch], None], DelayedFetch], object],
        end_wait: Callable[[DelayedFetch], None],
        end_request: Callable[[FetchSession], None],
        in_turns: bool,
    ) -> None:
        super().__init__(purgatory)
        self.session = session
        self.request = request
        self._call_soon = call_soon
        self._end_wait = end_wait
        self._end_request = end_request
        self.in_turns = in_turns
        self._is_waiting = False
        self._gained_bytes = 0
        self.min_bytes = min_bytes
        self.deadline_ms = deadline_ms
        self.must_complete = False
        session.waiter = self

    @property
    def read_committed(self) -> bool:
        return self.request.isolation_level == READ_COMMITTED

    def wait_for_bytes(self, available: int) -> None:
        """Wait for more than the `available` bytes."""
        # Partitions that are not ready will notify the session anyway.
        if self.session.replica_id < 0:
            for fetched in self.session.ready:
                if fetched.target is not None:
                    fetched.target.fetchers[fetched] = None
        self._is_waiting = True
        self._gained_bytes = available
        self.purgatory.set(self, self.deadline_ms)

    def gained(self, size: int) -> None:
        """Called when a partition has `size` more bytes to read, or 0 for another change that must be sent."""
        self._gained_bytes += size
        if size == 0:
            self.must_complete = True
        if self._is_waiting and (size == 0 or self._gained_bytes >= self.min_bytes):
            self._is_waiting = False
            self._call_soon(self._end_wait, self)

    def expire(self) -> None:
        self._is_waiting = False
        self.must_complete = True
        self._end_wait(self)

    def abandon(self) -> None:
        """End the request, because its connection is closed. Nothing was sent, so the session is unchanged."""
        if not self.is_done:
            super().abandon()
            self.session.waiter = None
            self._end_request(self.session)
