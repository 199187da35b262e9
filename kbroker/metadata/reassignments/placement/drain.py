"""Plans that drain, replace or rebuild brokers, give one its share, or change the replication factor of topics.

The plans of self-healing rebuild the replicas of absent brokers elsewhere, and give a returned broker its share.
"""

from collections.abc import Collection
from typing import NamedTuple

from kbroker.metadata.reassignments.placement.cluster_layout import (
    ClusterLayout,
    PlacedPartition,
    ReplicaTable,
    has_fewer_racks,
)
from kbroker.metadata.reassignments.placement.reassignment_plan import PlanRefused, ReassignmentPlan, plan_of


def drain(layout: ClusterLayout, broker_ids: Collection[int], *, allow_fewer_racks: bool = False) -> ReassignmentPlan:
    """Return the plan that moves all replicas off some brokers. Other replicas stay where they are.

    Raises PlanRefused if a partition would have fewer replicas or, without `allow_fewer_racks`, a worse spread over
    racks.
    """
    _require_known(layout, broker_ids)
    drained = frozenset(number for number, broker in enumerate(layout.brokers) if broker in set(broker_ids))
    table = ReplicaTable(layout)
    # The largest first: among brokers with equal counts, the one with the fewest bytes receives the next replica.
    affected = [number for number, replicas in enumerate(table.replicas) if not drained.isdisjoint(replicas)]
    affected.sort(key=lambda number: (-table.partition_sizes[number], number))
    for number in affected:
        _drain_partition(table, number, drained)
    plan = plan_of(layout, table.result())
    _require_racks(plan, allow_fewer_racks)
    return plan


def _require_known(layout: ClusterLayout, broker_ids: Collection[int]) -> None:
    unknown = sorted(set(broker_ids) - set(layout.brokers))
    if unknown:
        raise PlanRefused(f"there is no broker {unknown[0]}")


def _drain_partition(table: ReplicaTable, number: int, drained: frozenset[int]) -> None:
    """Replace the drained replicas. A drained preferred leader is replaced by the replica whose broker leads fewest."""
    replicas = table.replicas[number]
    was_leader = replicas[0] in drained
    former = set(replicas)
    # A drained replica does not count for its rack.
    kept = [broker for broker in replicas if broker not in drained]
    for broker in sorted(drained.intersection(replicas)):
        target = table.best_broker(kept, drained)
        if target is None:
            raise PlanRefused(_too_few_brokers(table, number, drained))
        table.move(number, broker, target)
        kept.append(target)
    if was_leader:
        table.prefer(number, min(replicas, key=lambda broker: (table.leaders[broker], broker not in former, broker)))


def _too_few_brokers(table: ReplicaTable, number: int, drained: frozenset[int]) -> str:
    partition = table.partitions[number]
    left = [broker for broker in table.accepting if broker not in drained]
    return (
        f"{partition} has {len(partition.replicas)} replica(s), and only {len(left)} broker(s) would accept replicas: "
        "add brokers, or lower the replication factor first"
    )


def replace(
    layout: ClusterLayout, broker_id: int, new_broker_id: int, *, allow_fewer_racks: bool = False
) -> ReassignmentPlan:
    """Return the plan that moves all replicas of one broker to another one, which takes the same positions.

    Raises PlanRefused if the new broker accepts no replicas, has one of the same partitions or, without
    `allow_fewer_racks`, is in a rack in which partitions would be spread worse.
    """
    _require_known(layout, (broker_id, new_broker_id))
    if broker_id == new_broker_id:
        raise PlanRefused(f"broker {broker_id} cannot replace itself")
    if not layout.brokers[new_broker_id].accepts_replicas:
        raise PlanRefused(f"broker {new_broker_id} accepts no replicas: it is fenced, cordoned or unknown")
    affected = [part for part in layout.partitions if broker_id in part.replicas]
    shared = [part for part in affected if new_broker_id in part.replicas]
    if shared:
        raise PlanRefused(
            f"broker {new_broker_id} already has replicas of {_examples(shared)}: drain broker {broker_id} instead"
        )
    plan = plan_of(
        layout,
        {
            (part.topic, part.partition): tuple(
                new_broker_id if other == broker_id else other for other in part.replicas
            )
            for part in affected
        },
    )
    _require_racks(plan, allow_fewer_racks)
    return plan


def _require_racks(plan: ReassignmentPlan, allow_fewer_racks: bool) -> None:
    """Raise PlanRefused if partitions have more replicas in one rack than before."""
    if allow_fewer_racks:
        return
    rack_of = {broker.id: broker.rack for broker in plan.layout.brokers.values()}
    worse = [
        str(move)
        for move in plan.moves
        if has_fewer_racks(map(rack_of.__getitem__, move.original), map(rack_of.__getitem__, move.target))
    ]
    if worse:
        text = worse[0] if len(worse) == 1 else f"{len(worse)} partitions, such as {worse[0]},"
        raise PlanRefused(f"{text} would be in fewer racks: no broker of another rack is left for a replica")


def _examples(partitions: list[PlacedPartition]) -> str:
    first = str(partitions[0])
    return first if len(partitions) == 1 else f"{len(partitions)} partitions, such as {first}"


def change_replication_factor(
    layout: ClusterLayout, topics: Collection[str], replication_factor: int
) -> ReassignmentPlan:
    """Return the plan that gives all partitions of some topics this number of replicas, at least 1.

    Added replicas come last, so preferred leaders stay. The leader's replica is never removed. Replicas that are not in
    sync are removed first, since they protect nothing now; then those in the racks with the most replicas. Raises
    PlanRefused if there are too few brokers.
    """
    wanted = set(topics)
    unknown = sorted(wanted - {part.topic for part in layout.partitions})
    if unknown:
        raise PlanRefused(f"topic {unknown[0]} does not exist")
    table = ReplicaTable(layout)
    selected = [number for number, part in enumerate(table.partitions) if part.topic in wanted]
    selected.sort(key=lambda number: (-table.partition_sizes[number], number))
    for number in selected:
        while len(table.replicas[number]) < replication_factor:
            _add_replica(table, number, replication_factor)
        while len(table.replicas[number]) > replication_factor:
            table.remove(number, _least_needed(table, number))
    return plan_of(layout, table.result())


def _add_replica(table: ReplicaTable, number: int, replication_factor: int) -> None:
    broker = table.best_broker(table.replicas[number])
    if broker is None:
        raise PlanRefused(
            f"{table.partitions[number]} cannot have {replication_factor} replicas: only {len(table.accepting)} "
            "broker(s) accept replicas"
        )
    table.add(number, broker)


def _least_needed(table: ReplicaTable, number: int) -> int:
    """Return the replica to remove. On a tie the preferred leader stays, so that leaders stay balanced."""
    partition, replicas = table.partitions[number], table.replicas[number]
    leader = partition.leader if partition.leader is not None else partition.replicas[0]
    candidates = [broker for broker in replicas if table.ids[broker] != leader]
    return max(
        candidates,
        key=lambda broker: (
            table.ids[broker] in partition.out_of_sync,
            table.replicas_in_rack(number, table.racks[broker]),
            broker != replicas[0],
            table.counts[broker],
            table.sizes[broker],
            broker,
        ),
    )


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
