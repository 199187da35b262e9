"""A partition on this broker.

A leader appends what clients send, and a follower what its leader sends. Both advance the high watermark, which
completes requests that wait. partition_state.py decides when it may advance, isr/isr_manager.py changes the in-sync
replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kbroker.common import Buffer, KafkaError
from kbroker.config.topic_config import TopicConfig
from kbroker.replica.fetch.read_filter import HiddenRanges, ReadFilter
from kbroker.replica.partition_high_watermark import OnCommitted, waits_for_flush
from kbroker.replica.partition_roles import PartitionRoles
from kbroker.replica.partition_state import PartitionState
from kbroker.replica.produce.append_extension import AppendExtension
from kbroker.replica.produce.batch_validation import validate_batch
from kbroker.replica.produce.closing_wait import NeedsClosingDecision
from kbroker.replica.produce.extended_append import append_extended
from kbroker.replica.produce.record_validation import InspectedBatch, ValidatedBatch
from kbroker.replica.quota.throttled_replicas import is_listed
from kbroker.storage.log.log import Log
from kbroker.storage.log.transaction_index import PreparedBatch
from kbroker.storage.producers.transactions import VerificationGuard
from protocol.errors import ErrorCode
from protocol.records.batch import CONTROL, LENGTH_OVERHEAD, BatchHeader, parse_header

__all__ = ["ACKS_ALL", "OnCommitted", "Partition", "waits_for_flush"]

ACKS_ALL = -1


class AppendListener(Protocol):
    """The PartitionMaintenance of the replica manager, which flushes and compacts the logs."""

    def on_append(self, partition: Partition, now_ms: int) -> None:
        """Called after an append. With `flush_before_ack`: sync the log, then call `advance_high_watermark`."""
        ...

    def on_append_failed(self, partition: Partition) -> None: ...


class Partition(PartitionRoles):
    """Appends as the leader, and as a follower.

    `is_internal`: the topic belongs to a coordinator. Appended since this broker opened the partition, at
    `first_offset`: `records_in` and `bytes_in` as the leader, `replication_bytes_in` as a follower;
    `reassignment_bytes_in` is the part of the latter while a reassignment added this replica.
    `is_leader_throttled`, `is_follower_throttled`: the topic lists this replica as throttled (KIP-73).
    `append_extension` replaces the appends of clients. `read_filter` decides which records consumers see.
    `retention_limit` returns the offset below which retention may delete, at a wall-clock time in ms. All are None on
    ordinary topics.
    """

    __slots__ = (
        "_append_listener", "append_extension", "bytes_in", "first_offset", "hidden_ranges", "is_follower_throttled",
        "is_internal", "is_leader_throttled", "read_filter", "reassignment_bytes_in", "records_in",
        "replication_bytes_in", "retention_limit",
    )  # fmt: skip

    def __init__(
        self,
        log: Log,
        state: PartitionState,
        append_listener: AppendListener,
        *,
        is_leader: bool = True,
        is_internal: bool = False,
    ) -> None:
        super().__init__(log, state, is_leader)
        self.is_internal = is_internal
        self.records_in = self.bytes_in = self.replication_bytes_in = self.reassignment_bytes_in = 0
        self.first_offset = log.log_end_offset
        self.read_filter: ReadFilter | None = None
        # None until a fetch through a read filter.
        self.hidden_ranges: HiddenRanges | None = None
        self.append_extension: AppendExtension | None = None
        self.retention_limit: Callable[[int], int] | None = None
        self._append_listener = append_listener
        self._set_replica_config(log.config)

    def set_config(self, config: TopicConfig) -> None:
        """Apply changed configs of the topic."""
        self.log.set_config(config)
        self.flush_before_ack = waits_for_flush(config)
        self._set_replica_config(config)
        self._configure()
        # Waiting requests may no longer have to wait for a sync, or for other replicas.
        self.advance_high_watermark()

    def _set_replica_config(self, config: TopicConfig) -> None:
        state, index = self.state, self.tp.partition
        state.set_min_insync_replicas(config.min_insync_replicas)
        state.set_lag_max_messages(config.replica_lag_max_messages)
        self.is_leader_throttled = is_listed(config.throttled_leaders, index, state.local_id)
        self.is_follower_throttled = is_listed(config.throttled_followers, index, state.local_id)

    def set_min_insync_replicas(self, min_insync_replicas: int) -> None:
        """Apply a changed min.insync.replicas, before the other configs."""
        self.state.set_min_insync_replicas(min_insync_replicas)
        self.advance_high_watermark()

    def stop_waiting_for(self, replica_id: int) -> None:
        """Let the high watermark advance without a follower that is joining the ISR, which now gets no records."""
        follower = self.state.followers.get(replica_id)
        if follower is not None and follower.is_joining:
            follower.is_joining = False
            self.state.update_counted()
            self.advance_high_watermark()

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
        validated: ValidatedBatch | InspectedBatch | None = None,
    ) -> tuple[int, int, int]:
        """Validate and append the batch of a client, unless it is a duplicate.

        Returns (base offset, end offset, log append time in ms or -1), those of the original for a duplicate.
        `transactional`: the request has a transactional id. `must_verify`: a batch that begins a transaction is refused
        without the `guard` of its verification. Raises KafkaError, and AppendMustWait: then call again with
        `validated`.
        """
        if self.is_closing:
            raise NeedsClosingDecision(self, validated)
        if self.is_internal:
            # Only coordinators write to internal topics.
            message = f"Cannot append to internal topic {self.tp.topic}"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        log = self.log
        if acks == ACKS_ALL and self.state.is_under_min_isr:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        if self.append_extension is not None:
            return append_extended(
                self, self.append_extension, records, produce_version, now_ms, transactional, guard, must_verify,
                validated,
            )  # fmt: skip
        if isinstance(validated, InspectedBatch):
            # The topic's configs have changed meanwhile.
            validated = validated.validated
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
        self._after_append(last_offset_delta + 1, length + LENGTH_OVERHEAD, now_ms)
        # This may differ from the log end offset: requests completed in _after_append may have appended more.
        return base_offset, base_offset + last_offset_delta + 1, append_time_ms

    def append_internal(
        self,
        batch: bytearray,
        now_ms: int,
        guard: VerificationGuard | None = None,
        verify: bool = False,
        *,
        any_size: bool = False,
    ) -> int:
        """Append a batch of the broker itself, which waits for its commit (acks=all). Returns the end offset.

        Raises KafkaError. A transactional batch has a producer id and epoch but no sequence. With `verify` it is
        refused unless its transaction is open here or `guard` belongs to it (ProducerStateManager.begin_verification).
        Unless `any_size`, it is refused if it exceeds segment.bytes.
        """
        if self.state.is_under_min_isr:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        header = parse_header(batch)
        if header.is_transactional and not header.attributes & CONTROL and header.producer_id >= 0:
            self.log.producers.check_internal(header, guard, verify)
        try:
            base_offset = self.log.append(batch, header, self.state.leader_epoch, now_ms, any_size=any_size)
        except KafkaError:
            self._append_listener.on_append_failed(self)
            raise
        self._after_append(header.last_offset_delta + 1, len(batch), now_ms)
        return base_offset + header.last_offset_delta + 1

    def append_markers(self, batches: list[PreparedBatch], now_ms: int) -> int:
        """Append transaction markers with one write. Returns the first one's offset. Raises KafkaError."""
        base_offset = self.append_batches(batches, now_ms)
        if self.append_extension is not None:
            self.append_extension.on_markers(self, batches, base_offset)
        return base_offset

    def append_batches(self, batches: list[PreparedBatch], now_ms: int) -> int:
        """Append validated batches with one write, as the leader. Returns the first one's base offset.

        Raises KafkaError; for segment.bytes they count as one batch.
        """
        try:
            base_offset = self.log.append_batches(batches, self.state.leader_epoch, now_ms)
        except KafkaError:
            self._append_listener.on_append_failed(self)
            raise
        records = sum([header.last_offset_delta + 1 for _, header, _ in batches])
        self._after_append(records, sum([len(batch) for batch, _, _ in batches]), now_ms)
        return base_offset

    def _after_append(self, records: int, size: int, now_ms: int) -> None:
        self._uncommitted_bytes += size
        self.records_in += records
        self.bytes_in += size
        self._append_listener.on_append(self, now_ms)
        if self.state.followers:
            self._notify_replicas(size)
        if not self.flush_before_ack:
            self._advance_to(self.log.log_end_offset)

    def append_as_follower(
        self,
        records: Buffer,
        headers: Sequence[BatchHeader],
        leader_high_watermark: int,
        leader_log_start: int,
        now_ms: int,
    ) -> int:
        """Append a run of the leader's batches, which may be empty, and adopt its offsets. Returns the log end offset.

        Raises KafkaError: NOT_LEADER_OR_FOLLOWER on a leader, KAFKA_STORAGE_ERROR.
        """
        if self.is_leader or self.is_closed or self._is_truncating:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = self.log
        if headers:
            end_offset_before = log.log_end_offset
            try:
                log.append_as_follower(records, headers, now_ms)
            except KafkaError:
                if log.log_end_offset > end_offset_before:
                    # The first batches were written, and must be synced like any others.
                    self._append_listener.on_append(self, now_ms)
                self._append_listener.on_append_failed(self)
                raise
            self._uncommitted_bytes += len(records)
            self.replication_bytes_in += len(records)
            if self.state.local_id in self.adding_replicas:
                self.reassignment_bytes_in += len(records)
            self._append_listener.on_append(self, now_ms)
        # The high watermark of a new leader may be lower for some time; this replica's does not go back.
        self._advance_to(min(leader_high_watermark, log.log_end_offset))
        if leader_log_start > log.log_start_offset:
            log.delete_records(min(leader_log_start, self.state.high_watermark))
            self.notify_fetchers(0)
        return log.log_end_offset
