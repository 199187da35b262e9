"""Opens and closes partitions of this broker as the metadata image changes (Kafka: ReplicaManager.applyDelta).

It also applies changed configs to them, in turns."""

from __future__ import annotations

from asyncio import Lock
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.common import TopicPartition
from kbroker.config.config_def import ConfigResourceType
from kbroker.replica.logs.log_manager import AssignedPartition
from kbroker.replica.logs.stray_logs import LogFate, fate_of_log
from kbroker.replica.partition import Partition
from kbroker.replica.partition_high_watermark import waits_for_flush
from kbroker.replica.partition_state import PartitionState
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import paced, yield_if_due
from kbroker.storage.log.leader_epoch_cache import NO_EPOCH

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.config.topic_config import TopicConfig
    from kbroker.metadata.image import MetadataDelta, MetadataImage, PartitionRegistration, TopicImage
    from kbroker.replica.fetcher.replica_fetcher import ReplicaFetcherManager
    from kbroker.replica.replica_manager import ReplicaManager
    from kbroker.runtime.environment import Environment
    from kbroker.storage.log.log import Log

TopicConfigs = dict[bytes, "TopicConfig | None"]


class ConfigUpdates:
    """Always applies the configs of the current image. So an update may run late, and beside another one.

    `changes`: the number of changes so far.
    """

    def __init__(self, environment: Environment, replicas: ReplicaManager, metadata: MetadataImage) -> None:
        self.changes = 0
        self._environment = environment
        self._replicas = replicas
        self._logs = replicas.logs
        self._maintenance = replicas.maintenance
        self._metadata = metadata
        self._unfinished: deque[Task[None]] = deque()
        self._default_min_insync_replicas = self._default()

    def start(self, topics: Iterable[str] | None) -> None:
        """Apply changed configs of some topics, or of the broker (None).

        Of all, only min.insync.replicas is applied at once, because it is part of what an ISR means (KIP-966).
        `wait` waits for the other configs: those of 6,500 partitions take 50 to 100 ms.
        """
        self.changes += 1
        may_change_min_isr = topics is not None or self._has_new_default()
        outdated = self._replicas.partitions_of(topics)
        configs: TopicConfigs = {}
        if may_change_min_isr:
            self._set_min_insync_replicas(outdated, configs)
        rest = self._environment.turns.call(self._update, outdated, configs)
        if rest is not None:
            self._unfinished.append(self._environment.loop.create_task(rest))

    async def wait(self) -> None:
        """Wait until all changes are applied. Called by one task only."""
        while self._unfinished:
            try:
                await self._unfinished[0]
            finally:
                self._unfinished.popleft()

    def stop(self) -> None:
        for update in self._unfinished:
            update.cancel()

    def request_missing_flush(self, partition: Partition) -> None:
        log = partition.log
        if partition.flush_before_ack and log.recovery_point < log.log_end_offset and log.health.offline is None:
            self._maintenance.flusher.request_flush(partition)

    def _default(self) -> int:
        """Return the min.insync.replicas of topics that have no own one."""
        return self._logs.topic_config("", {}).min_insync_replicas

    def _has_new_default(self) -> bool:
        former, self._default_min_insync_replicas = self._default_min_insync_replicas, self._default()
        return former != self._default_min_insync_replicas

    def _set_min_insync_replicas(self, partitions: Iterable[Partition], configs: TopicConfigs) -> None:
        for partition in partitions:
            config = self._config(partition, configs)
            if config is not None and config.min_insync_replicas != partition.state.min_insync_replicas:
                partition.set_min_insync_replicas(config.min_insync_replicas)

    def _update(self, partitions: Iterable[Partition], configs: TopicConfigs) -> None:
        changes = self.changes
        for partition in paced(partitions):
            if changes != self.changes:
                changes = self.changes
                configs.clear()
            config = self._config(partition, configs)
            if config is not None and config != partition.log.config and not partition.is_closed:
                partition.set_config(config)
                self._maintenance.mark_uncleaned(partition)
                # Requests that wait for followers now wait for a sync too, which no further append may request.
                self.request_missing_flush(partition)

    def _config(self, partition: Partition, configs: TopicConfigs) -> TopicConfig | None:
        """Return the config of the partition's topic; None if it was deleted. `configs`: those found before, by id."""
        topic_id = partition.topic_id
        if topic_id not in configs:
            topic = self._metadata.topics_by_id.get(topic_id)
            configs[topic_id] = None if topic is None else self._logs.topic_config(topic.name, topic.configs)
        return configs[topic_id]


