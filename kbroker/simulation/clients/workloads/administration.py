"""An administrator of a cluster under load: leader elections, other topic configs, more partitions, reassignments.

Some of the reassignments are plans that the controller runs: of random moves, or those of an operator who drains or
replaces a broker, or balances the cluster. Brokers are unregistered, too; those that are alive register again.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from kbroker.metadata.reassignments.placement.balance import balance
from kbroker.metadata.reassignments.placement.cluster_layout import (
    ClusterBroker,
    ClusterLayout,
    PlacedPartition,
    cluster_layout,
)
from kbroker.metadata.reassignments.placement.drain import change_replication_factor, drain, replace
from kbroker.metadata.reassignments.placement.reassignment_plan import PlanRefused, ReassignmentPlan
from kbroker.simulation.clients.admin import BROKER, Admin
from kbroker.simulation.clients.cluster import Cluster, RefusedError
from kbroker.simulation.clients.workloads.context import WorkloadContext
from protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from protocol.messages.k10000_reassignment_plans import PlannedMove

MAX_PARTITIONS = 5
PAUSE_S = 0.3
# With fewer replicas, the loss of one machine would lose what was acknowledged.
MIN_REPLICAS, MAX_REPLICAS = 2, 3
CANCELLATIONS = 0.3
# Bytes per second, -1 for none.
THROTTLES = (-1, -1, 1_000_000)
MAX_MOVES = 6
OPERATOR_PLANS = 0.6
# None is the default of the brokers. No value permits to lose what was acknowledged to acks=all.
CONFIGS: dict[str, Sequence[str | None]] = {
    "min.insync.replicas": ("1", "2", None),
    "internal.segment.bytes": ("2048", "16384", None),
    "flush.messages": ("1", "20", None),
    "index.interval.bytes": ("0", "4096", None),
    "segment.ms": ("500", "5000", None),
}


async def administrate(
    context: WorkloadContext,
    name: str,
    random: Random,
    topics: Sequence[str],
    moved_topics: Sequence[str],
    has_lossy_replica: Callable[[], bool],
) -> None:
    """Administrate topics until stopped. The records, and the partitions that exist, are not affected.

    `moved_topics`: those of which partitions are moved, which may be deleted meanwhile. `has_lossy_replica`: a broker
    has lost data, and is still in an ISR. Unregistering the other members would then lose acknowledged records.
    """
    admin = Admin(context.cluster(name, random), context.history, name, timeout_s=5.0)
    while not context.stop.requested:
        await asyncio.sleep(random.random() * 2 * PAUSE_S)
        topic = random.choice(topics)
        try:
            what = random.random()
            if what < 0.15:
                await admin.elect_preferred_leaders()
            elif what < 0.25:
                config = random.choice(sorted(CONFIGS))
                await admin.alter_configs(topic, {config: random.choice(CONFIGS[config])})
            elif what < 0.35:
                await _grow(admin, topic)
            elif what < 0.55:
                await _reassign(admin, random, random.choice(moved_topics))
            elif what < 0.95:
                await _plan(admin, random, moved_topics)
            elif not has_lossy_replica():
                await _unregister(admin, random)
        except (OSError, RefusedError, PlanRefused) as error:
            context.history.note(name, f"failed: {error!r}")
    admin.close()


async def _grow(admin: Admin, topic: str) -> None:
    described = await admin.describe(topic)
    if described is not None and described.partitions < MAX_PARTITIONS:
        await admin.create_partitions(topic, described.partitions + 1)


async def _reassign(admin: Admin, random: Random, topic: str) -> None:
    """Move a partition to random brokers, whether or not it is being moved; or cancel that."""
    described = await admin.describe(topic)
    if described is None or not described.partitions:
        return
    index, nodes = random.randrange(described.partitions), sorted(admin.cluster.nodes)
    if random.random() < CANCELLATIONS:
        await admin.reassign(topic, index, None)
    elif len(nodes) >= MIN_REPLICAS:
        count = random.randint(MIN_REPLICAS, min(MAX_REPLICAS, len(nodes)))
        await admin.reassign(topic, index, random.sample(nodes, count))


async def _unregister(admin: Admin, random: Random) -> None:
    """Unregister a broker, which may be down."""
    await admin.cluster.refresh_metadata([])
    if admin.cluster.nodes:
        await admin.unregister_broker(random.randint(1, max(admin.cluster.nodes)))


async def _plan(admin: Admin, random: Random, topics: Sequence[str]) -> None:
    """Let the controller run a plan, or cancel the one that it runs."""
    if random.random() < CANCELLATIONS:
        await admin.cancel_plan()
        return
    if random.random() < OPERATOR_PLANS:
        moves = await draw_operator_plan(admin.cluster, random, range(MIN_REPLICAS, MAX_REPLICAS + 1))
    else:
        moves = await _random_moves(admin, random, topics)
    if moves:
        await admin.create_plan(moves, random.randint(1, 3), random.choice(THROTTLES))


async def _random_moves(admin: Admin, random: Random, topics: Sequence[str]) -> list[PlannedMove]:
    """Return moves of several partitions to random brokers."""
    partitions = sorted((await admin.replicas(topics)).items())
    nodes = sorted(admin.cluster.nodes)
    if len(nodes) < MIN_REPLICAS or not partitions:
        return []
    moves = []
    for (topic, index), replicas in random.sample(partitions, random.randint(1, min(MAX_MOVES, len(partitions)))):
        count = random.randint(MIN_REPLICAS, min(MAX_REPLICAS, len(nodes)))
        target = random.sample(nodes, count)
        if target != replicas:
            moves.append(
                PlannedMove(topic_name=topic, partition_index=index, original_replicas=replicas, target_replicas=target)
            )
    return moves


# Plans that an operator of a cluster makes: drain, balance, replace, another replication factor.
#
# They come from the planners that the command line uses, on the layout that Metadata shows. All replicas count as
# equally large.

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


# An operator who cordons one broker after another, drains some of them, and uses them again (KIP-1066).
#
# Meanwhile others create topics and partitions, which get no replicas on a broker that is cordoned: ClusterInvariants.

CORDON_PAUSE_S = 1.0
# The share of cordoned brokers that are drained, and how many moves of that run at a time.
DRAINS, MOVES = 0.6, 2
CONFIG, ALL_DIRECTORIES = "cordoned.log.dirs", "*"


async def cordon_brokers(context: WorkloadContext, name: str, random: Random, needed: int) -> None:
    """Cordon and uncordon brokers until stopped. At most one is cordoned at a time, and `needed` others are alive."""
    admin = Admin(context.cluster(name, random), context.history, name, timeout_s=5.0)
    cordoned: int | None = None
    while not context.stop.requested:
        await asyncio.sleep(random.random() * 2 * CORDON_PAUSE_S)
        try:
            await admin.cluster.refresh_metadata([])
            if cordoned is not None:
                await _alter(admin, cordoned, None)
                cordoned = None
            elif len(admin.cluster.nodes) > needed:
                # If the response is lost, it may be cordoned.
                cordoned = random.choice(sorted(admin.cluster.nodes))
                await _alter(admin, cordoned, ALL_DIRECTORIES)
                if random.random() < DRAINS:
                    moves = await draw_drain(admin.cluster, cordoned, allow_fewer_racks=random.random() < 0.5)
                    if moves:
                        await admin.create_plan(moves, MOVES, -1)
        except (OSError, RefusedError, PlanRefused) as error:
            context.history.note(name, f"failed: {error!r}")
    admin.close()


async def _alter(admin: Admin, broker: int, value: str | None) -> None:
    """Only a broker itself alters its configs; while it is away, others may cordon it. Raises OSError, RefusedError."""
    node = broker if broker in admin.cluster.nodes else None
    await admin.alter_configs(str(broker), {CONFIG: value}, kind=BROKER, node=node)
