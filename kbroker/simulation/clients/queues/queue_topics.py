"""Topics with queue features that Kafka lacks, which are written and read during the faults.

The clients keep no history for the checker: what they see is checked with rules of their own.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from random import Random

from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.queues.closing_workload import CLOSING, PARTITIONS, ClosingWorkload
from kbroker.simulation.clients.queues.delayed_workload import DELAYED, DelayedWorkload
from kbroker.simulation.clients.queues.keyed_workload import KEYED, WINDOW_MS, KeyedWorkload
from kbroker.simulation.clients.queues.queue_client import QueueClient
from kbroker.simulation.clients.queues.retained_workload import RETAINED, RetainedWorkload, draw_retention_configs
from kbroker.simulation.clients.queues.view_workload import ViewWorkload
from kbroker.simulation.clients.workloads.context import WorkloadContext
from kbroker.simulation.clients.workloads.records import ValueSource

# Not values of the other clients.
FIRST_VALUE = 2_000_000_000
PRODUCERS = 2


class QueueTopics:
    """`configs`: those of the topics, with which no fault of the run may lose acknowledged records."""

    def __init__(self, context: WorkloadContext, random: Random, configs: Mapping[str, str], replicas: int) -> None:
        self._context = context
        self._random = random
        self._configs = configs
        self._replicas = replicas
        values = ValueSource(FIRST_VALUE)
        self._delayed, self._keyed = DelayedWorkload(values), KeyedWorkload(values)
        self._retained, self._closing = RetainedWorkload(values), ClosingWorkload(values)
        self._views = {DELAYED: ViewWorkload(DELAYED), KEYED: ViewWorkload(KEYED)}
        self._clients: list[QueueClient] = []

    async def create(self, admin: Admin) -> None:
        """Create the topics."""
        own: dict[str, dict[str, str]] = {
            DELAYED: {"kbroker.delay.enable": "true"},
            KEYED: {"kbroker.dedup.window.ms": str(WINDOW_MS)},
            RETAINED: draw_retention_configs(self._random),
            CLOSING: {},
        }
        for topic, configs in own.items():
            partitions = PARTITIONS if topic == CLOSING else 1
            await admin.create_topic(topic, partitions, {**self._configs, **configs}, replication_factor=self._replicas)
        for view in self._views.values():
            await view.create(admin)

    async def run(self) -> None:
        """Write and read until the workload is asked to stop. Raises BrokenQueue."""
        retained, closing = self._retained, self._closing
        try:
            await asyncio.gather(
                self._delayed.read(self._client()),
                *(view.read(self._client()) for view in self._views.values()),
                *(self._produce(self._client()) for _ in range(PRODUCERS)),
                retained.read(self._client()),
                retained.operate(self._client()),
                closing.read(self._client()),
                closing.operate(self._client()),
                *(closing.produce(self._client()) for _ in range(PRODUCERS)),
                closing.produce_in_transactions(self._client()),
            )
        finally:
            self._close()

    async def _produce(self, client: QueueClient) -> None:
        while not client.stopped:
            (topic,) = client.random.choices((self._delayed, self._keyed, self._retained), (4, 3, 3))
            with suppress(OSError):
                await topic.produce(client)
            await asyncio.sleep(client.random.random() * 0.1)

    async def check_at_the_end(self) -> None:
        """Wait, after all faults, until all that was acknowledged is there, and check the logs. Raises BrokenQueue."""
        client = self._client()
        try:
            for name, topic in ((DELAYED, self._delayed), (KEYED, self._keyed)):
                log = await topic.check_at_the_end(client)
                await self._views[name].check_at_the_end(client, log)
            await self._retained.check_at_the_end(client)
            await self._closing.check_at_the_end(client)
        finally:
            self._close()

    def _client(self) -> QueueClient:
        client = QueueClient(self._context, self._random)
        self._clients.append(client)
        return client

    def _close(self) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
