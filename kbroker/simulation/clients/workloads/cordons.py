"""An operator who cordons one broker after another, drains some of them, and uses them again (KIP-1066).

Meanwhile others create topics and partitions, which get no replicas on a broker that is cordoned: ClusterInvariants.
"""

import asyncio
from random import Random

from kbroker.metadata.reassignments.placement.reassignment_plan import PlanRefused
from kbroker.simulation.clients.admin import BROKER, Admin
from kbroker.simulation.clients.consumer.offset_lookup import RefusedError
from kbroker.simulation.clients.workloads.context import WorkloadContext
from kbroker.simulation.clients.workloads.operator_plans import draw_drain

PAUSE_S = 1.0
# The share of cordoned brokers that are drained, and how many moves of that run at a time.
DRAINS, MOVES = 0.6, 2
CONFIG, ALL_DIRECTORIES = "cordoned.log.dirs", "*"


async def cordon_brokers(context: WorkloadContext, name: str, random: Random, needed: int) -> None:
    """Cordon and uncordon brokers until stopped. At most one is cordoned at a time, and `needed` others are alive."""
    admin = Admin(context.cluster(name, random), context.history, name, timeout_s=5.0)
    cordoned: int | None = None
    while not context.stop.requested:
        await asyncio.sleep(random.random() * 2 * PAUSE_S)
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
