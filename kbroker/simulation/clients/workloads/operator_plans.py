"""Plans that an operator of a cluster makes: drain, balance, replace, another replication factor.

They come from the planners that the command line uses, on the layout that Metadata shows. All replicas count as equally
large.
"""

from random import Random

from kbroker.metadata.reassignments.placement.balance import balance
from kbroker.metadata.reassignments.placement.cluster_layout import (
    ClusterBroker,
    ClusterLayout,
    PlacedPartition,
    cluster_layout,
)
from kbroker.metadata.reassignments.placement.drain import change_replication_factor, drain, replace
from kbroker.metadata.reassignments.placement.reassignment_plan import ReassignmentPlan
from kbroker.simulation.clients.connections.cluster import Cluster
from protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from protocol.messages.k10000_create_reassignment_plan import PlannedMove

# The shares of the kinds of plans. The rest changes the replication factor of a topic.
DRAIN, BALANCE, REPLACE = 0.4, 0.3, 0.2


async def draw_operator_plan(cluster: Cluster, random: Random, replication_factors: range) -> list[PlannedMove]:
    """Return the moves of a plan for all topics of the cluster, internal ones included.

    Raises PlanRefused, OSError.
    """
    return _moves(_draw_plan(await _read_layout(cluster), random, replication_factors))


async def draw_drain(cluster: Cluster, broker: int, *, allow_fewer_racks: bool) -> list[PlannedMove]:
    """Return the moves of a plan that takes all replicas from a broker. Raises PlanRefused, OSError."""
    return _moves(drain(await _read_layout(cluster), [broker], allow_fewer_racks=allow_fewer_racks))


def _moves(plan: ReassignmentPlan) -> list[PlannedMove]:
    return [
        PlannedMove(
            topic_name=move.topic,
            partition_index=move.partition,
            original_replicas=list(move.original),
            target_replicas=list(move.target),
        )
        for move in plan.moves
    ]


def _draw_plan(layout: ClusterLayout, random: Random, replication_factors: range) -> ReassignmentPlan:
    """Raises PlanRefused."""
    what, brokers = random.random(), sorted(layout.brokers)
    allow_fewer_racks = random.random() < 0.5
    if what < DRAIN:
        return drain(layout, [random.choice(brokers)], allow_fewer_racks=allow_fewer_racks)
    if what < DRAIN + BALANCE:
        return balance(layout)
    if what < DRAIN + BALANCE + REPLACE:
        return replace(layout, random.choice(brokers), random.choice(brokers), allow_fewer_racks=allow_fewer_racks)
    topics = sorted({partition.topic for partition in layout.partitions})
    return change_replication_factor(layout, topics and [random.choice(topics)], random.choice(replication_factors))


async def _read_layout(cluster: Cluster) -> ClusterLayout:
    """Return the layout according to one broker, which may be outdated. Raises OSError."""
    connection = await cluster.any_node()
    response = await connection.request(MetadataRequest(topics=None, allow_auto_topic_creation=False), MetadataResponse)
    return cluster_layout(
        [ClusterBroker(broker.node_id, broker.rack) for broker in response.brokers],
        [
            PlacedPartition(
                topic.name or "",
                row.partition_index,
                tuple(row.replica_nodes),
                row.leader_id if row.leader_id >= 0 else None,
                out_of_sync=frozenset(row.replica_nodes).difference(row.isr_nodes),
            )
            for topic in response.topics
            for row in topic.partitions
        ],
    )
