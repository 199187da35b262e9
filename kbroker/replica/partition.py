"""A partition on this broker: its log, its leadership, and the requests that wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kbroker.common import KafkaError, TopicPartition
from kbroker.config.topic_config import TopicConfig
from kbroker.replica.fetch.fetch_session import FetchPartition
from kbroker.replica.partition_state import PartitionState
from kbroker.replica.produce.batch_validation import validate_batch
from kbroker.replica.produce.record_validation import ValidatedBatch
from kbroker.storage.log.control_batches import MarkerBatch
from kbroker.storage.log.log import Log
from kbroker.storage.producers.ongoing_transactions import NO_UNSTABLE_OFFSET
from kbroker.storage.producers.verification import VerificationGuard
from protocol.errors import ErrorCode
from protocol.records.batch import CONTROL, LENGTH_OVERHEAD, parse_header

if TYPE_CHECKING:
    from kbroker.metadata.image import PartitionRegistration

ACKS_ALL = -1

OnCommitted = Callable[[ErrorCode], None]


class AppendListener(Protocol):
    """The PartitionMaintenance of the replica manager, which flushes and compacts the logs."""

    def on_append(self, partition: Partition, now_ms: int) -> None:
        """Called after an append. With `flush_before_ack`: sync the log, then call `advance_high_watermark`."""
        ...

    def on_append_failed(self, partition: Partition) -> None: ...


def waits_for_flush(config: TopicConfig) -> bool:
    """Return whether batches are acknowledged after they are synced. Kafka does that with flush.messages=1."""
    return config.flush_before_ack or config.flush_messages == 1


class Partition:
    """Appends advance the high watermark, which completes waiting requests.

    `fetchers`: entries of fetch sessions to notify of changes. `bytes_in`: bytes appended since this broker opened the
    partition, at `first_offset`. `flush_before_ack`: see `waits_for_flush`.
    """

    __slots__ = (
        "_append_listener",
        "_uncommitted_bytes",
        "_waiting",
        "bytes_in",
        "fetchers",
        "first_offset",
        "flush_before_ack",
        "is_closed",
        "is_flushing",
        "is_internal",
        "is_leader",
        "log",
        "state",
        "tp",
    )

    def __init__(
        self,
        log: Log,
        state: PartitionState,
        append_listener: AppendListener,
        *,
        is_leader: bool = True,
        is_internal: bool = False,
    ) -> None:
        self.tp: TopicPartition = log.tp
        self.log = log
        self.state = state
        self.is_leader = is_leader
        # Whether the topic belongs to a coordinator.
        self.is_internal = is_internal
        # Whether the partition was removed from this broker.
        self.is_closed = False
        self.is_flushing = False
        self.bytes_in = 0
        self.first_offset = log.log_end_offset
        self.flush_before_ack = waits_for_flush(log.config)
        self.fetchers: dict[FetchPartition, None] = {}
        self._append_listener = append_listener
        # Bytes appended since the high watermark last advanced. Fetches can read them when it advances next.
        self._uncommitted_bytes = 0
        # (offset, callback), ordered by offset.
        self._waiting: deque[tuple[int, OnCommitted]] = deque()
        log.update_high_watermark(state.high_watermark)

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
        """min(first offset of an open transaction, high watermark).

        If the first records of the transaction were deleted, it is the log start offset.
        """
        unstable, high_watermark = self.log.producers.transactions.first_unstable_offset, self.state.high_watermark
        if unstable >= high_watermark:
            return high_watermark
        return min(max(unstable, self.log.log_start_offset), high_watermark)

    # Leadership.

    def begin_epoch(self) -> None:
        """Start the current leader epoch at the log end offset."""
        if self.is_leader:
            self.log.assign_leader_epoch(self.state.leader_epoch)

    def apply_registration(self, registration: PartitionRegistration, node_id: int) -> None:
        """Apply a change of the metadata image. This broker (`node_id`) may become the leader or a follower."""
        is_new_epoch = registration.leader_epoch > self.state.leader_epoch
        self.state.update_leader_and_isr(registration.leader_epoch, registration.isr)
        self.is_leader = registration.leader == node_id
        if is_new_epoch:
            self.begin_epoch()
        if not self.is_leader:
            self.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_leader(self, current_epoch: int) -> None:
        """Raise KafkaError if this is not the leader in the epoch that the client knows (KIP-320; -1 for any)."""
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if current_epoch == -1 or current_epoch == self.state.leader_epoch:
            return
        if current_epoch < self.state.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # Appends.

    def append_as_leader(
        self,
        records: memoryview | None,
        acks: int,
        produce_version: int,
        now_ms: int,
        transactional: bool = False,
        guard: VerificationGuard | None = None,
        must_verify: bool = False,
        validated: ValidatedBatch | None = None,
    ) -> tuple[int, int, int]:
        """Validate and append the batch of a client, unless it is a duplicate.

        Returns (base offset, end offset, log append time in ms or -1), those of the original for a duplicate.
        `transactional`: the request has a transactional id. `must_verify`: a batch that begins a transaction is refused
        without the `guard` of its verification. Raises KafkaError, and NeedsSlowValidation: then call again with
        `validated`.
        """
        if self.is_internal:
            # Only coordinators write to internal topics.
            message = f"Cannot append to internal topic {self.tp.topic}"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        log = self.log
        if acks == ACKS_ALL and self.state.is_under_min_isr(log.config.min_insync_replicas):
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        if validated is None:
            validated = validate_batch(records, log.config, now_ms, produce_version, transactional)
        batch, header, append_time_ms = validated
        _, length, _, _, _, _, last_offset_delta, _, _, producer_id, _, _, _ = header
        if producer_id >= 0:
            duplicate = log.producers.check(header, guard, must_verify)
            if duplicate is not None:
                base_offset, last_offset, append_time_ms = duplicate
                return base_offset, last_offset + 1, append_time_ms
        try:
            base_offset = log.append(batch, header, self.state.leader_epoch, now_ms)
        except KafkaError:
            self._append_listener.on_append_failed(self)
            raise
        self._after_append(length + LENGTH_OVERHEAD, now_ms)
        # This may differ from the log end offset: requests completed in _after_append may have appended more.
        return base_offset, base_offset + last_offset_delta + 1, append_time_ms

    def append_internal(self, batch: bytearray, now_ms: int, guard: VerificationGuard | None, verify: bool) -> int:
        """Append a batch of a coordinator. Returns the end offset. Raises KafkaError.

        A transactional batch has a producer id and epoch but no sequence. With `verify` it is refused unless its
        transaction is open here or `guard` belongs to it (ProducerStateManager.begin_verification).
        """
        header = parse_header(batch)
        if header.is_transactional and not header.attributes & CONTROL and header.producer_id >= 0:
            self.log.producers.check_internal(header, guard, verify)
        try:
            base_offset = self.log.append(batch, header, self.state.leader_epoch, now_ms)
        except KafkaError:
            self._append_listener.on_append_failed(self)
            raise
        self._after_append(len(batch), now_ms)
        return base_offset + header.last_offset_delta + 1

    def append_markers(self, batches: list[MarkerBatch], now_ms: int) -> int:
        """Append transaction markers with one write. Returns the first one's offset. Raises KafkaError."""
        try:
            base_offset = self.log.append_markers(batches, self.state.leader_epoch, now_ms)
        except KafkaError:
            self._append_listener.on_append_failed(self)
            raise
        self._after_append(sum([len(batch) for batch, _, _ in batches]), now_ms)
        return base_offset

    def _after_append(self, size: int, now_ms: int) -> None:
        self._uncommitted_bytes += size
        self.bytes_in += size
        self._append_listener.on_append(self, now_ms)
        if not self.flush_before_ack:
            self.advance_high_watermark()

    # The high watermark.

    def advance_high_watermark(self) -> None:
        """Commit the records that all in-sync replicas have, and complete the requests that wait for them.

        With flush.before.ack only synced records count as present on this replica.
        """
        state, log = self.state, self.log
        before = state.high_watermark
        if not state.advance_high_watermark(log.recovery_point if self.flush_before_ack else log.log_end_offset):
            return
        size, self._uncommitted_bytes = self._uncommitted_bytes, 0
        stable_size = None
        if log.producers.transactions.first_unstable_offset != NO_UNSTABLE_OFFSET:
            stable_size = self._advance_last_stable_offset(before)
        waiting = self._waiting
        while waiting and waiting[0][0] <= state.high_watermark:
            waiting.popleft()[1](ErrorCode.NONE)
        if self.fetchers:
            self.notify_fetchers(size, stable_size)

    def _advance_last_stable_offset(self, high_watermark_before: int) -> int:
        """Advance the last stable offset with the high watermark.

        Returns how many bytes have become stable: 0 if the number is unknown, -1 if none have.
        """
        transactions, log = self.log.producers.transactions, self.log
        before = max(min(transactions.first_unstable_offset, high_watermark_before), log.log_start_offset)
        log.update_high_watermark(self.state.high_watermark)
        after = self.last_stable_offset
        return log.bytes_between(before, after) if after > before else -1

    def on_committed(self, offset: int, callback: OnCommitted) -> None:
        """Call back when everything below `offset` is committed, or with the error that prevents it."""
        if self.is_closed:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self.state.high_watermark >= offset:
            callback(ErrorCode.NONE)
        elif self.log.offline is not None:
            callback(ErrorCode.KAFKA_STORAGE_ERROR)
        else:
            waiting = self._waiting
            position = len(waiting)
            # Offsets of appends only grow, but a duplicate waits for the offset of its original.
            while position and waiting[position - 1][0] > offset:
                position -= 1
            waiting.insert(position, (offset, callback))

    def notify_fetchers(self, size: int, stable_size: int | None = None) -> None:
        """Notify the fetch sessions of a change, and waiting fetches of more bytes to read.

        `size`: bytes committed, 0 for another change that must be sent. `stable_size`: bytes that have become stable,
        for fetches of committed records, or -1; None for the same as `size`. A session without a waiting fetch is
        notified once, and again after its next response: idle sessions cost appends nothing.
        """
        if not self.fetchers:
            return
        fetchers, self.fetchers = self.fetchers, {}
        for fetched in fetchers:
            session = fetched.session
            session.ready[fetched] = None
            if session.waiter is not None:
                self.fetchers[fetched] = None
                if stable_size is None or not session.waiter.read_committed:
                    session.waiter.gained(size)
                elif stable_size >= 0:
                    session.waiter.gained(stable_size)

    # Failure and removal.

    def fail_waiting(self, code: ErrorCode) -> None:
        """Fail the waiting requests after a loss of leadership or of the disk: their batches may never be committed."""
        waiting, self._waiting = self._waiting, deque()
        for _, callback in waiting:
            callback(code)
        self.notify_fetchers(0)

    def close(self) -> None:
        """Called when the partition is removed from this broker."""
        self.is_closed = True
        self.is_leader = False
        self.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.fetchers.clear()
