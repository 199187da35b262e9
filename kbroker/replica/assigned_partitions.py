"""Opens and closes partitions of this broker as the metadata image changes (Kafka: ReplicaManager.applyDelta)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING

from kbroker.common import TopicPartition
from kbroker.config.config_resource import ConfigResourceType
from kbroker.replica.logs.log_manager import AssignedPartition
from kbroker.replica.partition import Partition, waits_for_flush
from kbroker.replica.partition_state import PartitionState
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.mutex import Mutex

if TYPE_CHECKING:
    from kbroker.metadata.image import MetadataDelta, MetadataImage, TopicImage
    from kbroker.runtime.environment import Environment
    from kbroker.storage.log.log import Log

event_log = EventLogger("kbroker.logs")


def _must_sync(log: Log) -> bool:
    """Return whether the records of an earlier process have to be synced before the partition serves.

    If the high watermark waits for syncs, it must never decrease, and records that recovery has read may be unsynced.
    """
    return waits_for_flush(log.config) and log.recovery_point < log.log_end_offset


class AssignedPartitions:
    """Passes the partitions to the replica manager, and the logs that cannot be opened to its PartitionMaintenance."""

    def __init__(self, environment: Environment, replicas: ReplicaManager, metadata: MetadataImage) -> None:
        self._environment = environment
        self._replicas = replicas
        self._node_id = replicas.node_id
        self._logs = replicas.logs
        self._maintenance = replicas.maintenance
        self._metadata = metadata
        # Held while logs are opened, created or deleted.
        self._mutex = Mutex(environment.loop)
        self._stopped = False

    async def start(self) -> None:
        """Open the logs of all partitions that the metadata image assigns to this broker."""
        assigned = [
            AssignedPartition(TopicPartition(topic.name, index), topic.topic_id, topic.configs)
            for topic in self._metadata.topics.values()
            for index, image in enumerate(topic.partitions)
            if self._node_id in image.replicas
        ]
        logs = await self._logs.open_at_startup(assigned)
        await self._sync_recovered(logs)
        self._add_all(assigned, logs)

    async def apply_delta(self, delta: MetadataDelta) -> None:
        """Apply a change of the metadata image."""
        async with self._mutex:
            if self._stopped:
                return
            # Deletions come first, since a new topic may have the name of a deleted one.
            for topic in delta.deleted:
                await self._remove(topic.topic_id, topic.name)
            await self._open_or_create(
                [
                    AssignedPartition(change.tp, change.topic_id, self._metadata.topics_by_id[change.topic_id].configs)
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
            self.update_configs(changed)

    async def open_unopened(self) -> None:
        """Retry the logs that could not be opened."""
        async with self._mutex:
            if self._stopped:
                return
            topics, unopened = self._metadata.topics_by_id, self._maintenance.unopened
            assigned = [
                AssignedPartition(tp, topic_id, topics[topic_id].configs)
                for tp, topic_id in unopened.items()
                if topic_id in topics
            ]
            unopened.clear()
            await self._open_or_create(assigned)
            for tp, _, _ in assigned:
                if tp in self._replicas.partitions:
                    event_log.info("log opened", partition=tp)

    def update_configs(self, topics: Container[str] | None = None) -> None:
        """Apply changed configs of some topics, or of the broker (None)."""
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
            self._maintenance.mark_uncleaned(partition)
            # Waiting requests may no longer have to wait for a sync.
            partition.advance_high_watermark()

    async def stop(self) -> None:
        """Fail the waiting requests, sync and close all logs, and write the marker of a clean shutdown."""
        async with self._mutex:
            self._stopped = True
        await self._replicas.stop()
        await self._logs.close([partition.log for partition in self._replicas.partitions.values()])

    async def _open_or_create(self, assigned: Sequence[AssignedPartition]) -> None:
        logs = await self._logs.open_or_create(assigned)
        await self._sync_recovered(logs)
        await self._logs.delete(self._add_all(assigned, logs))

    async def _sync_recovered(self, logs: Iterable[Log]) -> None:
        syncs = [self._environment.loop.create_task(self._sync(log)) for log in logs if _must_sync(log)]
        for sync in syncs:
            await sync

    async def _sync(self, log: Log) -> None:
        try:
            log.complete_flush(await self._environment.offload(log.flush_blocking, log.log_end_offset))
        except OSError as error:
            # If the log is offline, it has already logged the reason.
            if log.offline is None:
                # `_add` requests another sync.
                log.on_shortage("sync", error)

    def _add_all(self, assigned: Iterable[AssignedPartition], logs: Iterable[Log]) -> list[Log]:
        """Add the partitions whose logs are open. Returns the logs of topics that were deleted meanwhile."""
        unopened = {tp: topic_id for tp, topic_id, _ in assigned}
        deleted = []
        for log in logs:
            del unopened[log.tp]
            topic = self._metadata.topics_by_id.get(log.topic_id)
            if topic is None:
                deleted.append(log)
            else:
                self._add(log, topic)
        self._maintenance.mark_unopened(unopened)
        return deleted

    def _add(self, log: Log, topic: TopicImage) -> None:
        image = topic.partitions[log.tp.partition]
        maintenance = self._maintenance
        partition = Partition(
            log,
            PartitionState(self._node_id, image.leader_epoch, image.isr, log.log_start_offset),
            maintenance,
            is_leader=image.leader == self._node_id,
            is_internal=topic.internal,
        )
        # With this broker as the only in-sync replica, the whole log is committed.
        partition.advance_high_watermark()
        self._replicas.add(partition)
        partition.begin_epoch()
        if maintenance.appends_suspended:
            maintenance.suspend_appends(partition)
        maintenance.mark_uncleaned(partition)
        if partition.flush_before_ack and log.recovery_point < log.log_end_offset and log.offline is None:
            maintenance.flusher.request_flush(partition)
        if log.recovery_point < log.log_end_offset:
            maintenance.mark_unflushed(partition, self._environment.clock.now_ms())
        elif log.repairs:
            maintenance.mark_uncheckpointed(partition)

    async def _remove(self, topic_id: bytes, name: str) -> None:
        removed = self._replicas.hide(topic_id, name)
        for partition in removed:
            await self._replicas.remove(partition)
        unopened = self._maintenance.unopened
        for tp in [tp for tp, unopened_id in unopened.items() if unopened_id == topic_id]:
            del unopened[tp]
        await self._logs.delete([partition.log for partition in removed])
