"""The partitions that this broker holds, and everything that is done to them.

It follows the metadata image: creates, opens and deletes logs as topics come and go. Handlers append and read
through it; coordinators write their internal topics through it; housekeeping works on its logs.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbroker.cluster.image import TOPIC_RESOURCE
from kbroker.cluster.turnstile import Turnstile
from kbroker.events import Log as EventLog
from kbroker.model import Buffer, KafkaError, TopicPartition
from kbroker.replica.lane import Lane
from kbroker.replica.logs import LogDirectory, Wanted
from kbroker.replica.marks import Report
from kbroker.replica.partition import Committed, Partition, acknowledged_by_sync
from kbroker.replica.records import Unfinished, Validated
from kbroker.replica.upkeep import Upkeep
from kbroker.replica.validation import validate
from kbroker.state.partition import PartitionState
from kbroker.state.purgatory import Operation, Purgatory
from protocol.errors import ErrorCode
from protocol.fetch_wire import TopicKey
from protocol.records.batch import BatchHeader, parse_header

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from kbroker.cluster.image import MetadataDelta, MetadataImage, PartitionImage, TopicImage
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


class Departed:
    """What the partitions that have left this broker had taken."""

    __slots__ = ("bytes_in", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes_in = 0

    def add(self, partition: Partition) -> None:
        self.messages += partition.log.log_end_offset - partition.first_offset
        self.bytes_in += partition.bytes_in


event_log = EventLog("kbroker.logs")


def _must_sync(log: Log) -> bool:
    """Recovery has read what an earlier process wrote, which is perhaps not on the disk yet. Where consumers see only
    what is, it is synced before they are served: a high watermark does not go back."""
    return acknowledged_by_sync(log.config) and log.recovery_point < log.log_end_offset


class ReplicaManager:
    """Partitions by name and by topic id, and the purgatory of the requests that wait on them."""

    def __init__(self, world: World, node_id: int, metadata: MetadataImage, logs: LogDirectory) -> None:
        self.node_id = node_id
        self.purgatory = Purgatory()
        self.partitions: dict[TopicPartition, Partition] = {}
        self.logs = logs
        self.upkeep = Upkeep(world)
        self.departed = Departed()
        self.lane = Lane(world)
        self._world = world
        self._metadata = metadata
        # Both a topic's name and its id lead to its partitions: requests use either (KIP-516).
        self._topics: dict[TopicKey, dict[int, Partition]] = {}
        self._timer: TimerHandle | None = None
        self._timer_ms = 0
        # Logs are opened and removed for one reason at a time.
        self._changing = Turnstile(world.loop)
        self._stopped = False

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
        unknown_id = isinstance(key, bytes) and key not in self._metadata.topic_by_id
        return ErrorCode.UNKNOWN_TOPIC_ID if unknown_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

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
    ) -> Appended:
        """Append what a client produced; the buffer is only used during the call. Raises KafkaError, and Unfinished
        for what `append_later` takes. `validated`: it has been looked into already.

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
            validated = validate(records, log.config, now_ms, produce_version=version)
        batch, header, append_time_ms = validated
        duplicate = log.producers.check(header) if header[9] >= 0 else None
        if duplicate is not None:
            base_offset, last_offset, append_time_ms = duplicate
            end_offset = last_offset + 1
        else:
            base_offset = self._append(partition, batch, header, now_ms)
            # Not the log end offset: whoever waited for this append may have appended more already.
            end_offset = base_offset + header[6] + 1
        settled = partition.state.high_watermark >= end_offset or (acks != ACKS_ALL and not partition.flush_before_ack)
        return Appended(partition, base_offset, end_offset, append_time_ms, log.log_start_offset, settled)

    async def append_later(
        self,
        key: TopicKey,
        index: int,
        unfinished: Unfinished,
        acks: int,
        version: int,
        give_up: Callable[[Callable[[], None]], None],
    ) -> Appended:
        """As `append`, for a batch that takes long to look into. `give_up` is told how that is ended early."""
        partition = self.find(key, index)
        job = self.lane.take(unfinished)
        give_up(job.give_up)
        validated = await job.done
        if self.find(key, index) is not partition:
            # It was deleted meanwhile, and perhaps made anew with other configs.
            raise KafkaError(self.absence(key, index))
        return self.append(key, index, None, acks, version, self._world.clock.now_ms(), validated)

    def _append(self, partition: Partition, batch: Buffer, header: BatchHeader, now_ms: int) -> int:
        """Gives the base offset."""
        log = partition.log
        try:
            base_offset = partition.append(batch, header, now_ms)
        except KafkaError:
            self.upkeep.append_failed(partition)
            raise
        times = self.upkeep.dirty.get(partition)
        if times is None:
            self.upkeep.note_dirty(partition, now_ms)
        else:
            times[1] = now_ms
        if log.log_end_offset - log.recovery_point >= log.config.flush_messages:
            self.upkeep.request_flush(partition)
        return base_offset

    def append_internal(self, tp: TopicPartition, batch: bytearray) -> int:
        """Append a batch that a coordinator built; gives the log end offset. Raises KafkaError."""
        partition = self.leader(tp.topic, tp.partition)
        now_ms = self._world.clock.now_ms()
        header = parse_header(batch, 0)
        return self._append(partition, batch, header, now_ms) + header.last_offset_delta + 1

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
            try:
                await self.logs.write_checkpoints()
            except OSError as error:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
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
        # Those that expired may have been followed by others, which have set the timer.
        if deadline_ms is not None and (self._timer is None or deadline_ms < self._timer_ms):
            self._arm(deadline_ms)

    # Metadata.

    async def start(self, report: Report) -> None:
        """Open the logs of every partition that the metadata image assigns to this broker."""
        assigned = [
            (TopicPartition(topic.name, index), topic.topic_id, topic.configs)
            for topic in self._metadata.topics.values()
            for index, image in enumerate(topic.partitions)
            if self.node_id in image.replicas
        ]
        logs = await self.logs.open_all(assigned, report)
        await self._sync_recovered(logs)
        self._take_over(assigned, logs)

    async def _sync_recovered(self, logs: Iterable[Log]) -> None:
        syncs = [self._world.loop.create_task(self._sync(log)) for log in logs if _must_sync(log)]
        for sync in syncs:
            await sync

    async def _sync(self, log: Log) -> None:
        try:
            log.complete_flush(await self._world.offload(log.flush_blocking, log.log_end_offset))
        except OSError as error:
            event_log.warning("log offline until a restart", partition=log.tp, reason=error)

    def _take_over(self, wanted: Iterable[Wanted], logs: Iterable[Log]) -> list[Log]:
        """Install the logs that were opened; note those that were not. Gives those whose topics have gone meanwhile."""
        missing = {tp: topic_id for tp, topic_id, _ in wanted}
        gone = []
        for log in logs:
            del missing[log.tp]
            topic = self._metadata.topic_by_id.get(log.topic_id)
            if topic is None:
                gone.append(log)
            else:
                self._install(log, topic)
        self.upkeep.note_missing(missing)
        return gone

    async def open_missing(self) -> None:
        """Try again to open the logs that could not be opened."""
        async with self._changing:
            if self._stopped:
                return
            topics, missing = self._metadata.topic_by_id, self.upkeep.missing
            wanted = [(tp, known, topics[known].configs) for tp, known in missing.items() if known in topics]
            missing.clear()
            await self._create(wanted)

    async def _create(self, wanted: Sequence[Wanted]) -> None:
        logs = await self.logs.create_all(wanted)
        await self._sync_recovered(logs)
        await self.logs.delete_all(self._take_over(wanted, logs))

    async def on_delta(self, delta: MetadataDelta) -> None:
        """Follow a change of the metadata image: deletions first, since a name may be taken again at once."""
        async with self._changing:
            if self._stopped:
                return
            for topic in delta.deleted:
                await self._remove(topic.topic_id, topic.name)
            await self._create(
                [
                    (change.tp, change.topic_id, self._metadata.topic_by_id[change.topic_id].configs)
                    for change in delta.partitions
                    if change.old is None
                    and change.new is not None
                    and self.node_id in change.new.replicas
                    and change.topic_id in self._metadata.topic_by_id
                ]
            )
        for change in delta.partitions:
            partition = self.partitions.get(change.tp)
            if change.old is not None and change.new is not None and partition is not None:
                self._lead(partition, change.new)
        changed = {resource.name for resource in delta.configs if resource.type == TOPIC_RESOURCE}
        if changed:
            self.reconfigure(changed)

    def reconfigure(self, topics: Container[str] | None = None) -> None:
        """Configs have changed, the broker's (None) or some topics': logs get their new values, read at each use."""
        for tp, partition in self.partitions.items():
            if topics is not None and tp.topic not in topics:
                continue
            topic = self._metadata.topic_by_id.get(partition.topic_id)
            if topic is None:
                continue
            config = self.logs.topic_config(topic.name, topic.configs)
            if config == partition.log.config:
                continue
            partition.log.set_config(config)
            partition.flush_before_ack = acknowledged_by_sync(config)
            self.upkeep.note_uncleaned(partition)
            # Whether acknowledgements wait for a sync may have changed under those who wait.
            partition.advance()

    def _install(self, log: Log, topic: TopicImage) -> None:
        """A log that was opened or created begins to serve. Alone in sync, all that it claims is committed."""
        image = topic.partitions[log.tp.partition]
        partition = Partition(
            log,
            PartitionState(self.node_id, image.leader_epoch, image.isr, log.log_start_offset),
            self.upkeep.request_flush,
            is_leader=image.leader == self.node_id,
            internal=topic.internal,
        )
        partition.advance()
        self.partitions[log.tp] = partition
        for key in (log.tp.topic, log.topic_id):
            self._topics.setdefault(key, {})[log.tp.partition] = partition
        self._epoch_started(partition)
        self.upkeep.note_uncleaned(partition)
        if log.recovery_point < log.log_end_offset:
            self.upkeep.note_dirty(partition, self._world.clock.now_ms())
        elif log.repairs:
            self.upkeep.note_repaired(partition)

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
            self.departed.add(partition)
            partition.close()
            await self.upkeep.forget(partition)
        for tp in [tp for tp, known in self.upkeep.missing.items() if known == topic_id]:
            del self.upkeep.missing[tp]
        await self.logs.delete_all([partition.log for partition in removed.values()])

    async def stop(self) -> None:
        """Fail what waits, sync and close every log, and leave the mark of a clean stop."""
        async with self._changing:
            self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for partition in self.partitions.values():
            partition.close()
        await self.upkeep.flushed()
        await self.logs.close_all([partition.log for partition in self.partitions.values()])
