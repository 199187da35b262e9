"""A partition on this broker: it leads the partition, or it follows the leader.

A leader appends what clients send, and a follower what its leader sends. Both advance the high watermark, which
completes requests that wait. partition_state.py decides when it may advance, isr_manager.py changes the in-sync
replicas.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from kbroker.common import NO_LEADER, Buffer, KafkaError
from kbroker.config.topic_config import TopicConfig
from kbroker.metadata.image import Forwarding, PartitionRegistration, is_retired
from kbroker.replica.fetch.read_filter import HiddenRanges, ReadFilter
from kbroker.replica.partition_extensions import AppendExtension, AppendResult, wait_until_decided, wait_until_loaded
from kbroker.replica.partition_high_watermark import PartitionHighWatermark, waits_for_flush
from kbroker.replica.partition_state import PartitionState, is_listed
from kbroker.replica.produce.batch_validation import validate_batch
from kbroker.replica.produce.record_rules import InspectedBatch, ValidatedBatch, invalid_record
from kbroker.replica.produce.slow_validation import inspect_small
from kbroker.storage.log.log import Log
from kbroker.storage.log.transaction_index import PreparedBatch
from kbroker.storage.producers.transactions import VerificationGuard
from kbroker.storage.recovery.truncation import truncate_fully_and_start_at, truncate_to
from protocol.errors import ErrorCode
from protocol.records.batch import CONTROL, LENGTH_OVERHEAD, BatchHeader, parse_header

ACKS_ALL = -1


class PartitionListener(Protocol):
    """The PartitionMaintenance of the replica manager, which flushes and compacts the logs."""

    @property
    def mono_ms(self) -> Callable[[], int]: ...

    def on_append(self, partition: Partition, now_ms: int) -> None:
        """Called after an append. With `flush_before_ack`: sync the log, then call `advance_high_watermark`."""
        ...

    def on_append_failed(self, partition: Partition) -> None: ...


# Sets the append extension and the read filter of a partition, as its topic's configs and its role require. Called when
# the partition is added, before it has a role; after each change of its topic's configs; when it begins a leader epoch,
# before any append; when it no longer leads; and when it was closed.
Configure = Callable[["Partition"], None]


class Partition(PartitionHighWatermark):
    """`is_internal`: the topic belongs to a coordinator. Appended since this broker opened the partition, at
    `first_offset`: `records_in` and `bytes_in` as the leader, `replication_bytes_in` as a follower;
    `reassignment_bytes_in` is the part of the latter while a reassignment added this replica.

    `has_leader`: on a follower, whether the partition has a leader, as far as this broker knows. A follower without one
    does not serve consumers. `adding_replicas`: the replicas that a reassignment adds. `forwarding`: the leader
    forwards records to another partition.
    `is_leader_throttled`, `is_follower_throttled`: the topic lists this replica as throttled (KIP-73).

    `append_extension` replaces the appends of clients. `read_filter` decides which records consumers see.
    `retention_limit` returns the offset below which retention may delete, at a wall-clock time in ms. All are None on
    ordinary topics; `configure` sets them.
    """

    __slots__ = (
        "_configure", "_deferred_role", "_is_truncating", "_listener", "adding_replicas", "append_extension",
        "bytes_in", "first_offset", "forwarding", "has_leader", "hidden_ranges",
        "is_follower_throttled", "is_internal", "is_leader_throttled", "is_retired", "read_filter",
        "reassignment_bytes_in", "records_in", "replication_bytes_in", "retention_limit",
    )  # fmt: skip

    def __init__(
        self,
        log: Log,
        state: PartitionState,
        listener: PartitionListener,
        *,
        is_leader: bool = True,
        is_internal: bool = False,
        configure: Configure = lambda partition: None,
    ) -> None:
        super().__init__(log, state, listener.mono_ms, is_leader)
        self._listener = listener
        self.is_internal = is_internal
        self.records_in = self.bytes_in = self.replication_bytes_in = self.reassignment_bytes_in = 0
        self.first_offset = log.log_end_offset
        self.adding_replicas: Sequence[int] = ()
        self.is_retired = False
        self.forwarding: Forwarding | None = None
        self._is_truncating = False
        self.has_leader = False
        # A change of the metadata image during a truncation. It is applied afterwards.
        self._deferred_role: tuple[PartitionRegistration, int, int] | None = None
        self.read_filter: ReadFilter | None = None
        # None until a fetch through a read filter.
        self.hidden_ranges: HiddenRanges | None = None
        self.append_extension: AppendExtension | None = None
        self.retention_limit: Callable[[int], int] | None = None
        self._set_replica_config(log.config)
        self._configure = configure
        configure(self)

    def set_config(self, config: TopicConfig) -> None:
        """Apply changed configs of the topic."""
        self.log.set_config(config)
        self.flush_before_ack = waits_for_flush(config)
        self._set_replica_config(config)
        self._configure(self)
        # Waiting requests may no longer have to wait for a sync, or for other replicas.
        self.advance_high_watermark()

    def _set_replica_config(self, config: TopicConfig) -> None:
        state, index = self.state, self.tp.partition
        state.set_min_insync_replicas(config.min_insync_replicas)
        state.set_lag_max_messages(config.replica_lag_max_messages)
        self.is_leader_throttled = is_listed(config.throttled_leaders, index, state.local_id)
        self.is_follower_throttled = is_listed(config.throttled_followers, index, state.local_id)

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
    ) -> AppendResult:
        """Validate and append the batch of a client, unless it is a duplicate.

        Returns (base offset, end offset, log append time in ms or -1), those of the original for a duplicate.
        `transactional`: the request has a transactional id. `must_verify`: a batch that begins a transaction is refused
        without the `guard` of its verification. Raises KafkaError, and AppendMustWait: then call again with
        `validated`.
        """
        if self.is_closing:
            raise wait_until_decided(self, validated)
        if self.is_internal:
            # Only coordinators write to internal topics.
            message = f"Cannot append to internal topic {self.tp.topic}"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        log = self.log
        if acks == ACKS_ALL and self.state.is_under_min_isr:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        extension = self.append_extension
        if extension is not None and not extension.is_ready:
            raise wait_until_loaded(extension, validated)
        if validated is None:
            validated = validate_batch(records, log.config, now_ms, produce_version, transactional)
        if extension is not None:
            return self._append_extended(extension, validated, guard, must_verify, now_ms)
        if isinstance(validated, InspectedBatch):
            # The topic's configs have changed meanwhile.
            validated = validated.validated
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
            self._listener.on_append_failed(self)
            raise
        self._after_append(last_offset_delta + 1, length + LENGTH_OVERHEAD, now_ms)
        # This may differ from the log end offset: requests completed in _after_append may have appended more.
        return base_offset, base_offset + last_offset_delta + 1, append_time_ms

    def _append_extended(
        self,
        extension: AppendExtension,
        validated: ValidatedBatch | InspectedBatch,
        guard: VerificationGuard | None,
        must_verify: bool,
        now_ms: int,
    ) -> AppendResult:
        """Inspect the batch of a client, and let the extension append it."""
        if isinstance(validated, InspectedBatch) and validated.inspect != extension.inspect:
            # The topic's configs have changed meanwhile: inspect the batch again.
            validated = validated.validated
        if not isinstance(validated, InspectedBatch):
            if validated[1].is_hidden:
                raise invalid_record("Clients are not allowed to write hidden batches.")
            validated = inspect_small(validated, extension.inspect, self.log.config)
        header, stored = validated.validated[1], None
        if header.producer_id >= 0:
            duplicate = self.log.producers.check(header, guard, must_verify)
            if duplicate is not None:
                base_offset, last_offset, append_time_ms = duplicate
                stored = base_offset, last_offset + 1, append_time_ms
        return extension.append(validated, stored, now_ms)

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
            self._listener.on_append_failed(self)
            raise
        self._after_append(header.last_offset_delta + 1, len(batch), now_ms)
        return base_offset + header.last_offset_delta + 1

    def max_internal_append_bytes(self) -> int:
        """Return the size of the largest batch for `append_internal`, if it accepts any now. Raises KafkaError."""
        if self.state.is_under_min_isr:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        if self.log.health.append_error is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.log.health.append_error)
        return min(self.log.config.max_message_bytes, self.log.config.segment_bytes)

    def append_markers(self, batches: list[PreparedBatch], now_ms: int) -> int:
        """Append transaction markers with one write. Returns the first one's offset. Raises KafkaError."""
        base_offset = self.append_batches(batches, now_ms)
        if self.append_extension is not None:
            self.append_extension.on_markers(batches, base_offset)
        return base_offset

    def append_batches(self, batches: list[PreparedBatch], now_ms: int) -> int:
        """Append validated batches with one write, as the leader. Returns the first one's base offset.

        Raises KafkaError; for segment.bytes they count as one batch.
        """
        try:
            base_offset = self.log.append_batches(batches, self.state.leader_epoch, now_ms)
        except KafkaError:
            self._listener.on_append_failed(self)
            raise
        records = sum([header.last_offset_delta + 1 for _, header, _ in batches])
        self._after_append(records, sum([len(batch) for batch, _, _ in batches]), now_ms)
        return base_offset

    def _after_append(self, records: int, size: int, now_ms: int) -> None:
        self._uncommitted_bytes += size
        self.records_in += records
        self.bytes_in += size
        self._listener.on_append(self, now_ms)
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
                    self._listener.on_append(self, now_ms)
                self._listener.on_append_failed(self)
                raise
            self._uncommitted_bytes += len(records)
            self.replication_bytes_in += len(records)
            if self.state.local_id in self.adding_replicas:
                self.reassignment_bytes_in += len(records)
            self._listener.on_append(self, now_ms)
        # The high watermark of a new leader may be lower for some time; this replica's does not go back.
        self._advance_to(min(leader_high_watermark, log.log_end_offset))
        if leader_log_start > log.log_start_offset:
            log.delete_records(min(leader_log_start, self.state.high_watermark))
            self.notify_fetchers(0)
        return log.log_end_offset

    # Leadership.

    def begin_epoch(self) -> None:
        """Start the current leader epoch at the log end offset."""
        if self.is_leader:
            self.log.assign_leader_epoch(self.state.leader_epoch)

    def apply_registration(self, registration: PartitionRegistration, node_id: int, now_ms: int) -> None:
        """Apply a change of the metadata image: this broker (`node_id`) becomes or stays the leader or a follower.

        `now_ms` is monotonic. During a truncation the change is deferred until its end.
        """
        self.adding_replicas = registration.adding_replicas
        # Before the role: nothing may be appended in the leader epoch that closes the partition.
        self.is_closing = registration.is_closing
        self.forwarding = registration.forwarding
        if self.is_retired != is_retired(registration):
            self.is_retired = not self.is_retired
            self.notify_fetchers(0)
        if self._is_truncating:
            self._deferred_role = (registration, node_id, now_ms)
        elif registration.leader == node_id:
            self.become_leader(registration, now_ms)
        else:
            self.become_follower(registration)
        if not self.is_closing:
            self._call_closing_listeners()

    def become_leader(self, registration: PartitionRegistration, now_ms: int) -> None:
        """Lead a new epoch, or apply a newer ISR of the current one. `now_ms` is monotonic.

        After `resign` only a new epoch makes the broker a leader again.
        """
        state = self.state
        if registration.leader_epoch > state.leader_epoch:
            state.partition_epoch = registration.partition_epoch
            state.begin_leader_epoch(
                registration.leader_epoch, registration.replicas, registration.isr, self.log.log_end_offset, now_ms
            )
            self.is_leader = True
            self.begin_epoch()
            self._configure(self)
            # Sessions fetch again with the new epoch.
            self.notify_all()
        elif self.is_leader and registration.partition_epoch > state.partition_epoch:
            state.partition_epoch = registration.partition_epoch
            state.update_replicas_and_isr(registration.replicas, registration.isr)
        else:
            return
        # A smaller ISR may commit records (KAFKA-13091).
        self.advance_high_watermark()

    def become_follower(self, registration: PartitionRegistration) -> None:
        """Follow the leader of the registration, if it has one. Waiting requests fail with NOT_LEADER_OR_FOLLOWER."""
        state = self.state
        if (registration.leader_epoch, registration.partition_epoch) <= (state.leader_epoch, state.partition_epoch):
            return
        state.partition_epoch = registration.partition_epoch
        state.begin_follower_epoch(registration.leader_epoch, registration.replicas, registration.isr)
        self.has_leader = registration.leader != NO_LEADER
        self._stop_leading()

    def resign(self) -> None:
        """Become a follower without a leader, because this broker's session has ended. The leader epoch stays."""
        state = self.state
        self._deferred_role = None
        state.begin_follower_epoch(state.leader_epoch, state.replicas, state.isr)
        self.has_leader = False
        self._stop_leading()

    def _stop_leading(self) -> None:
        self.is_leader = False
        self._configure(self)
        self.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._call_closing_listeners()

    def close(self) -> None:
        """Called when the partition is removed from this broker."""
        super().close()
        self._configure(self)
        self._call_closing_listeners()

    def check_leader(self, current_epoch: int) -> None:
        """Raise KafkaError if this is not the leader in the epoch that the client knows (KIP-320; -1 for any)."""
        self.check_epoch(current_epoch)
        if not self.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_epoch(self, current_epoch: int) -> None:
        """Raise KafkaError if the client knows another leader epoch than this broker (KIP-320; -1 for any)."""
        if current_epoch == -1 or current_epoch == self.state.leader_epoch:
            return
        if current_epoch < self.state.leader_epoch:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # Replication.

    async def follower_truncate(self, offset: int) -> None:
        """Remove the records from `offset` on. Changes of the metadata image apply afterwards."""
        await self._truncate(offset, truncate_to(self.log, offset))

    async def follower_restart_at(self, offset: int) -> None:
        """Remove all records, and continue at `offset`: the leader has deleted what is missing."""
        await self._truncate(offset, truncate_fully_and_start_at(self.log, offset))

    async def _truncate(self, offset: int, truncation: Awaitable[None]) -> None:
        self._is_truncating = True
        try:
            # Before the records disappear.
            self.state.high_watermark = min(self.state.high_watermark, offset)
            await truncation
        finally:
            # A cancelled caller does not stop the truncation.
            self.log.when_truncated(self._on_truncated)

    def _on_truncated(self) -> None:
        state, log = self.state, self.log
        state.high_watermark = max(min(state.high_watermark, log.log_end_offset), log.log_start_offset)
        self._uncommitted_bytes = 0
        log.update_high_watermark(state.high_watermark)
        self._is_truncating = False
        deferred, self._deferred_role = self._deferred_role, None
        if deferred is not None and not self.is_closed:
            self.apply_registration(*deferred)
