"""The partitions on this broker whose topics have delayed delivery."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kbroker.queues.delay.delay_extension import DelayExtension
from kbroker.queues.delay.delay_metrics import DelayMetrics
from kbroker.queues.delay.delivery import DelayedDelivery
from kbroker.queues.delay.follower_snapshots import FollowerSnapshots

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition
    from kbroker.runtime.environment import Environment


class DelayedTopics:
    """Starts and stops delivery when this broker becomes the leader of a partition, or stops leading it."""

    def __init__(self, environment: Environment) -> None:
        self.metrics = DelayMetrics()
        self._environment = environment
        self._deliveries: dict[Partition, DelayedDelivery] = {}
        self._followed: dict[Partition, FollowerSnapshots] = {}

    def configure(self, partition: Partition) -> DelayExtension | None:
        """Apply the configs and the role of a partition: start or stop its delivery and its follower snapshots.

        Returns its append extension; None if the topic has no delay, or this broker does not lead the partition.
        """
        delivery = self._deliveries.get(partition)
        is_enabled = partition.log.config.kbroker_delay_enable and not partition.is_closed
        if delivery is not None and not (is_enabled and delivery.is_leading):
            delivery.stop()
            del self._deliveries[partition]
            delivery = None
        self._configure_follower(partition, is_enabled and not partition.is_leader)
        if not is_enabled:
            return None
        partition.retention_limit = partial(self._retention_limit, partition)
        if delivery is None and partition.is_leader:
            delivery = self._deliveries[partition] = DelayedDelivery(self._environment, partition, self.metrics)
            delivery.start()
        if delivery is None:
            return None
        return DelayExtension(self._environment.clock, delivery, partition.log.config)

    def _configure_follower(self, partition: Partition, is_following: bool) -> None:
        if is_following and partition not in self._followed:
            snapshots = self._followed[partition] = FollowerSnapshots(self._environment, partition)
            snapshots.start()
        elif not is_following and partition in self._followed:
            self._followed.pop(partition).stop()

    def delivery_of(self, partition: Partition) -> DelayedDelivery | None:
        """Return the delivery of a partition that this broker leads; None if its topic has no delay."""
        return self._deliveries.get(partition)

    def deliveries(self) -> dict[Partition, DelayedDelivery]:
        return self._deliveries

    @property
    def pending_count(self) -> int:
        return sum([delivery.state.count for delivery in self._deliveries.values()])

    def _retention_limit(self, partition: Partition, now_ms: int) -> int:
        """Return the offset below which retention may delete. A follower deletes only what its leader has deleted."""
        delivery = self._deliveries.get(partition)
        return partition.log.log_start_offset if delivery is None else delivery.retention_limit(now_ms)

    async def stop(self) -> None:
        """Stop all deliveries, and write their snapshots."""
        deliveries, self._deliveries = list(self._deliveries.values()), {}
        followed, self._followed = list(self._followed.values()), {}
        for snapshots in followed:
            await snapshots.stop_and_wait()
        for delivery in deliveries:
            await delivery.stop_and_wait()
