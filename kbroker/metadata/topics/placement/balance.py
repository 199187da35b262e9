"""Balance: moves that make a layout meet the goals of placement."""

from kbroker.metadata.topics.placement.balance_bytes import balance_bytes
from kbroker.metadata.topics.placement.balance_leaders import balance_leaders, balance_topic_leaders
from kbroker.metadata.topics.placement.balance_replicas import balance_counts, balance_racks
from kbroker.metadata.topics.placement.cluster_layout import ClusterLayout, with_replicas
from kbroker.metadata.topics.placement.reassignment_plan import ReassignmentPlan, plan_of
from kbroker.metadata.topics.placement.replica_table import ReplicaTable

# In descending priority: no step undoes the result of an earlier one.
STEPS = (balance_racks, balance_counts, balance_leaders, balance_bytes, balance_topic_leaders)


def balance(layout: ClusterLayout) -> ReassignmentPlan:
    """Return the plan that balances a cluster, without moves if it is balanced. Raises PlanRefused.

    Replicas on brokers that accept none stay there, and so do replicas of partitions that have no leader or are being
    reassigned. Where racks or sizes prevent equal brokers, the plan ends when no single move or exchange between two
    brokers improves the balance. It prefers to move few bytes, but does not search for the minimum.
    """
    current = layout
    while True:
        # A new table for each pass, so that a second plan would begin with the same table.
        table = ReplicaTable(current)
        changes = [step(table) for step in STEPS]
        if not any(changes):
            return plan_of(layout, {(part.topic, part.partition): part.replicas for part in current.partitions})
        current = with_replicas(current, table.result())
