"""Balance: moves that bring a layout to the goals of placement."""

from kbroker.metadata.topics.placement.balance_bytes import balance_bytes
from kbroker.metadata.topics.placement.balance_leaders import balance_leaders, balance_topic_leaders
from kbroker.metadata.topics.placement.balance_replicas import balance_counts, balance_racks
from kbroker.metadata.topics.placement.cluster_layout import ClusterLayout, with_replicas
from kbroker.metadata.topics.placement.reassignment_plan import ReassignmentPlan, plan_of
from kbroker.metadata.topics.placement.replica_table import ReplicaTable

# In the order of their weight: none undoes what an earlier one has reached.
STEPS = (balance_racks, balance_counts, balance_leaders, balance_bytes, balance_topic_leaders)


def balance(layout: ClusterLayout) -> ReassignmentPlan:
    """Return the plan that balances a cluster, without moves if it is balanced. Raises PlanRefused.

    Replicas on brokers that accept none stay there, as do all replicas of partitions without a leader and of those that
    are being reassigned. Where racks or sizes prevent equal brokers, the plan ends where no single move or exchange
    between two brokers helps. It prefers few bytes, but does not search for the fewest.
    """
    current = layout
    while True:
        # A new table for each pass, so that the result of a plan is what a second plan begins with.
        table = ReplicaTable(current)
        changes = [step(table) for step in STEPS]
        if not any(changes):
            return plan_of(layout, {(part.topic, part.partition): part.replicas for part in current.partitions})
        current = with_replicas(current, table.result())
