"""The partitions on this broker: API handlers and coordinators append to them through the replica manager.

assigned_partitions.py adds and removes them.
"""

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from kbroker.common import KafkaError, TopicPartition
from kbroker.metadata.image import MetadataImage, TopicImage
from kbroker.replica.delayed_delete_records import DelayedDeleteRecords, DeletedRecords, delete_from_log
from kbroker.replica.fetch.read_filter import ReadView, ReadViews
from kbroker.replica.history.history_manager import HistoryManager
from kbroker.replica.isr_manager import IsrManager
from kbroker.replica.logs.disk_health import WriteHealthMonitor
from kbroker.replica.logs.log_manager import LogManager
from kbroker.replica.logs.partition_maintenance import PartitionMaintenance
from kbroker.replica.partition import ACKS_ALL, Configure, Partition
from kbroker.replica.partition_extensions import AppendResult
from kbroker.replica.partition_high_watermark import OnCommitted
from kbroker.replica.partition_state import NO_REPLICA, select_read_replica
from kbroker.replica.produce.marker_appends import MarkerAppends
from kbroker.replica.produce.produce_response import (
    NO_RECORD_ERRORS,
    DelayedProduce,
    ProduceProgress,
    ProduceResponse,
    UnacknowledgedBatch,
    VerifiedPartitions,
    append_error_result,
    copied_from,
    error_result,
)
from kbroker.replica.produce.slow_validation import AppendMustWait, RecordValidator
from kbroker.runtime.delayed_response import Purgatory
from kbroker.runtime.environment import Environment
from kbroker.runtime.turns import wait_in_turn, yield_if_due
from kbroker.storage.log.log_reads import read_blocking
from kbroker.storage.producers.transactions import TransactionMarker, VerificationGuard
from protocol.errors import ErrorCode
from protocol.fast.current_leader import CurrentLeader, LeaderEndpoint
from protocol.fast.fetch import TopicKey
from protocol.fast.produce import PartitionResult, TopicRecords
from protocol.records.batch import NO_SEQUENCE


class RemovedPartitionTotals:
    """Totals of the partitions that were removed from this broker. With them the metrics never decrease."""

    __slots__ = ("bytes_in", "reassignment_bytes_in", "records_in", "replication_bytes_in")

    def __init__(self) -> None:
        self.records_in = self.bytes_in = self.replication_bytes_in = self.reassignment_bytes_in = 0

    def add(self, partition: Partition) -> None:
        self.records_in += partition.records_in
        self.bytes_in += partition.bytes_in
        self.replication_bytes_in += partition.replication_bytes_in
        self.reassignment_bytes_in += partition.reassignment_bytes_in


