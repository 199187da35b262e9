"""Plans of self-healing: rebuild the replicas of absent brokers elsewhere, and give a returned broker its share.

They are made for the layout that follows from the metadata and the brokers' reports of their disks (`healing_layout`).
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from kbroker.common import NO_LEADER
from kbroker.metadata.image import KnownBroker, PartitionRegistration, TopicImage
from kbroker.metadata.reassignments.placement.cluster_layout import (
    ClusterBroker,
    ClusterLayout,
    PlacedPartition,
    cluster_layout,
)
from kbroker.metadata.reassignments.placement.reassignment_plan import ReassignmentPlan, plan_of
from kbroker.metadata.reassignments.placement.replica_table import ReplicaTable
from kbroker.metadata.replication.broker_changes import acceptable_leaders
from kbroker.metadata.replication.partition_change import target_replicas

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


class Rebuild(NamedTuple):
    """`plan` has the moves. These partitions of the absent brokers cannot be rebuilt now:

    `homeless`: no other broker may hold the replica, or has space for it. `leaderless`: there is nothing to copy from.
    """

    plan: ReassignmentPlan
    homeless: tuple[PlacedPartition, ...]
    leaderless: tuple[PlacedPartition, ...]


class _Room:
    """The bytes that brokers may still receive."""

    def __init__(self, layout: ClusterLayout) -> None:
        self._left = [broker.free_bytes for broker in layout.brokers.values()]

    def too_small(self, size_bytes: int) -> frozenset[int]:
        return frozenset(number for number, left in enumerate(self._left) if left is not None and left < size_bytes)

    def use(self, number: int, size_bytes: int) -> None:
        left = self._left[number]
        if left is not None:
            self._left[number] = left - size_bytes


def rebuild(layout: ClusterLayout, away: Collection[int], max_moves: int) -> Rebuild:
    """Return the plan that replaces one replica of each partition that has some on brokers that are `away`.

    The partitions with the fewest in-sync replicas come first. Racks are kept if possible; fewer racks are accepted,
    since a replica in the same rack protects better than none. Each plan replaces one replica of a partition, so a
    partition with several replicas on these brokers needs as many plans.
    """
    gone = frozenset(number for number, broker in enumerate(layout.brokers) if broker in away)
    table, room = ReplicaTable(layout), _Room(layout)
    affected = [number for number, replicas in enumerate(table.replicas) if not gone.isdisjoint(replicas)]
    affected.sort(key=lambda number: (table.partitions[number].in_sync, -table.partition_sizes[number], number))
    homeless: list[PlacedPartition] = []
    leaderless: list[PlacedPartition] = []
    moves = 0
    for number in affected:
        partition, size_bytes = table.partitions[number], table.partition_sizes[number]
        if partition.leader is None:
            leaderless.append(partition)
        elif not partition.is_reassigning and moves < max_moves:
            kept = [broker for broker in table.replicas[number] if broker not in gone]
            target = table.best_broker(kept, gone | room.too_small(size_bytes))
            if target is None:
                homeless.append(partition)
                continue
            _replace(table, number, gone, target)
            room.use(target, size_bytes)
            moves += 1
    return Rebuild(plan_of(layout, table.result()), tuple(homeless), tuple(leaderless))


def _replace(table: ReplicaTable, number: int, gone: frozenset[int], target: int) -> None:
    """Replace one of the absent replicas. If it was the preferred leader, a replica that is not absent becomes it."""
    replicas = table.replicas[number]
    former = [broker for broker in replicas if broker not in gone]
    was_leader = replicas[0] in gone
    table.move(number, next(broker for broker in replicas if broker in gone), target)
    if was_leader:
        # The new replica has the position of the preferred leader, and is counted as such.
        candidates = [*former, target]
        key = {broker: (table.leaders[broker] - (broker == target), broker == target, broker) for broker in candidates}
        table.prefer(number, min(candidates, key=key.__getitem__))


def take_share(layout: ClusterLayout, broker_id: int, max_moves: int) -> ReassignmentPlan:
    """Return the plan that moves replicas to one broker, until it has its share or `max_moves` were moved.

    They come from the brokers that have the most, and from racks that have two replicas of a partition. No partition is
    spread over fewer racks afterwards. The broker also becomes the preferred leader of its share of these partitions.
    """
    table, room = ReplicaTable(layout), _Room(layout)
    taker = table.ids.index(broker_id)
    taken: list[int] = []
    if table.accepts[taker]:
        for wants in (_improves_racks, _evens_counts):
            for number, replicas in enumerate(table.replicas):
                if len(taken) >= max_moves:
                    break
                if not table.is_movable[number] or taker in replicas:
                    continue
                sources = [
                    broker for broker in replicas if table.accepts[broker] and wants(table, number, broker, taker)
                ]
                if sources and taker not in room.too_small(table.partition_sizes[number]):
                    source = max(sources, key=lambda broker: (table.counts[broker], broker))
                    table.move(number, source, taker)
                    room.use(taker, table.partition_sizes[number])
                    taken.append(number)
        _share_leaders(table, taker, taken)
    return plan_of(layout, table.result())


def _improves_racks(table: ReplicaTable, number: int, source: int, taker: int) -> bool:
    racks = table.racks
    in_rack = table.replicas_in_rack(number, racks[source])
    return in_rack - table.replicas_in_rack(number, racks[taker]) >= 2 and table.counts[source] > table.counts[taker]


def _evens_counts(table: ReplicaTable, number: int, source: int, taker: int) -> bool:
    return table.counts[source] - table.counts[taker] >= 2 and table.keeps_racks(number, source, taker)


def _share_leaders(table: ReplicaTable, taker: int, taken: list[int]) -> None:
    """Choose the preferred leaders of the partitions that were moved, so that the broker leads its share."""
    for number in taken:
        preferred, *others = table.replicas[number]
        others = [broker for broker in others if table.accepts[broker]]
        fewest = min(others, key=lambda broker: (table.leaders[broker], broker), default=preferred)
        if preferred == taker and table.leaders[taker] - table.leaders[fewest] >= 2:
            table.prefer(number, fewest)
        elif preferred != taker and table.leaders[preferred] - table.leaders[taker] >= 2:
            table.prefer(number, taker)
