"""The partitions that this broker holds, and everything that is done to them.

It follows the metadata image: creates, opens and deletes logs as topics come and go. Handlers append and read
through it; coordinators write their internal topics through it; housekeeping works on its logs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from kbroker.model import KafkaError, TopicPartition
from kbroker.replica.logs import LogDirectory
from kbroker.replica.partition import Committed, Partition, acknowledged_by_sync
from kbroker.replica.validation import validate
from kbroker.state.partition import PartitionState
from kbroker.state.purgatory import Operation, Purgatory
from protocol.errors import ErrorCode
from protocol.fetch_wire import TopicKey
from protocol.records.batch import parse_header

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from kbroker.cluster.image import MetadataDelta, MetadataImage, PartitionImage
    from kbroker.storage.log import Log
    from kbroker.world import World

ACKS_ALL = -1


class Appended(NamedTuple):
    """Where a produced batch went. `settled`: acknowledged already, nothing to wait for."""

    partition: Partition
    base_offset: int
    end_offset: int
    append_time_ms: int
    log_start_offset: int
    settled: bool


class ReplicaManager:
    """Partitions by name and by topic id, and the purgatory of the requests that wait on them."""

    def __init__(self, world: World, node_id: int, metadata: MetadataImage, logs: LogDirectory) -> None:
        self.node_id = node_id
        self.purgatory = Purgatory()
        self.partitions: dict[TopicPartition, Partition] = {}
        self.logs = logs
        # Partitions with unsynced data: [first append, last append] since the last sync, in wall-clock ms.
        self.dirty: dict[Partition, list[int]] = {}
        self._world = world
        self._metadata = metadata
        # Both a topic's name and its id lead to its partitions: requests use either (KIP-516).
        self._topics: dict[TopicKey, dict[int, Partition]] = {}
        self._timer: TimerHandle | None = None
        self._timer_ms = 0
        self._flushes: set[Awaitable[None]] = set()

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
            by_id = isinstance(key, bytes)
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    # Appends.

    def append(
        self, key: TopicKey, index: int, records: memoryview | None, acks: int, version: int, now_ms: int
    ) -> Appended:
        """Append what a client produced; the buffer is only used during the call. Raises KafkaError."""
        topic = self._topics.get(key)
        partition = topic.get(index) if topic is not None else None
        if partition is None or not partition.is_leader:
            partition = self.leader(key, index)
        log = partition.log
        if acks == ACKS_ALL and not partition.state.enough_in_sync(log.config.min_insync_replicas):
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        batch, header, append_time_ms = validate(records, log.config, now_ms, produce_version=version)
        duplicate = log.producers.check(header) if header[9] >= 0 else None
        if duplicate is not None:
            base_offset, last_offset, append_time_ms = duplicate
            end_offset = last_offset + 1
        else:
            base_offset = partition.append(batch, header, now_ms)
            end_offset = log.log_end_offset
            self._note_dirty(partition, now_ms)
        settled = partition.state.high_watermark >= end_offset or (acks != ACKS_ALL and not partition.flush_before_ack)
        return Appended(partition, base_offset, end_offset, append_time_ms, log.log_start_offset, settled)

    def _note_dirty(self, partition: Partition, now_ms: int) -> None:
        times = self.dirty.get(partition)
        if times is None:
            self.dirty[partition] = [now_ms, now_ms]
        else:
            times[1] = now_ms
        log = partition.log
        if log.log_end_offset - log.recovery_point >= log.config.flush_messages:
            self.request_flush(partition)

    def append_internal(self, tp: TopicPartition, batch: bytearray) -> int:
        """Append a batch that a coordinator built; gives the log end offset. Raises KafkaError."""
        partition = self.leader(tp.topic, tp.partition)
        now_ms = self._world.clock.now_ms()
        partition.append(batch, parse_header(batch, 0), now_ms)
        self._note_dirty(partition, now_ms)
        return partition.log.log_end_offset

    def on_committed(self, tp: TopicPartition, offset: int, callback: Committed) -> None:
        """Call back when the high watermark has reached `offset`, or with the reason why it never will."""
        partition = self.partitions.get(tp)
        if partition is None:
            callback(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            partition.on_committed(offset, callback)

    def read_internal_blocking(self, tp: TopicPartition, offset: int) -> bytes:
        """Whole batches from `offset` on, for a coordinator that loads; b"" at the end. Runs in a thread."""
        log = self.partitions[tp].log
        if offset >= log.log_end_offset:
            return b""
        return bytes(log.read_blocking(max(offset, log.log_start_offset), 1 << 20, log.log_end_offset, True))

    async def delete_records(self, partition: Partition, offset: int) -> int:
        """Delete what lies below `offset` (-1: the high watermark); gives the new log start offset."""
        high_watermark = partition.high_watermark
        if offset == -1:
            offset = high_watermark
        if not 0 <= offset <= high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset > partition.log.log_start_offset:
            partition.log.delete_records(offset)
            partition.wake(0)
            await self.logs.write_checkpoints()
        return partition.log.log_start_offset

    # Waiting.

    def watch(self, operation: Operation) -> None:
        """Let a request wait until it completes itself or its deadline passes."""
        self.purgatory.watch(operation)
        if self._timer is None or operation.deadline_ms < self._timer_ms:
            self._arm(operation.deadline_ms)

    def _arm(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(0, deadline_ms - self._world.clock.mono_ms())
        self._timer_ms = deadline_ms
        self._timer = self._world.loop.call_later(delay_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.purgatory.expire(self._world.clock.mono_ms())
        deadline_ms = self.purgatory.next_deadline_ms()
        if deadline_ms is not None and self._timer is None:
            self._arm(deadline_ms)

    # Flushes that are waited for (flush.before.ack).

    def request_flush(self, partition: Partition) -> None:
        """Sync what has been appended; one sync at a time serves all appends before it (group commit)."""
        if partition.flushing:
            return
        partition.flushing = True
        task = self._world.loop.create_task(self._flush(partition))
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)

    async def _flush(self, partition: Partition) -> None:
        log = partition.log
        try:
            while not partition.closed and log.recovery_point < log.log_end_offset:
                await self.flush_now(partition)
        except KafkaError as error:
            partition.fail_waiting(error.code)
        finally:
            partition.flushing = False

    async def flush_now(self, partition: Partition) -> None:
        """Sync one log in a thread. A failed sync takes the log offline: it is never tried again (fsyncgate)."""
        log = partition.log
        target, before = log.log_end_offset, log.recovery_point
        try:
            await self._world.offload(log.flush_blocking, target)
        except OSError as error:
            log.offline = f"sync failed: {error}"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, log.offline) from error
        log.complete_flush(target)
        if log.recovery_point >= log.log_end_offset:
            self.dirty.pop(partition, None)
        if target > before and partition.flush_before_ack:
            partition.advance(0)

    # Metadata.

    async def start(self, report: Callable[[str], None]) -> None:
        """Open the logs of every partition that the metadata image assigns to this broker."""
        assigned = [
            (TopicPartition(topic.name, index), topic.topic_id, topic.configs)
            for topic in self._metadata.topics.values()
            for index, image in enumerate(topic.partitions)
            if self.node_id in image.replicas
        ]
        for log in await self.logs.open_all(assigned, report):
            image = self._metadata.topics[log.tp.topic].partitions[log.tp.partition]
            self._install(log, image)

    async def on_delta(self, delta: MetadataDelta) -> None:
        """Follow a change of the metadata image: deletions first, since a name may be taken again at once."""
        for topic in delta.deleted:
            await self._remove(topic.topic_id, topic.name)
        appeared = [
            change
            for change in delta.partitions
            if change.old is None and change.new is not None and self.node_id in change.new.replicas
        ]
        if appeared:
            wanted = [
                (change.tp, change.topic_id, self._metadata.topic_by_id[change.topic_id].configs)
                for change in appeared
                if change.topic_id in self._metadata.topic_by_id
            ]
            logs = {log.tp: log for log in await self.logs.create_all(wanted)}
            for change in appeared:
                if change.tp in logs and change.new is not None:
                    self._install(logs[change.tp], change.new)
        for change in delta.partitions:
            if change.old is not None and change.new is not None and change.tp in self.partitions:
                self._lead(self.partitions[change.tp], change.new)
        if delta.configs:
            self.reconfigure()

    def reconfigure(self) -> None:
        """Topic or broker configs have changed: logs get their new values, which they read at each use."""
        for tp, partition in self.partitions.items():
            topic = self._metadata.topics.get(tp.topic)
            if topic is None:
                continue
            config = self.logs.topic_config(topic.configs)
            if config == partition.log.config:
                continue
            partition.log.set_config(config)
            partition.flush_before_ack = acknowledged_by_sync(config)
            # Whether acknowledgements wait for a sync may have changed under those who wait.
            partition.advance(0)

    def _install(self, log: Log, image: PartitionImage) -> None:
        """A log that was opened or created begins to serve. Alone in sync, all that it holds is committed."""
        alone = image.isr == [self.node_id]
        state = PartitionState(self.node_id, image.leader_epoch, image.isr, log.log_end_offset if alone else 0)
        partition = Partition(log, state, self.request_flush, is_leader=image.leader == self.node_id)
        self.partitions[log.tp] = partition
        for key in (log.tp.topic, log.topic_id):
            self._topics.setdefault(key, {})[log.tp.partition] = partition
        self._epoch_started(partition)

    def _lead(self, partition: Partition, image: PartitionImage) -> None:
        newer = image.leader_epoch > partition.state.leader_epoch
        partition.state.become_leader(image.leader_epoch, image.isr)
        partition.is_leader = image.leader == self.node_id
        if newer:
            self._epoch_started(partition)
        if not partition.is_leader:
            partition.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    @staticmethod
    def _epoch_started(partition: Partition) -> None:
        if partition.is_leader:
            partition.log.epochs.assign(partition.state.leader_epoch, partition.log.log_end_offset)

    async def _remove(self, topic_id: bytes, name: str) -> None:
        removed = self._topics.pop(topic_id, {})
        if self._topics.get(name) is not None and all(p.topic_id == topic_id for p in self._topics[name].values()):
            del self._topics[name]
        for partition in removed.values():
            self.partitions.pop(partition.tp, None)
            partition.close()
        await self.logs.delete_all([partition.log for partition in removed.values()])

    async def stop(self) -> None:
        """Fail what waits, sync and close every log, and leave the mark of a clean stop."""
        if self._timer is not None:
            self._timer.cancel()
        for partition in self.partitions.values():
            partition.close()
        await self.logs.close_all([partition.log for partition in self.partitions.values()])
