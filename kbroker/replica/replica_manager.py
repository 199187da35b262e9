"""The partitions that this broker holds, and what is done to them by those who use them.

Handlers append and read through it; coordinators write their internal topics through it; housekeeping works on its
logs. Which partitions there are is the business of assignments.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import Buffer, KafkaError, TopicPartition
from kbroker.replica.logs.dirty_partitions import DirtyPartitions
from kbroker.replica.logs.log_manager import LogManager
from kbroker.replica.partition import Committed, Partition
from kbroker.replica.produce.batch_validation import validate
from kbroker.replica.produce.marker_batching import Done, MarkerBatcher
from kbroker.replica.produce.record_validation import Unfinished, Validated
from kbroker.replica.produce.validation_queue import ValidationQueue
from kbroker.replica.purgatory import DelayedOperation, Purgatory
from kbroker.storage.log.control_batches import MarkerBatch
from kbroker.storage.producers.transaction_marker import TransactionMarker
from kbroker.storage.producers.verification import VerificationGuard
from protocol.errors import ErrorCode
from protocol.fast.fetch import TopicKey
from protocol.records.batch import CONTROL, NO_SEQUENCE, TRANSACTIONAL, BatchHeader, parse_header

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from kbroker.metadata.image import MetadataImage
    from kbroker.runtime.environment import Environment

ACKS_ALL = -1


class AppendResult(NamedTuple):
    """Where a produced batch went. `settled`: acknowledged already, nothing to wait for."""

    partition: Partition
    base_offset: int
    end_offset: int
    append_time_ms: int
    log_start_offset: int
    settled: bool


class RemovedPartitionTotals:
    """What the partitions that have left this broker had taken."""

    __slots__ = ("bytes_in", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes_in = 0

    def add(self, partition: Partition) -> None:
        self.messages += partition.log.log_end_offset - partition.first_offset
        self.bytes_in += partition.bytes_in


class ReplicaManager:
    """Partitions by name and by topic id, and the purgatory of the requests that wait on them."""

    def __init__(self, environment: Environment, node_id: int, metadata: MetadataImage, logs: LogManager) -> None:
        self.node_id = node_id
        self.purgatory = Purgatory()
        self.partitions: dict[TopicPartition, Partition] = {}
        self.logs = logs
        self.upkeep = DirtyPartitions(environment)
        self.departed = RemovedPartitionTotals()
        self.lane = ValidationQueue(environment)
        self._markers = MarkerBatcher(environment, self._append_markers)
        self._environment = environment
        self._metadata = metadata
        # Both a topic's name and its id lead to its partitions: requests use either (KIP-516).
        self._topics: dict[TopicKey, dict[int, Partition]] = {}
        self._timer: TimerHandle | None = None
        self._timer_ms = 0

    # Lookup.

    def find(self, key: TopicKey, index: int) -> Partition | None:
        """By topic name (str) or topic id (bytes of 16)."""
        found = self._topics.get(key)
        return found.get(index) if found is not None else None

    def get(self, topic: str, index: int) -> Partition | None:
        return self.find(topic, index)

    def leader(self, key: TopicKey, index: int) -> Partition:
        """The partition, led by this broker; raises KafkaError with the code for the client."""
        partition = self.find(key, index)
        if partition is None:
            raise KafkaError(self.absence(key, index))
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def absence(self, key: TopicKey, index: int) -> ErrorCode:
        """What to say of a partition that was not found."""
        for tp, topic_id in self.upkeep.missing.items():
            if tp.partition == index and key in (tp.topic, topic_id):
                return ErrorCode.KAFKA_STORAGE_ERROR
        unknown_id = isinstance(key, bytes) and key not in self._metadata.topics_by_id
        return ErrorCode.UNKNOWN_TOPIC_ID if unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    # What is here.

    def add(self, partition: Partition) -> None:
        """It is found from now on."""
        tp = partition.tp
        self.partitions[tp] = partition
        for key in (tp.topic, partition.topic_id):
            self._topics.setdefault(key, {})[tp.partition] = partition

    def hide(self, topic_id: bytes, topic: str) -> list[Partition]:
        """The topic is deleted: requests do not find its partitions any more. Gives them, to be removed."""
        hidden = self._topics.pop(topic_id, {})
        if self._topics.get(topic) is not None and all(p.topic_id == topic_id for p in self._topics[topic].values()):
            del self._topics[topic]
        return list(hidden.values())

    async def remove(self, partition: Partition) -> None:
        """It leaves this broker. Afterwards nothing is under way that writes into its directory."""
        self.partitions.pop(partition.tp, None)
        self.departed.add(partition)
        partition.close()
        await self.upkeep.forget(partition)

    # Appends.

    def append(
        self,
        key: TopicKey,
        index: int,
        records: memoryview | None,
        acks: int,
        version: int,
        now_ms: int,
        validated: Validated | None = None,
        *,
        transactional_id: str | None = None,
        guard: VerificationGuard | None = None,
    ) -> AppendResult:
        """Append what a client produced; the buffer is only used during the call. Raises KafkaError, and Unfinished
        for what `append_later` takes. `validated`: it has been looked into already. Without a `transactional_id` there
        may be no transactional batches; `guard`: under which it was verified that this one may begin its transaction
        here (Partition.begin_verification).

        Internal topics are their coordinators', as in Kafka.
        """
        topic = self._topics.get(key)
        partition = topic.get(index) if topic is not None else None
        if partition is None or not partition.is_leader:
            partition = self.leader(key, index)
        if partition.internal:
            message = f"Cannot append to internal topic {partition.tp.topic}"
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
        log = partition.log
        if acks == ACKS_ALL and not partition.state.enough_in_sync(log.config.min_insync_replicas):
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        if validated is None:
            validated = validate(records, log.config, now_ms, version, transactional_id is not None)
        batch, header, append_time_ms = validated
        if header[9] < 0:
            duplicate = None
        elif header[5] & TRANSACTIONAL:
            duplicate = log.producers.check(header, guard, self.logs.verify_transactions())
        else:
            duplicate = log.producers.check(header)
        if duplicate is not None:
            base_offset, last_offset, append_time_ms = duplicate
            end_offset = last_offset + 1
        else:
            base_offset = self._append(partition, batch, header, now_ms)
            # Not the log end offset: whoever waited for this append may have appended more already.
            end_offset = base_offset + header[6] + 1
        settled = partition.state.high_watermark >= end_offset or (acks != ACKS_ALL and not partition.flush_before_ack)
        return AppendResult(partition, base_offset, end_offset, append_time_ms, log.log_start_offset, settled)

    async def append_later(
        self,
        key: TopicKey,
        index: int,
        unfinished: Unfinished,
        acks: int,
        version: int,
        *,
        transactional_id: str | None = None,
        guard: VerificationGuard | None = None,
    ) -> AppendResult:
        """As `append`, for a batch that takes long to look into."""
        partition = self.find(key, index)
        job = self.lane.take(unfinished)
        validated = await job.done
        if self.find(key, index) is not partition:
            # It was deleted meanwhile, and perhaps made anew with other configs.
            raise KafkaError(self.absence(key, index))
        now_ms = self._environment.clock.now_ms()
        return self.append(
            key, index, None, acks, version, now_ms, validated, transactional_id=transactional_id, guard=guard
        )

    def _append(self, partition: Partition, batch: Buffer, header: BatchHeader, now_ms: int) -> int:
        """Gives the base offset."""
        log = partition.log
        try:
            base_offset = partition.append(batch, header, now_ms)
        except KafkaError:
            self.upkeep.append_failed(partition)
            raise
        times = self.upkeep.dirty.get(partition)
        if times is None or log.log_end_offset - log.recovery_point >= log.config.flush_messages:
            self.upkeep.note_appended(partition, now_ms)
        else:
            times[1] = now_ms
        return base_offset

    def append_internal(
        self, tp: TopicPartition, batch: bytearray, *, guard: VerificationGuard | None = None, verify: bool = False
    ) -> int:
        """Append a batch that a coordinator built; gives the log end offset. Raises KafkaError.

        A transactional one has a producer id and epoch and no sequence. With `verify` it is refused unless its
        transaction is open here, or `guard` is what `begin_verification` gave and nothing has ended since.
        """
        partition = self.leader(tp.topic, tp.partition)
        now_ms = self._environment.clock.now_ms()
        header = parse_header(batch, 0)
        if header[5] & TRANSACTIONAL and not header[5] & CONTROL and header[9] >= 0:
            partition.log.producers.check_internal(header, guard, verify)
        return self._append(partition, batch, header, now_ms) + header.last_offset_delta + 1

    def begin_verification(self, tp: TopicPartition, producer_id: int, epoch: int) -> VerificationGuard | None:
        """For a coordinator that is about to write what belongs to a transaction: taken before it is verified that the
        partition is part of it, shown to `append_internal`. None if the transaction is open here. Raises KafkaError."""
        partition = self.leader(tp.topic, tp.partition)
        return partition.log.producers.begin_verification(producer_id, epoch, NO_SEQUENCE, False)

    def append_marker(self, tp: TopicPartition, marker: TransactionMarker, done: Done) -> None:
        """Append the end of a transaction to one of this broker's partitions, internal ones too.

        `done` is told when the high watermark has passed it, or why it never will: INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS,
        KAFKA_STORAGE_ERROR. What is asked for in one turn of the loop shares an append.
        """
        partition = self.find(tp.topic, tp.partition)
        if partition is None:
            done(self.absence(tp.topic, tp.partition))
        else:
            self._markers.write(partition, marker, done)

    def _append_markers(self, partition: Partition, batches: list[MarkerBatch], now_ms: int) -> int:
        try:
            offset = partition.append_markers(batches, now_ms)
        except KafkaError:
            self.upkeep.append_failed(partition)
            raise
        self.upkeep.note_appended(partition, now_ms)
        return offset

    def on_committed(self, tp: TopicPartition, offset: int, callback: Committed) -> None:
        """Call back when the high watermark has reached `offset`, or with the reason why it never will."""
        partition = self.partitions.get(tp)
        if partition is None:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            partition.on_committed(offset, callback)

    def read_internal_blocking(self, tp: TopicPartition, offset: int, size: int) -> bytes:
        """Whole batches from `offset` on, for a coordinator that loads; b"" at the end. Runs in a thread."""
        log = self.partitions[tp].log
        if offset >= log.log_end_offset:
            return b""
        return bytes(log.read_blocking(max(offset, log.log_start_offset), size, log.log_end_offset, True))

    async def delete_records(self, partition: Partition, offset: int) -> int:
        """Delete what lies below `offset` (-1: the high watermark); gives the new log start offset.

        Raises KafkaError.
        """
        if partition.log.offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, partition.log.offline)
        high_watermark = partition.high_watermark
        if offset == -1:
            offset = high_watermark
        if not 0 <= offset <= high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset > partition.log.log_start_offset:
            partition.log.delete_records(offset)
            partition.wake(0)
        # Also when it was deleted before: who asked first may have been told that it could not be written down.
        try:
            await self.logs.write_checkpoints()
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return partition.log.log_start_offset

    # Waiting.

    def watch(self, operation: DelayedOperation) -> None:
        """Let a request wait until it completes itself or its deadline passes."""
        self.purgatory.watch(operation)
        if self._timer is None or operation.deadline_ms < self._timer_ms:
            self._arm(operation.deadline_ms)

    def _arm(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(0, deadline_ms - self._environment.clock.mono_ms())
        self._timer_ms = deadline_ms
        self._timer = self._environment.loop.call_later(delay_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.purgatory.expire(self._environment.clock.mono_ms())
        deadline_ms = self.purgatory.next_deadline_ms()
        # Those that expired may have been followed by others, which have set the timer.
        if deadline_ms is not None and (self._timer is None or deadline_ms < self._timer_ms):
            self._arm(deadline_ms)

    async def stop(self) -> None:
        """Fail what waits, and let the syncs that are under way end."""
        if self._timer is not None:
            self._timer.cancel()
        for partition in self.partitions.values():
            partition.close()
        await self.upkeep.flushed()
