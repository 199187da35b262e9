"""ReplicaFetcherManager: one ReplicaFetcher for each broker that leads partitions of this broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.common import NO_LEADER
from kbroker.replica.fetcher.leader_end_point import LeaderEndPoint
from kbroker.replica.fetcher.partition_fetch_state import PartitionFetchState
from kbroker.replica.fetcher.replica_fetcher import ReplicaFetcher
from kbroker.replica.quota.replication_quota import follower_quota

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig
    from kbroker.metadata.image import PartitionRegistration
    from kbroker.replica.partition import Partition
    from kbroker.runtime.environment import Environment


class ReplicaFetcherManager:
    """`broker_epoch` returns the epoch of this broker's registration, with which the leaders check its fetches."""

    def __init__(
        self,
        environment: Environment,
        node_id: int,
        broker_epoch: Callable[[], int],
        leaders: LeaderEndPoint,
        config: Callable[[], BrokerConfig],
    ) -> None:
        # The quota of all fetches of this broker as a follower.
        self.quota = follower_quota(config)
        self._environment = environment
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._leaders = leaders
        self._config = config
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._states: dict[Partition, PartitionFetchState] = {}
        self._stopped = False

    def update(self, partition: Partition, registration: PartitionRegistration) -> None:
        """Fetch the partition from its leader in this epoch, or not at all if it has none or is led here."""
        state = self._states.get(partition)
        leader, epoch = registration.leader, registration.leader_epoch
        if state is not None and (state.leader_id, state.leader_epoch) == (leader, epoch):
            return
        self.remove(partition)
        if leader in (NO_LEADER, self._node_id) or partition.is_closed or self._stopped:
            return
        if partition.log.health.offline is not None:
            # A fetch would claim records that the disk may not have.
            return
        state = self._states[partition] = PartitionFetchState(partition, leader, epoch)
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = ReplicaFetcher(
                self._environment, leader, self._leaders, self._replica, self._config, self.quota
            )
            fetcher.start()
        fetcher.add(state)

    def remove(self, partition: Partition) -> None:
        """Stop fetching a partition. A response that arrives later is not applied to it."""
        state = self._states.pop(partition, None)
        if state is not None:
            self._fetchers[state.leader_id].remove(state)

    def states(self) -> list[PartitionFetchState]:
        """Return the partitions that are followed."""
        return list(self._states.values())

    def _replica(self) -> tuple[int, int]:
        return self._node_id, self._broker_epoch()

    async def stop(self) -> None:
        """Stop all fetchers. Waits for truncations in progress."""
        self._stopped = True
        for fetcher in self._fetchers.values():
            await fetcher.stop()
        self._states.clear()
