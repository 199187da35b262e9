"""The layout of a cluster's replicas: brokers with their racks, partitions with their replicas and sizes."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class ClusterBroker(NamedTuple):
    """A broker that has replicas, or may get some.

    `accepts_replicas`: False for a broker that must not receive any, as it is fenced, cordoned or unknown. Brokers
    without a rack count as one more rack. `free_bytes`: the space that is left in its log directories, if known.
    `is_away`: whether the broker is known and fenced.
    """

    id: int
    rack: str | None = None
    accepts_replicas: bool = True
    free_bytes: int | None = None
    is_away: bool = False


class PlacedPartition(NamedTuple):
    """A partition with its replicas, the preferred leader first.

    A partition whose `leader` is None cannot be copied, so its replicas stay where they are. `size_bytes`: the size of
    one replica. `out_of_sync`: the replicas that are not in the ISR. A partition that is being reassigned appears with
    its target replicas, and does not move.
    """

    topic: str
    partition: int
    replicas: tuple[int, ...]
    leader: int | None
    size_bytes: int = 0
    out_of_sync: frozenset[int] = frozenset()
    is_reassigning: bool = False

    @property
    def is_movable(self) -> bool:
        return self.leader is not None and not self.is_reassigning

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ClusterLayout(NamedTuple):
    """Brokers by id, in the order of their ids, and partitions in the order of topic and partition."""

    brokers: Mapping[int, ClusterBroker]
    partitions: tuple[PlacedPartition, ...]


def cluster_layout(brokers: Iterable[ClusterBroker], partitions: Iterable[PlacedPartition]) -> ClusterLayout:
    """Return the layout of a cluster. A broker that is known only as a replica has no rack and accepts no replicas."""
    ordered = tuple(sorted(partitions, key=lambda partition: (partition.topic, partition.partition)))
    by_id = {broker_id: ClusterBroker(broker_id, None, False) for part in ordered for broker_id in part.replicas}
    by_id |= {broker.id: broker for broker in brokers}
    return ClusterLayout(dict(sorted(by_id.items())), ordered)


def with_replicas(layout: ClusterLayout, replicas: Mapping[tuple[str, int], tuple[int, ...]]) -> ClusterLayout:
    """Return the layout after some partitions, by topic and partition, got other replicas."""
    partitions = tuple(
        part._replace(replicas=replicas[part.topic, part.partition])
        if (part.topic, part.partition) in replicas
        else part
        for part in layout.partitions
    )
    return layout._replace(partitions=partitions)
