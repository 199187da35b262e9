"""What changes of the metadata cost in a large cluster and in a small one, with as many brokers."""

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from kbroker.config.config_def import ConfigResourceType
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.metadata.topics.topic_requests import NewTopic
from kbroker.runtime.environment import Environment
from scripts.benchmark.scale.metadata_cluster import CONTROLLER, FOLLOWER, MetadataCluster, Traffic

TOPIC_PARTITIONS = 100
THREADS = 2
HEADING = (
    "| change | processor ms | multis | operations | KB written | nodes that each broker reads | KB | processor ms |\n"
    "|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Cost:
    """The controller's processor time and writes; then the processor time and reads of one broker that follows."""

    controller_ms: float
    written: Traffic
    follower_ms: float
    read: Traffic

    @property
    def row(self) -> str:
        written, read = self.written, self.read
        return (
            f"{self.controller_ms:,.1f} | {written.multis:,} | {written.operations:,} "
            f"| {written.bytes_written / 1000:,.1f} | {read.nodes_read:,} | {read.bytes_read / 1000:,.1f} "
            f"| {self.follower_ms:,.1f}"
        )


class MetadataCosts:
    """Measures one cluster, in the order of `measure`."""

    def __init__(self, cluster: MetadataCluster, brokers: int, topics: int, repeats: int) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._topics = topics
        self._repeats = repeats

    async def measure(self) -> dict[str, Cost]:
        """Return the costs by change. The follower follows after the change, so that both are measured alone."""
        cluster = self._cluster
        await cluster.start(self._brokers)
        await cluster.create_topics(self._topics, TOPIC_PARTITIONS)
        follower = cluster.members[FOLLOWER]
        await follower.loader.catch_up()
        follower.loader.stop()
        for index in range(self._repeats):
            await cluster.prefer_second("topic-1", index)
        await follower.loader.catch_up()
        costs = {
            "a new topic of 3 partitions": await self._repeated(
                lambda number: cluster.create([NewTopic(f"new-{number}", 3, 3)])
            ),
            "one ISR": await self._repeated(lambda number: cluster.shrink_isr("topic-0", number)),
            "one leader": await self._repeated(lambda number: cluster.elect_preferred("topic-1", number)),
            "the configs of a topic": await self._repeated(self._alter_config),
            "death of a broker": await self._cost(lambda: self._die(self._brokers)),
        }
        follower.loader.follow()
        await follower.loader.catch_up()
        # The follower becomes the controller; nobody follows.
        costs["death of the controller"] = await self._cost(lambda: self._die(CONTROLLER))
        costs["start of a broker, which reads everything"] = await self._load()
        await cluster.close()
        return costs

    async def _alter_config(self, number: int) -> None:
        overrides = {"retention.ms": str(number + 1)}
        await self._cluster.controller.controller.alter_configs(ConfigResourceType.TOPIC, "topic-0", overrides)

    async def _die(self, broker_id: int) -> None:
        await self._cluster.kill(broker_id)
        await self._cluster.wait_until_fenced(broker_id)

    async def _repeated(self, change: Callable[[int], Awaitable[None]]) -> Cost:
        """Return the median of the times, and the traffic of the last repetition."""
        costs = [await self._cost(lambda number=number: change(number)) for number in range(self._repeats)]  # type: ignore[misc]
        controller_ms, follower_ms = (
            statistics.median(times)
            for times in zip(*((cost.controller_ms, cost.follower_ms) for cost in costs), strict=True)
        )
        return Cost(controller_ms, costs[-1].written, follower_ms, costs[-1].read)

    async def _cost(self, change: Callable[[], Awaitable[None]]) -> Cost:
        session, follower = self._cluster.sessions[FOLLOWER], self._cluster.members[FOLLOWER]
        writes = [each.traffic for each in self._cluster.sessions.values()]
        before, read_before = [each.copy() for each in writes], session.traffic.copy()
        begin = time.process_time()
        await change()
        changed = time.process_time()
        written = [each.since(former) for each, former in zip(writes, before, strict=True)]
        if not follower.controller.is_elected:
            await follower.loader.catch_up()
        end = time.process_time()
        read = session.traffic.since(read_before)
        controller = max(written, key=lambda traffic: traffic.operations)
        return Cost(1000 * (changed - begin), controller, 1000 * (end - changed), read)

    async def _load(self) -> Cost:
        begin = time.process_time()
        await self._cluster.start_member(self._brokers + 1)
        read = self._cluster.sessions[self._brokers + 1].traffic
        return Cost(0.0, Traffic(), 1000 * (time.process_time() - begin), read)


async def measure_metadata(
    environment: Environment, directory: Path, brokers: int, partitions: int, repeats: int
) -> dict[str, Cost]:
    """Return the costs in a new cluster with this number of partitions, in topics of 100."""
    store = await EmbeddedStore.open(environment, str(directory / f"coordination-{partitions}"))
    cluster = MetadataCluster(environment, store)
    return await MetadataCosts(cluster, brokers, -(-partitions // TOPIC_PARTITIONS), repeats).measure()


def rows_of_costs(costs: dict[int, dict[str, Cost]]) -> list[str]:
    """Return the rows of a table, one for each change and number of partitions."""
    changes = dict.fromkeys(change for each in costs.values() for change in each)
    return [
        f"| {change}, of {partitions:,} partitions | {each[change].row} |"
        for change in changes
        for partitions, each in costs.items()
    ]
