"""Which partitions this broker holds: it follows the metadata image, as topics come, change and go."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

from kbroker.common import TopicPartition
from kbroker.config.config_resource import ConfigResourceType
from kbroker.replica.logs.checkpoints import Report
from kbroker.replica.logs.log_manager import Wanted
from kbroker.replica.partition import Partition, waits_for_flush
from kbroker.replica.partition_state import PartitionState
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turnstile import Turnstile

if TYPE_CHECKING:
    from kbroker.metadata.image import MetadataDelta, MetadataImage, TopicImage
    from kbroker.runtime.environment import Environment
    from kbroker.storage.log.log import Log

event_log = EventLogger("kbroker.logs")


def _must_sync(log: Log) -> bool:
    """Recovery has read what an earlier process wrote, which is perhaps not on the disk yet. Where consumers see only
    what is, it is synced before they are served: a high watermark does not go back."""
    return waits_for_flush(log.config) and log.recovery_point < log.log_end_offset


class Assignments:
    """Opens, makes and deletes logs in the data directory, and gives their partitions to the replica manager."""

    def __init__(self, environment: Environment, replicas: ReplicaManager, metadata: MetadataImage) -> None:
        self._environment = environment
        self._replicas = replicas
        self._node_id = replicas.node_id
        self._logs = replicas.logs
        self._upkeep = replicas.dirty_partitions
        self._metadata = metadata
        # Logs are opened and removed for one reason at a time.
        self._changing = Turnstile(environment.loop)
        self._stopped = False

    async def start(self, report: Report) -> None:
        """Open the logs of every partition that the metadata image assigns to this broker."""
        assigned = [
            (TopicPartition(topic.name, index), topic.topic_id, topic.configs)
            for topic in self._metadata.topics.values()
            for index, image in enumerate(topic.partitions)
            if self._node_id in image.replicas
        ]
        logs = await self._logs.open_all(assigned, report)
        await self._sync_recovered(logs)
        self._take_over(assigned, logs)

    async def _sync_recovered(self, logs: Iterable[Log]) -> None:
        syncs = [self._environment.loop.create_task(self._sync(log)) for log in logs if _must_sync(log)]
        for sync in syncs:
            await sync

    async def _sync(self, log: Log) -> None:
        try:
            log.complete_flush(await self._environment.offload(log.flush_blocking, log.log_end_offset))
        except OSError as error:
            # The log says why it goes offline.
            if log.offline is None:
                # The partition asks for another sync when it is installed.
                log.on_shortage("sync", error)

    def _take_over(self, wanted: Iterable[Wanted], logs: Iterable[Log]) -> list[Log]:
        """Install the logs that were opened; note those that were not. Gives those whose topics have gone meanwhile."""
        missing = {tp: topic_id for tp, topic_id, _ in wanted}
        gone = []
        for log in logs:
            del missing[log.tp]
            topic = self._metadata.topics_by_id.get(log.topic_id)
            if topic is None:
                gone.append(log)
            else:
                self._install(log, topic)
        self._upkeep.note_missing(missing)
        return gone

    async def open_missing(self) -> None:
        """Try again to open the logs that could not be opened."""
        async with self._changing:
            if self._stopped:
                return
            topics, missing = self._metadata.topics_by_id, self._upkeep.missing
            wanted = [(tp, known, topics[known].configs) for tp, known in missing.items() if known in topics]
            missing.clear()
            await self._create(wanted)
            for tp, _, _ in wanted:
                if tp in self._replicas.partitions:
                    event_log.info("log opened", partition=tp)

    async def _create(self, wanted: Sequence[Wanted]) -> None:
        logs = await self._logs.create_all(wanted)
        await self._sync_recovered(logs)
        await self._logs.delete_all(self._take_over(wanted, logs))

    async def on_delta(self, delta: MetadataDelta) -> None:
        """Follow a change of the metadata image: deletions first, since a name may be taken again at once."""
        async with self._changing:
            if self._stopped:
                return
            for topic in delta.deleted:
                await self._remove(topic.topic_id, topic.name)
            await self._create(
                [
                    (change.tp, change.topic_id, self._metadata.topics_by_id[change.topic_id].configs)
                    for change in delta.partitions
                    if change.old is None
                    and change.new is not None
                    and self._node_id in change.new.replicas
                    and change.topic_id in self._metadata.topics_by_id
                ]
            )
        for change in delta.partitions:
            partition = self._replicas.partitions.get(change.tp)
            if change.old is not None and change.new is not None and partition is not None:
                partition.apply_registration(change.new, self._node_id)
        changed = {resource.name for resource in delta.configs if resource.type == ConfigResourceType.TOPIC}
        if changed:
            self.reconfigure(changed)

    def reconfigure(self, topics: Container[str] | None = None) -> None:
        """Configs have changed, the broker's (None) or some topics': logs get their new values, read at each use."""
        for tp, partition in self._replicas.partitions.items():
            if topics is not None and tp.topic not in topics:
                continue
            topic = self._metadata.topics_by_id.get(partition.topic_id)
            if topic is None:
                continue
            config = self._logs.topic_config(topic.name, topic.configs)
            if config == partition.log.config:
                continue
            partition.log.set_config(config)
            partition.flush_before_ack = waits_for_flush(config)
            self._upkeep.note_uncleaned(partition)
            # Whether acknowledgements wait for a sync may have changed under those who wait.
            partition.advance_high_watermark()

    def _install(self, log: Log, topic: TopicImage) -> None:
        """A log that was opened or created begins to serve. Alone in sync, all that it claims is committed."""
        image = topic.partitions[log.tp.partition]
        partition = Partition(
            log,
            PartitionState(self._node_id, image.leader_epoch, image.isr, log.log_start_offset),
            self._upkeep,
            is_leader=image.leader == self._node_id,
            is_internal=topic.internal,
        )
        partition.advance_high_watermark()
        self._replicas.add(partition)
        partition.begin_epoch()
        if self._upkeep.held:
            self._upkeep.hold(partition)
        self._upkeep.note_uncleaned(partition)
        if partition.flush_before_ack and log.recovery_point < log.log_end_offset and log.offline is None:
            self._upkeep.request_flush(partition)
        if log.recovery_point < log.log_end_offset:
            self._upkeep.note_dirty(partition, self._environment.clock.now_ms())
        elif log.repairs:
            self._upkeep.note_repaired(partition)

    async def _remove(self, topic_id: bytes, name: str) -> None:
        removed = self._replicas.hide(topic_id, name)
        for partition in removed:
            await self._replicas.remove(partition)
        for tp in [tp for tp, known in self._upkeep.missing.items() if known == topic_id]:
            del self._upkeep.missing[tp]
        await self._logs.delete_all([partition.log for partition in removed])

    async def stop(self) -> None:
        """Fail what waits, sync and close every log, and leave the mark of a clean stop."""
        async with self._changing:
            self._stopped = True
        await self._replicas.stop()
        await self._logs.close_all([partition.log for partition in self._replicas.partitions.values()])
