"""A partition that this broker holds: its log, its leadership, and who waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.common import Buffer, KafkaError, TopicPartition
from kbroker.config.topic_config import TopicConfig
from kbroker.replica.fetch.fetch_session import FetchPartition
from kbroker.replica.partition_state import PartitionState
from kbroker.storage.log.control_batches import MarkerBatch
from kbroker.storage.log.log import Log
from kbroker.storage.producers.ongoing_transactions import NO_UNSTABLE_OFFSET
from kbroker.storage.producers.verification import VerificationGuard
from protocol.errors import ErrorCode
from protocol.records.batch import LENGTH_OVERHEAD, BatchHeader

if TYPE_CHECKING:
    from kbroker.metadata.image import PartitionRegistration

Committed = Callable[[ErrorCode], None]


def acknowledged_by_sync(config: TopicConfig) -> bool:
    """Kafka syncs inside the append when flush.messages is 1: as good as flush.before.ack."""
    return config.flush_before_ack or config.flush_messages == 1


class Partition:
    """Appends and their consequences: the high watermark moves, waiting requests wake.

    Consumers see offsets below `state.high_watermark`; `fetchers` are in the fetch sessions to tell when it moves.
    `internal`: of a coordinator's topic. `closed`: it has left this broker. `bytes_in` have been appended since it is
    here, and everything from `first_offset` on.
    """

    __slots__ = (
        "bytes_in",
        "closed",
        "fetchers",
        "first_offset",
        "flush_before_ack",
        "flushing",
        "internal",
        "is_leader",
        "log",
        "request_flush",
        "state",
        "tp",
        "uncommitted",
        "waiting",
    )

    def __init__(
        self,
        log: Log,
        state: PartitionState,
        request_flush: Callable[[Partition], None],
        *,
        is_leader: bool = True,
        internal: bool = False,
    ) -> None:
        self.tp: TopicPartition = log.tp
        self.log = log
        self.state = state
        self.is_leader = is_leader
        self.closed = False
        self.internal = internal
        self.flushing = False
        self.bytes_in = 0
        self.first_offset = log.log_end_offset
        # Bytes appended since the high watermark moved last: how much more there is to fetch when it moves.
        self.uncommitted = 0
        self.flush_before_ack = acknowledged_by_sync(log.config)
        self.request_flush = request_flush
        self.fetchers: dict[FetchPartition, None] = {}
        log.update_high_watermark(state.high_watermark)
        # (offset, callback) in order of offset.
        self.waiting: deque[tuple[int, Committed]] = deque()

    @property
    def topic_id(self) -> bytes:
        return self.log.topic_id

    @property
    def leader_epoch(self) -> int:
        return self.state.leader_epoch

    @property
    def high_watermark(self) -> int:
        return self.state.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """min(first open transaction, high watermark); without transactions it is the high watermark. An open one of
        which records were deleted holds back from the log start on."""
        unstable, high_watermark = self.log.producers.transactions.first_unstable_offset, self.state.high_watermark
        if unstable >= high_watermark:
            return high_watermark
        return min(max(unstable, self.log.log_start_offset), high_watermark)

    def begin_epoch(self) -> None:
        """What is appended from now on is of the leader epoch that has come."""
        if self.is_leader:
            self.log.assign_leader_epoch(self.state.leader_epoch)

    def follow(self, image: PartitionRegistration, node_id: int) -> None:
        """The metadata image has changed: perhaps the leader, which this broker (`node_id`) is or is not."""
        newer = image.leader_epoch > self.state.leader_epoch
        self.state.become_leader(image.leader_epoch, image.isr)
        self.is_leader = image.leader == node_id
        if newer:
            self.begin_epoch()
        if not self.is_leader:
            self.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def append(self, batch: Buffer, header: BatchHeader, now_ms: int) -> int:
        """Append one validated batch as leader; gives its base offset. Raises KafkaError(KAFKA_STORAGE_ERROR)."""
        base_offset = self.log.append(batch, header, self.state.leader_epoch, now_ms)
        size = header[1] + LENGTH_OVERHEAD
        self.uncommitted += size
        self.bytes_in += size
        if self.flush_before_ack:
            self.request_flush(self)
        else:
            self.advance()
        return base_offset

    def append_markers(self, batches: list[MarkerBatch], now_ms: int) -> int:
        """Append markers with one write; gives the offset of the first. Raises KafkaError(KAFKA_STORAGE_ERROR)."""
        offset = self.log.append_markers(batches, self.state.leader_epoch, now_ms)
        size = sum([len(batch) for batch, _, _ in batches])
        self.uncommitted += size
        self.bytes_in += size
        if self.flush_before_ack:
            self.request_flush(self)
        else:
            self.advance()
        return offset

    def begin_verification(self, header: BatchHeader, tv2: bool) -> VerificationGuard | None:
        """What to show with the append of a client's transactional batch once its coordinator has confirmed that this
        partition is part of the transaction; None if that was done before. Raises KafkaError."""
        return self.log.producers.begin_verification(
            header.producer_id, header.producer_epoch, header.base_sequence, tv2
        )

    def claim(self) -> int:
        """Up to where this broker says that it has the log: under flush.before.ack, up to where it is synced."""
        return self.log.recovery_point if self.flush_before_ack else self.log.log_end_offset

    def advance(self) -> None:
        """The claim may have grown: commit what can be, and wake who waits for it."""
        state = self.state
        before = state.high_watermark
        if not state.advance(self.claim()):
            return
        size, self.uncommitted = self.uncommitted, 0
        stable = None
        if self.log.producers.transactions.first_unstable_offset != NO_UNSTABLE_OFFSET:
            stable = self._stabilize(before)
        waiting = self.waiting
        while waiting and waiting[0][0] <= state.high_watermark:
            waiting.popleft()[1](ErrorCode.NONE)
        if self.fetchers:
            self.wake(size, stable)

    def _stabilize(self, before: int) -> int | None:
        """The high watermark has moved from `before`. Gives how many bytes have become stable; 0 if it is not known, -1
        if none have."""
        transactions, log = self.log.producers.transactions, self.log
        was = max(min(transactions.first_unstable_offset, before), log.log_start_offset)
        log.update_high_watermark(self.state.high_watermark)
        now = self.last_stable_offset
        return log.bytes_between(was, now) if now > was else -1

    def wake(self, size: int, stable: int | None = None) -> None:
        """Tell the fetch sessions that this partition has changed. Those in which nobody waits need be told once: it
        is in their next answer, after which they listen again. So sessions that are left alone cost appends nothing.

        Who waits for committed records gains the `stable` bytes, none if that is -1; None: the same as others.
        """
        if not self.fetchers:
            return
        fetchers, self.fetchers = self.fetchers, {}
        for fetched in fetchers:
            session = fetched.session
            session.ready[fetched] = None
            if session.waiter is not None:
                self.fetchers[fetched] = None
                if stable is None or not session.waiter.read_committed:
                    session.waiter.gained(size)
                elif stable >= 0:
                    session.waiter.gained(stable)

    def on_committed(self, offset: int, callback: Committed) -> None:
        """Call back when everything below `offset` is committed, or with the reason why it never will be."""
        if self.closed:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.state.high_watermark >= offset:
            callback(ErrorCode.NONE)
        elif self.log.offline is not None:
            callback(ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            waiting = self.waiting
            place = len(waiting)
            # Appends only grow, but what is repeated waits for the offset of its original.
            while place and waiting[place - 1][0] > offset:
                place -= 1
            waiting.insert(place, (offset, callback))

    def fail_waiting(self, code: ErrorCode) -> None:
        """Leadership or the disk is lost: nobody who waits here will see the offset committed."""
        waiting, self.waiting = self.waiting, deque()
        for _, callback in waiting:
            callback(code)
        self.wake(0)

    def close(self) -> None:
        """The partition leaves this broker."""
        self.closed = True
        self.is_leader = False
        self.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.fetchers.clear()

    def check_leader(self, current_epoch: int) -> None:
        """Fence a client whose metadata is of another leader epoch (KIP-320); -1 is not checked."""
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if current_epoch == -1 or current_epoch == self.state.leader_epoch:
            return
        if current_epoch < self.state.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
