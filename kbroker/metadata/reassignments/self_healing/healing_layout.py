"""The layout of a cluster for plans of the controller, from the metadata and the brokers' reports of their disks."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kbroker.common import NO_LEADER
from kbroker.metadata.image import KnownBroker, PartitionRegistration, TopicImage
from kbroker.metadata.replication.broker_changes import acceptable_leaders
from kbroker.metadata.replication.reassignment import target_replicas
from kbroker.metadata.topics.placement.cluster_layout import (
    ClusterBroker,
    ClusterLayout,
    PlacedPartition,
    cluster_layout,
)

# No user watches a plan of the controller, so it leaves this fraction of each disk free.
RESERVED = 0.1


class BrokerDisk(NamedTuple):
    """A broker's report: the bytes of its replicas by topic and partition, and of its file system, if known.

    `is_cordoned`: its log directory is in cordoned.log.dirs.
    """

    sizes: Mapping[tuple[str, int], int]
    total_bytes: int | None = None
    free_bytes: int | None = None
    is_cordoned: bool = False

    @property
    def room_bytes(self) -> int | None:
        """The bytes that the broker may receive; None if that is unknown."""
        if self.free_bytes is None or self.total_bytes is None:
            return None
        return max(self.free_bytes - round(self.total_bytes * RESERVED), 0)


def healing_layout(
    topics: Mapping[str, TopicImage], known: Mapping[int, KnownBroker], disks: Mapping[int, BrokerDisk]
) -> ClusterLayout:
    """Return the layout of all partitions.

    A broker accepts replicas if it is alive, has reported its disk, can write to it, is not cordoned, and was not
    drained.
    """
    alive = acceptable_leaders(known)
    brokers = [
        ClusterBroker(
            broker_id,
            broker.registration.rack,
            broker_id in alive
            and broker_id in disks
            and not broker.registration.write_health
            and not disks[broker_id].is_cordoned
            and not is_drained(broker_id, broker, topics),
            disks[broker_id].room_bytes if broker_id in disks else None,
        )
        for broker_id, broker in known.items()
    ]
    return cluster_layout(brokers, _partitions(topics, disks))


def is_drained(broker_id: int, broker: KnownBroker, topics: Mapping[str, TopicImage]) -> bool:
    """Return whether a broker was drained, and has received no replica since."""
    if not broker.history.is_drained:
        return False
    return all(broker_id not in partition.replicas for topic in topics.values() for partition in topic.partitions)


def _partitions(topics: Mapping[str, TopicImage], disks: Mapping[int, BrokerDisk]) -> Iterator[PlacedPartition]:
    for topic in topics.values():
        for index, partition in enumerate(topic.partitions):
            replicas = tuple(target_replicas(partition))
            yield PlacedPartition(
                topic.name,
                index,
                replicas,
                None if partition.leader == NO_LEADER else partition.leader,
                _size(partition, (topic.name, index), disks),
                frozenset(replicas).difference(partition.isr),
                partition.is_reassigning,
            )


def _size(partition: PartitionRegistration, key: tuple[str, int], disks: Mapping[int, BrokerDisk]) -> int:
    """Return the bytes of the leader's replica, or those of the largest if the leader has not reported it."""
    if partition.leader in disks and key in disks[partition.leader].sizes:
        return disks[partition.leader].sizes[key]
    return max((disks[broker].sizes.get(key, 0) for broker in partition.replicas if broker in disks), default=0)
