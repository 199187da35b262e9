"""An administrator of a cluster under load: elections of preferred leaders, other topic configs, more partitions."""

import asyncio
from collections.abc import Sequence
from random import Random

from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.consumer.offset_lookup import RefusedError
from kbroker.simulation.clients.workloads.context import WorkloadContext

MAX_PARTITIONS = 5
PAUSE_S = 1.0
# None is the default of the brokers. No value permits to lose what was acknowledged to acks=all.
CONFIGS: dict[str, Sequence[str | None]] = {
    "min.insync.replicas": ("1", "2", None),
    "internal.segment.bytes": ("2048", "16384", None),
    "flush.messages": ("1", "20", None),
    "index.interval.bytes": ("0", "4096", None),
    "segment.ms": ("500", "5000", None),
}


async def administrate(context: WorkloadContext, name: str, random: Random, topics: Sequence[str]) -> None:
    """Administrate topics until stopped. The records, and the partitions that exist, are not affected."""
    admin = Admin(context.cluster(name, random), context.history, name, timeout_s=5.0)
    while not context.stop.requested:
        await asyncio.sleep(random.random() * 2 * PAUSE_S)
        topic = random.choice(topics)
        try:
            what = random.random()
            if what < 0.5:
                await admin.elect_preferred_leaders()
            elif what < 0.8:
                config = random.choice(sorted(CONFIGS))
                await admin.alter_configs(topic, {config: random.choice(CONFIGS[config])})
            else:
                await _grow(admin, topic)
        except (OSError, RefusedError) as error:
            context.history.note(name, f"failed: {error!r}")
    admin.close()


async def _grow(admin: Admin, topic: str) -> None:
    described = await admin.describe(topic)
    if described is not None and described.partitions < MAX_PARTITIONS:
        await admin.create_partitions(topic, described.partitions + 1)
