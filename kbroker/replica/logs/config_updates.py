"""Applies changed configs to the partitions of this broker, in turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kbroker.replica.partition import Partition
from kbroker.runtime.turns import paced

if TYPE_CHECKING:
    from asyncio import Task

    from kbroker.config.topic_config import TopicConfig
    from kbroker.metadata.image import MetadataImage
    from kbroker.replica.replica_manager import ReplicaManager
    from kbroker.runtime.environment import Environment

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