class ReplicaManager:
    """`is_rack_aware`: consumers are referred to a follower in their rack (replica.selector.class)."""

    def __init__(
        self,
        environment: Environment,
        node_id: int,
        metadata: MetadataImage,
        logs: LogManager,
        *,
        configure: Configure = lambda partition: None,
        views: ReadViews | None = None,
        is_rack_aware: bool = False,
        may_be_replaced: Callable[[], bool] = lambda: False,
    ) -> None:
        """`configure`: as for a Partition. `may_be_replaced`: whether other brokers may lead this broker's partitions
        without its knowledge."""
        self.node_id = node_id
        self.configure = configure
        self.views = views
        self.is_rack_aware = is_rack_aware
        self.may_be_replaced = may_be_replaced
        self.purgatory = Purgatory(environment)
        self.partitions: dict[TopicPartition, Partition] = {}
        self.logs = logs
        self.write_health = WriteHealthMonitor(environment, logs.path)
        self.maintenance = PartitionMaintenance(environment, self.write_health.on_append_failed)
        logs.use_high_watermarks(self.maintenance.high_watermarks)
        logs.shortages.report_to(self.maintenance.on_out_of_descriptors, self.write_health.on_append_failed)
        self.removed_totals = RemovedPartitionTotals()
        self.isr_manager = IsrManager(environment, node_id, metadata, self.partitions)
        self._markers = MarkerAppends(environment)
        self.record_validator = RecordValidator(environment)
        self.history = HistoryManager(environment)
        self.clock, self._environment = environment.clock, environment
        self._metadata, self.topic_name = metadata, metadata.topic_name
        # By the name and by the id of the topic: requests use either (KIP-516).
        self._partitions_by_topic: dict[TopicKey, dict[int, Partition]] = {}

    # Lookup.

    def get(self, key: TopicKey, index: int) -> Partition | None:
        """Return a partition by its topic's name (str) or id (16 bytes), and its index."""
        partitions = self._partitions_by_topic.get(key)
        return None if partitions is None else partitions.get(index)

    def partitions_of(self, topics: Iterable[TopicKey] | None) -> list[Partition]:
        """Return the partitions of these topics on this broker; of all topics if None."""
        if topics is None:
            return list(self.partitions.values())
        by_topic = self._partitions_by_topic
        return [partition for topic in topics if topic in by_topic for partition in by_topic[topic].values()]

    def leader(self, key: TopicKey, index: int) -> Partition:
        """Return the partition if this broker leads it. Raises KafkaError with the code for the client."""
        partitions = self._partitions_by_topic.get(key)
        partition = None if partitions is None else partitions.get(index)
        if partition is None:
            if (topic := self._topic(key)) is not None and topic.view_of:
                # Its source is not named: the client may not know it.
                text = f"Topic '{topic.name}' is a view without records of its own; use its source."
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
            raise KafkaError(self.missing_error(key, index))
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def find_readable(self, key: TopicKey, index: int) -> tuple[Partition | None, ReadView | None]:
        """Return the partition that consumers read; for a view, the partition of its source, and the view."""
        partition = self.get(key, index)
        if partition is not None or self.views is None:
            return partition, None
        view = self.views.find(key)
        return (None, None) if view is None else (self.get(view.source, index), view)

    def readable_leader(self, key: TopicKey, index: int) -> Partition:
        """Return the partition that consumers read if this broker leads it. Raises KafkaError."""
        partition, _ = self.find_readable(key, index)
        if partition is None or partition.is_retired:
            topic = self._topic(key)
            if partition is not None or (topic is not None and topic.is_removed(index)):
                # After UNKNOWN_TOPIC_OR_PARTITION in ListOffsets librdkafka does not update its metadata: it would
                # report an error every 100 ms for minutes before its group rebalances.
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            raise KafkaError(self.missing_error(key, index))
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def missing_error(self, key: TopicKey, index: int) -> ErrorCode:
        """Return the error code for a partition that is not on this broker."""
        for tp, topic_id in self.maintenance.unopened.items():
            if tp.partition == index and key in (tp.topic, topic_id):
                return ErrorCode.KAFKA_STORAGE_ERROR
        topic = self._topic(key)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID if isinstance(key, bytes) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if 0 <= index < len(topic.partitions):
            # Its replicas are on other brokers: the client should update its metadata.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def preferred_read_replica(self, partition: Partition, rack: str, offset: int, listener: str) -> int:
        """Return the follower from which a consumer should read from `offset` on; -1 for this broker (KIP-392).

        `listener`: the consumer's, which the follower must have.
        """
        if not self.is_rack_aware:
            return NO_REPLICA
        brokers, reachable = self._metadata.brokers, self._metadata.endpoints(listener)
        return select_read_replica(partition.state, rack, offset, brokers, reachable)

    def current_leader(self, key: TopicKey, index: int, listener: str) -> CurrentLeader | None:
        """Return the leader of a partition, as the metadata image has it (KIP-951); None if there is no partition.

        `listener`: the client's, whose endpoint of the leader is returned.
        """
        topic = self._topic(key)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        registration = topic.partitions[index]
        found, endpoint = self._metadata.endpoints(listener).get(registration.leader), None
        if found is not None:
            endpoint = LeaderEndpoint(found.host, found.port, self._metadata.brokers[registration.leader].rack)
        return CurrentLeader(registration.leader, registration.leader_epoch, endpoint)

    def _topic(self, key: TopicKey) -> TopicImage | None:
        topic = self._metadata.topics_by_id.get(key) if isinstance(key, bytes) else self._metadata.topics.get(key)
        return topic and self._metadata.resolve_view(topic)

    # Adding and removing partitions.

    def add(self, partition: Partition) -> None:
        tp = partition.tp
        self.partitions[tp] = partition
        for key in (tp.topic, partition.topic_id):
            self._partitions_by_topic.setdefault(key, {})[tp.partition] = partition

    def hide(self, topic_id: bytes, topic: str) -> list[Partition]:
        """Hide the partitions of a deleted topic from requests, and return them; the caller then removes them."""
        hidden = self._partitions_by_topic.pop(topic_id, {})
        named = self._partitions_by_topic.get(topic)
        if named is not None and all(partition.topic_id == topic_id for partition in named.values()):
            del self._partitions_by_topic[topic]
        return list(hidden.values())

    async def remove(self, partitions: Iterable[Partition], *, at_once: bool) -> None:
        """Remove partitions from this broker. Afterwards nothing writes to their directories any more.

        With `at_once` all are closed before anything else runs: one that is assigned to this broker again meanwhile
        must not follow with the log that is about to be deleted, since its fetches would claim what that log has.
        """
        removed = list(partitions)
        for partition in removed:
            self._close(partition)
            if not at_once:
                yield_if_due()
        for partition in removed:
            await self.maintenance.remove(partition)
            yield_if_due()

    def _close(self, partition: Partition) -> None:
        self.partitions.pop(partition.tp, None)
        for key in (partition.tp.topic, partition.topic_id):
            named = self._partitions_by_topic.get(key, {})
            if named.get(partition.tp.partition) is partition:
                del named[partition.tp.partition]
                if not named:
                    del self._partitions_by_topic[key]
        self.removed_totals.add(partition)
        if not partition.is_closed:
            partition.close()

    # Produce requests.

    def append_records(
        self,
        topics: list[TopicRecords],
        acks: int,
        timeout_ms: int,
        produce_version: int,
        listener: str,
        verified: VerifiedPartitions | None = None,
        progress: ProduceProgress | None = None,
        *,
        in_turn: bool,
    ) -> ProduceResponse | DelayedProduce | Coroutine[Any, Any, ProduceResponse | DelayedProduce]:
        """Append the batches of a Produce request, in order.

        Returns the response; or a DelayedProduce if it has to wait for acknowledgements. If a batch has to wait, for
        example for slow validation, the rest is copied and appended in turns, and a coroutine is returned. `listener`:
        that of the request, with whose endpoints errors name the leader. `verified`: set for a request with a
        transactional id. `progress`: what the rest continues.

        `in_turn`: whether the caller is in a turn. The buffers of the records do not change meanwhile.
        """
        now_ms = self.clock.now_ms()
        transactional = verified is not None
        must_verify = verified is not None and verified.must_verify
        guard = None
        results, response, unacknowledged = progress or (None, [], [])
        for key, partitions in topics:
            if results is None:
                results = []
                if partitions:
                    response.append((key, results))
            for index, records in partitions:
                if in_turn:
                    yield_if_due()
                    now_ms = self.clock.now_ms()
                try:
                    partition = self.leader(key, index)
                    if verified is not None:
                        guard = verified.guard_of((key, index))
                    try:
                        base_offset, end_offset, append_time_ms = partition.append_as_leader(
                            records, acks, produce_version, now_ms, transactional, guard, must_verify
                        )
                    except AppendMustWait as waiting:
                        if not in_turn:
                            rest = copied_from(topics, partitions, len(results))
                            progress = results, response, unacknowledged
                            return self._environment.turns.call(
                                self._append_rest, rest, acks, timeout_ms, produce_version, listener, verified, progress
                            )
                        append = partial(
                            partition.append_as_leader, records, acks, produce_version,
                            transactional=transactional, guard=guard, must_verify=must_verify,
                        )  # fmt: skip
                        base_offset, end_offset, append_time_ms = self._append_after_wait(
                            key, partition, append, waiting
                        )
                except KafkaError as error:
                    results.append(self.error_result(key, index, error, listener))
                else:
                    waits = acks == ACKS_ALL or partition.flush_before_ack
                    if waits and end_offset > partition.state.high_watermark:
                        batch = UnacknowledgedBatch(partition, end_offset, results, len(results), acks == ACKS_ALL)
                        unacknowledged.append(batch)
                    start_offset = partition.log.log_start_offset
                    results.append((index, 0, base_offset, append_time_ms, start_offset, NO_RECORD_ERRORS, None))
            results = None
        if not unacknowledged or acks == 0:
            return response
        deadline_ms = self.clock.mono_ms() + max(timeout_ms, 0)
        return DelayedProduce(
            self.purgatory, deadline_ms, response, unacknowledged, self.current_leader, listener, in_turn
        )

    def _append_rest(
        self,
        topics: list[TopicRecords],
        acks: int,
        timeout_ms: int,
        produce_version: int,
        listener: str,
        verified: VerifiedPartitions | None,
        progress: ProduceProgress,
    ) -> ProduceResponse | DelayedProduce:
        rest = self.append_records(
            topics, acks, timeout_ms, produce_version, listener, verified, progress, in_turn=True
        )
        assert not isinstance(rest, Coroutine)
        return rest

    def _append_after_wait(
        self, key: TopicKey, partition: Partition, append: Callable[..., AppendResult], waiting: AppendMustWait
    ) -> AppendResult:
        """Wait as `waiting` says, in a turn, and append the batch. `append`: Partition.append_as_leader."""
        index = partition.tp.partition
        while True:
            validated = wait_in_turn(waiting.wait(self.record_validator))
            if self.leader(key, index) is not partition:
                # The topic was deleted meanwhile, and perhaps created again, or the leadership has moved.
                raise KafkaError(self.missing_error(key, index))
            try:
                return append(now_ms=self.clock.now_ms(), validated=validated)
            except AppendMustWait as again:
                waiting = again

    def error_result(self, key: TopicKey, index: int, error: KafkaError, listener: str) -> PartitionResult:
        """Return the result of a batch that was not appended."""
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return error_result(index, error.code, self.current_leader(key, index, listener))
        return append_error_result(index, error, self.get(key, index))

    # Appends of coordinators.

    def append_internal(
        self, tp: TopicPartition, batch: bytearray, *, guard: VerificationGuard | None = None, verify: bool = False
    ) -> int:
        """Append a batch to an internal topic. Returns the end offset. Raises KafkaError.

        With `verify` a transactional batch is refused unless its transaction is open here, or `guard` comes from
        `begin_verification` and no transaction of the producer has ended since.
        """
        partition = self.leader(tp.topic, tp.partition)
        return partition.append_internal(batch, self.clock.now_ms(), guard, verify)

    def max_append_bytes(self, tp: TopicPartition) -> int:
        """Return the size of the largest batch that `append_internal` accepts now. Raises KafkaError if none."""
        return self.leader(tp.topic, tp.partition).max_internal_append_bytes()

    def begin_verification(self, tp: TopicPartition, producer_id: int, epoch: int) -> VerificationGuard | None:
        """Begin to verify that an internal partition is part of a transaction. The caller then asks its coordinator.

        Returns the guard for `append_internal`; None if the transaction is open here. Raises KafkaError.
        """
        partition = self.leader(tp.topic, tp.partition)
        return partition.log.producers.begin_verification(producer_id, epoch, NO_SEQUENCE, False)

    def append_marker(self, tp: TopicPartition, marker: TransactionMarker, on_committed: OnCommitted) -> None:
        """Append a transaction marker in the next iteration of the event loop.

        `on_committed` is called when the marker is committed, or with the error: INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED, UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS,
        KAFKA_STORAGE_ERROR.
        """
        partition = self.get(tp.topic, tp.partition)
        if partition is None:
            on_committed(self.missing_error(tp.topic, tp.partition))
        else:
            self._markers.add(partition, marker, on_committed)

    def on_committed(self, tp: TopicPartition, offset: int, callback: OnCommitted) -> None:
        """Call back when the high watermark has reached `offset`, or with the error that prevents it."""
        partition = self.partitions.get(tp)
        if partition is None:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            partition.on_committed(offset, callback)

    def leader_end_offset(self, tp: TopicPartition, leader_epoch: int) -> int:
        """Return the log end offset. Raises KafkaError unless this broker leads the partition in this epoch."""
        partition = self.leader(tp.topic, tp.partition)
        if partition.leader_epoch != leader_epoch:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition.log.log_end_offset

    def read_internal_blocking(self, tp: TopicPartition, offset: int, size: int) -> bytes:
        """Read complete batches from `offset` on, in a thread. Returns b"" at the end of the log."""
        log = self.partitions[tp].log
        if offset >= log.log_end_offset:
            return b""
        return bytes(read_blocking(log, max(offset, log.log_start_offset), size, log.log_end_offset, True))

    def delete_before(self, tp: TopicPartition, offset: int) -> None:
        """Delete the committed records of an internal topic below `offset`. Raises KafkaError."""
        partition = self.leader(tp.topic, tp.partition)
        delete_from_log(partition, min(offset, partition.high_watermark))

    # DeleteRecords and shutdown.

    def delete_records(self, partition: Partition, offset: int) -> None:
        """Delete the records below `offset` (-1: the high watermark). Raises KafkaError.

        They may return after a crash, until `store_log_starts` was called.
        """
        delete_from_log(partition, offset)

    async def store_log_starts(self) -> None:
        """Write the log start offsets of all partitions. Raises KafkaError."""
        try:
            await self.logs.write_checkpoints()
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    async def wait_for_deletion(self, deleted: list[DeletedRecords], timeout_ms: int) -> None:
        """Wait until the live replicas have deleted the records, too. Completes the results."""
        delayed = DelayedDeleteRecords(self.purgatory, deleted, self._metadata.brokers.__contains__)
        delayed.check()
        if delayed.is_done:
            return
        self.purgatory.set(delayed, self.clock.mono_ms() + max(timeout_ms, 0))
        self.isr_manager.add_log_start_listener(delayed.check)
        try:
            await delayed
        finally:
            self.isr_manager.remove_log_start_listener(delayed.check)

    async def stop(self) -> None:
        """Fail the waiting requests, and wait for the syncs in progress."""
        await self.isr_manager.stop()
        self.purgatory.stop()
        for partition in self.partitions.values():
            partition.close()
        self.isr_manager.notify_log_start_listeners()
        await self.maintenance.flusher.wait()