event_log = EventLogger("kbroker.logs")

# The partitions of a deleted topic with more of them are closed in turns: 6,500 take 50 to 90 ms.
CLOSED_AT_ONCE = 128


def _must_sync(log: Log) -> bool:
    """Return whether the records of an earlier process have to be synced before the partition serves.

    If the high watermark waits for syncs, it must never decrease, and records that recovery has read may be unsynced.
    """
    return waits_for_flush(log.config) and log.recovery_point < log.log_end_offset


class AssignedPartitions:
    """Passes the partitions to the replica manager, and the logs that cannot be opened to its PartitionMaintenance.

    Roles change at once (`on_roles_changed`), since a leader must stop leading when the image has another one. Logs are
    opened and closed afterwards (`apply_delta`): nothing waits for a thousand new logs. Both go by the current image
    and use the delta only to find what may have changed, so they may run late, and repeatedly. An image that was read
    during a change may lack partitions of a topic; these keep their logs and roles.
    """

    def __init__(
        self,
        environment: Environment,
        replicas: ReplicaManager,
        metadata: MetadataImage,
        *,
        fetchers: ReplicaFetcherManager | None,
        is_image_older: Callable[[], bool] = lambda: False,
    ) -> None:
        """`fetchers`: None for a lone broker. `is_image_older`: whether this broker has seen newer metadata than the
        image has; then the image proves no removal."""
        self._fetchers = fetchers
        self._is_image_older = is_image_older
        self._environment = environment
        self._replicas = replicas
        self._node_id = replicas.node_id
        self._logs = replicas.logs
        self._maintenance = replicas.maintenance
        self._metadata = metadata
        self._configs = ConfigUpdates(environment, replicas, metadata)
        # Held while logs are opened, created or deleted.
        self._mutex = Lock()
        # Whether this broker may lead and follow: not before it is registered.
        self.has_roles = False
        # The hidden partitions of topics that have left the image, by topic id, whose logs are not removed yet: of
        # topics that were deleted, and of topics that are merely missing.
        self._deleted: dict[bytes, list[Partition]] = {}
        self._missing: dict[bytes, list[Partition]] = {}
        self._stopped = False

    async def start(self, deleted_topics: Collection[bytes] = ()) -> None:
        """Open the logs of all partitions that the metadata image assigns to this broker.

        `deleted_topics`: the ids of the topics that were deleted last, whose logs are deleted, too.
        """
        assigned = [
            AssignedPartition(TopicPartition(topic.name, index), topic.topic_id, topic.configs)
            for topic in self._metadata.topics.values()
            for index, image in enumerate(topic.partitions)
            if self._node_id in image.replicas
        ]

        def fate_of(tp: TopicPartition, topic_id: bytes | None, latest_epoch: int | None) -> LogFate:
            return self._fate(tp, topic_id, latest_epoch, deleted_topics)

        logs = await self._logs.open_at_startup(assigned, fate_of)
        await self._sync_recovered(logs)
        await self._add_all(assigned, logs)

    def _fate_of(self, log: Log) -> LogFate:
        return self._fate(log.tp, log.topic_id, log.epochs.latest, self._deleted.keys())

    def _fate(
        self, tp: TopicPartition, topic_id: bytes | None, latest_epoch: int | None, deleted: Collection[bytes]
    ) -> LogFate:
        fate = fate_of_log(tp, topic_id, latest_epoch, self._node_id, self._metadata, deleted)
        return LogFate.SET_ASIDE if fate is LogFate.DELETE and self._is_image_older() else fate

    # Roles.

    def assign_roles(self) -> None:
        """Lead and follow from now on, as the metadata image says. Called when this broker is registered."""
        self.has_roles = True
        for partition in self._replicas.partitions.values():
            self._assign_role(partition)

    def resign(self) -> None:
        """Neither lead nor follow any partition, because this broker's session has ended."""
        self.has_roles = False
        for partition in self._replicas.partitions.values():
            self._stop_following(partition)
            partition.resign()
        self._replicas.isr_manager.notify_log_start_listeners()

    def on_roles_changed(self, delta: MetadataDelta) -> None:
        """Apply a change of the metadata image to the partitions that are open."""
        # Before the ISRs: their meaning depends on min.insync.replicas (KIP-966).
        topics = {resource.name for resource in delta.configs if resource.type == ConfigResourceType.TOPIC}
        if topics:
            self.update_configs(topics)
        for removed, by_id in ((delta.deleted, self._deleted), (delta.missing, self._missing)):
            for topic in removed:
                hidden = by_id[topic.topic_id] = self._replicas.hide(topic.topic_id, topic.name)
                if len(hidden) <= CLOSED_AT_ONCE:
                    for partition in hidden:
                        self._stop_following(partition)
                        partition.close()
        if self.has_roles:
            for change in delta.partitions:
                changed = self._replicas.get(change.topic_id, change.tp.partition)
                if changed is not None:
                    self._assign_role(changed)

    def _assign_role(self, partition: Partition) -> None:
        registration = _registration(self._metadata.topics_by_id.get(partition.topic_id), partition.tp.partition)
        if registration is None:
            return
        self._maintenance.mark_replicated(partition, len(registration.replicas))
        partition.apply_registration(registration, self._node_id, self._environment.clock.mono_ms())
        if self._fetchers is None:
            return
        if self._node_id in registration.replicas:
            self._fetchers.update(partition, registration)
        else:
            self._fetchers.remove(partition)

    def _stop_following(self, partition: Partition) -> None:
        if self._fetchers is not None:
            self._fetchers.remove(partition)

    # Logs.

    async def apply_delta(self, delta: MetadataDelta) -> None:
        """Open, create, close and delete logs after a change of the metadata image."""
        async with self._mutex:
            if self._stopped:
                return
            # Deletions come first, since a new topic may have the name of a deleted one.
            if delta.deleted:
                await self._remove_topics([topic.topic_id for topic in delta.deleted], self._deleted)
            if delta.missing:
                await self._remove_topics([topic.topic_id for topic in delta.missing], self._missing)
            await self._remove_unassigned(delta)
            await self._open_or_create(self._new_partitions(delta))
        await self._configs.wait()

    def _new_partitions(self, delta: MetadataDelta) -> list[AssignedPartition]:
        """Return the partitions of the delta that this broker has and that are not open."""
        new = []
        for tp, topic_id, _, _ in delta.partitions:
            topic = self._metadata.topics_by_id.get(topic_id)
            registration = _registration(topic, tp.partition)
            if topic is None or registration is None or self._node_id not in registration.replicas:
                continue
            if tp not in self._replicas.partitions and self._maintenance.unopened.get(tp) != topic_id:
                new.append(AssignedPartition(tp, topic_id, topic.configs))
        return new

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

    def update_configs(self, topics: Iterable[str] | None = None) -> None:
        """Apply changed configs of some topics, or of the broker (None). `apply_delta` waits until they are."""
        self._configs.start(topics)

    async def stop(self) -> None:
        """Fail the waiting requests, sync and close all logs, and write the marker of a clean shutdown."""
        self._configs.stop()
        if self._fetchers is not None:
            await self._fetchers.stop()
        async with self._mutex:
            self._stopped = True
        await self._replicas.stop()
        await self._logs.close([partition.log for partition in self._replicas.partitions.values()])

    async def _open_or_create(self, assigned: Sequence[AssignedPartition]) -> None:
        config_changes = self._configs.changes
        logs = await self._logs.open_or_create(assigned)
        await self._sync_recovered(logs)
        removed = await self._add_all(assigned, logs)
        if config_changes != self._configs.changes:
            # The configs have changed since the logs were opened.
            self.update_configs({tp.topic for tp, _, _ in assigned})
        if removed:
            await self._remove_logs({log: self._fate_of(log) for log in removed})

    async def _sync_recovered(self, logs: Iterable[Log]) -> None:
        syncs = [self._environment.loop.create_task(self._sync(log)) for log in logs if _must_sync(log)]
        for sync in syncs:
            await sync

    async def _sync(self, log: Log) -> None:
        try:
            log.complete_flush(await self._environment.offload(log.durability.flush_blocking, log.log_end_offset))
        except OSError as error:
            # If the log is offline, it has already logged the reason.
            if log.health.offline is None:
                # `_add` requests another sync.
                log.health.on_shortage("sync", error)

    async def _add_all(self, assigned: Iterable[AssignedPartition], logs: Iterable[Log]) -> list[Log]:
        """Add the partitions whose logs are open. Returns the logs that were deleted or reassigned meanwhile.

        In turns: 6,500 partitions take 80 to 150 ms.
        """
        unopened = {tp: topic_id for tp, topic_id, _ in assigned}
        removed = []
        for log in logs:
            del unopened[log.tp]
            topic = self._metadata.topics_by_id.get(log.topic_id)
            registration = _registration(topic, log.tp.partition)
            if topic is None or (registration is not None and self._node_id not in registration.replicas):
                removed.append(log)
            else:
                self._add(log, topic)
            yield_if_due()
        self._maintenance.mark_unopened(unopened)
        return removed

    def _add(self, log: Log, topic: TopicImage) -> None:
        maintenance = self._maintenance
        state = PartitionState(self._node_id, NO_EPOCH, [], log.checkpointed_high_watermark)
        partition = Partition(
            log, state, maintenance, is_leader=False, is_internal=topic.internal, configure=self._replicas.configure
        )
        self._replicas.add(partition)
        if self.has_roles:
            self._assign_role(partition)
        if maintenance.appends_suspended:
            maintenance.suspend_appends(partition)
        maintenance.mark_uncleaned(partition)
        self._configs.request_missing_flush(partition)
        if log.recovery_point < log.log_end_offset:
            maintenance.mark_unflushed(partition, self._environment.clock.now_ms())
        elif log.repairs:
            maintenance.mark_uncheckpointed(partition)

    async def _remove_topics(self, topic_ids: Collection[bytes], hidden: dict[bytes, list[Partition]]) -> None:
        """Delete or set aside the logs of topics, whose partitions `on_roles_changed` has hidden.

        Together, since the checkpoints of all logs are written for it.
        """
        fate = LogFate.DELETE if hidden is self._deleted else LogFate.SET_ASIDE
        partitions = [partition for topic_id in topic_ids for partition in hidden.pop(topic_id, ())]
        for partition in partitions:
            if not partition.is_closed:
                self._stop_following(partition)
                partition.close()
            yield_if_due()
        # A topic that is missing may have come back meanwhile: its logs are opened again afterwards.
        await self._remove(dict.fromkeys(partitions, fate), at_once=False)
        unopened = self._maintenance.unopened
        for tp in [tp for tp, topic_id in unopened.items() if topic_id in topic_ids]:
            del unopened[tp]

    async def _remove_unassigned(self, delta: MetadataDelta) -> None:
        """Delete the logs of partitions that were removed from their topics, or reassigned to other brokers.

        Those that are newer than the image are set aside.
        """
        removed: dict[Partition, LogFate] = {}
        for tp, topic_id, _, new in delta.partitions:
            topic = self._metadata.topics_by_id.get(topic_id)
            registration = _registration(topic, tp.partition)
            if registration is not None and self._node_id not in registration.replicas:
                event = "replica removed"
            elif new is None and topic is not None and topic.is_removed(tp.partition):
                event = "partition removed"
            else:
                continue
            if self._maintenance.unopened.get(tp) == topic_id:
                del self._maintenance.unopened[tp]
            partition = self._replicas.get(topic_id, tp.partition)
            if partition is not None:
                self._stop_following(partition)
                removed[partition] = self._fate_of(partition.log)
                event_log.info(event, partition=tp)
        if removed:
            await self._remove(removed, at_once=True)

    async def _remove(self, fates: Mapping[Partition, LogFate], *, at_once: bool) -> None:
        await self._replicas.remove(fates, at_once=at_once)
        await self._remove_logs({partition.log: fate for partition, fate in fates.items()})

    async def _remove_logs(self, fates: Mapping[Log, LogFate]) -> None:
        """Delete or set aside logs that no partition uses."""
        await self._logs.delete([log for log, fate in fates.items() if fate is LogFate.DELETE])
        await self._logs.set_aside([log for log, fate in fates.items() if fate is not LogFate.DELETE])


def _registration(topic: TopicImage | None, index: int) -> PartitionRegistration | None:
    """Return a partition of the current image; None if its topic was deleted, or the image lacks it for now."""
    return topic.partitions[index] if topic is not None and index < len(topic.partitions) else None
