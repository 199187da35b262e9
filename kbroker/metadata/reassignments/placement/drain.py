"""Plans that drain or replace brokers, or change the replication factor of topics."""

from collections.abc import Collection

from kbroker.metadata.reassignments.placement.cluster_layout import ClusterLayout, PlacedPartition, has_fewer_racks
from kbroker.metadata.reassignments.placement.reassignment_plan import PlanRefused, ReassignmentPlan, plan_of
from kbroker.metadata.reassignments.placement.replica_table import ReplicaTable


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
        f"{move.topic}-{move.partition}"
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
