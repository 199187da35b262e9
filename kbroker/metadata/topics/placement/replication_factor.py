"""Changes of the replication factor: which brokers get the added replicas, and which replicas are removed."""

from collections.abc import Collection

from kbroker.metadata.topics.placement.cluster_layout import ClusterLayout
from kbroker.metadata.topics.placement.reassignment_plan import PlanRefused, ReassignmentPlan, plan_of
from kbroker.metadata.topics.placement.replica_table import ReplicaTable


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
