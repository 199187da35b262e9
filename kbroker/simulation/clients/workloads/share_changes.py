"""An operator of a share group: other start offsets, and a topic of the group that is deleted, created and grown.

The start offsets of a group without members are altered, so the members leave for that time. The topic is written by
the operator, and always created again, with other records. What that means for members: share_rules.py.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from random import Random

from kbroker.client.requests import GROUP as GROUP_KEY
from kbroker.simulation.checker.history import TopicPartition
from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.cluster import Cluster, CoordinatorClient, RefusedError
from kbroker.simulation.clients.group_offsets import LATEST, list_offset
from kbroker.simulation.clients.records import ValueSource
from kbroker.simulation.clients.workloads.context import WorkloadContext
from kbroker.simulation.clients.workloads.recreation import send_batch
from kbroker.simulation.clients.workloads.share_groups import GROUP, ShareGroupWorkload
from protocol.errors import ErrorCode
from protocol.messages.k90_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)

CHANGING = "changing"
MAX_PARTITIONS = 4
PAUSE_S = 0.1
# Not values of the other clients.
FIRST_VALUE = 500_000_000


class ShareGroupOperator:
    """`configs`: of its topic."""

    def __init__(self, workload: ShareGroupWorkload, configs: Mapping[str, str], replication_factor: int) -> None:
        self._workload = workload
        self._configs = configs
        self._replication_factor = replication_factor
        self._topic_id: bytes | None = None
        self._former_ids: set[bytes | None] = {None}
        self._values = ValueSource(FIRST_VALUE)
        # The values that were sent to the topic since its last creation.
        self._sent: set[int] = set()

    async def run(self, context: WorkloadContext, name: str, random: Random) -> None:
        """Change the group and its topic until stopped."""
        cluster = context.cluster(name, random, consumer_protocol=True)
        admin = Admin(cluster, context.history, name, timeout_s=5.0)
        while not context.stop.requested:
            await asyncio.sleep(random.random() * 2 * PAUSE_S)
            chance = random.random()
            with suppress(OSError, RefusedError):
                if chance < 0.05:
                    await self.create(admin, random)
                elif chance < 0.15:
                    await self._grow(admin)
                elif chance < 0.2:
                    await self._alter_offsets(cluster, random, context)
                else:
                    await self._produce(cluster, random)
        cluster.close()

    # The topic.

    async def create(self, admin: Admin, random: Random) -> None:
        """Create the topic, after the deletion of the one that exists."""
        partitions = random.randint(1, 2)
        self._workload.records.delete([(CHANGING, index) for index in range(MAX_PARTITIONS)], self._sent)
        self._sent = set()
        self._former_ids.add(self._topic_id)
        while self._topic_id in self._former_ids:
            # Without a response it may be deleted, or created; what Metadata shows may be outdated.
            if self._topic_id is not None:
                with suppress(OSError, RefusedError):
                    await admin.delete_topic(self._topic_id)
            with suppress(OSError, RefusedError):
                await admin.create_topic(
                    CHANGING, partitions, self._configs, replication_factor=self._replication_factor
                )
            with suppress(OSError):
                described = await admin.describe(CHANGING)
                if described is not None and described.topic_id not in self._former_ids:
                    self._topic_id = described.topic_id
                    self._note_partitions(described.partitions)
            await admin.cluster.backoff()

    async def _grow(self, admin: Admin) -> None:
        described = await admin.describe(CHANGING)
        if described is not None and described.topic_id == self._topic_id and described.partitions < MAX_PARTITIONS:
            await admin.create_partitions(CHANGING, described.partitions + 1)
            self._note_partitions(described.partitions + 1)

    def _note_partitions(self, count: int) -> None:
        self._workload.added = [(CHANGING, index) for index in range(count)]

    async def _produce(self, cluster: Cluster, random: Random) -> None:
        """Send one batch, without retries. Raises OSError."""
        tp = random.choice(self._workload.added)
        values = self._values.allocate(random.choice((1, 5, 20)))
        connection = await cluster.leader(tp)
        assert self._topic_id is not None
        self._sent.update(values)
        if (await send_batch(connection, self._topic_id, tp[1], values, random)).error_code:
            cluster.forget_leader(tp)

    # The offsets.

    async def _alter_offsets(self, cluster: Cluster, random: Random, context: WorkloadContext) -> None:
        """Set the start offset of a partition, while the group has no members. Raises OSError."""
        tp = random.choice(self._workload.partitions)
        end, _ = await list_offset(cluster, tp, LATEST)
        start = random.randint(0, end)
        async with self._workload.without_members():
            if await self._alter(cluster, tp, start):
                context.history.note("operator", f"the group starts {tp[0]}-{tp[1]} at {start}")
                self._workload.records.renew(tp, start)

    async def _alter(self, cluster: Cluster, tp: TopicPartition, start: int) -> bool:
        """Repeat the request until its outcome is known. Returns whether it had an effect."""
        partition = AlterShareGroupOffsetsRequestPartition(partition_index=tp[1], start_offset=start)
        topic = AlterShareGroupOffsetsRequestTopic(topic_name=tp[0], partitions=[partition])
        request = AlterShareGroupOffsetsRequest(group_id=GROUP, topics=[topic])
        coordinator = CoordinatorClient(cluster, GROUP, GROUP_KEY)
        try:
            while True:
                with suppress(OSError):
                    connection = await coordinator.find()
                    response = await connection.request(request, AlterShareGroupOffsetsResponse)
                    row = response.responses[0].partitions[0] if response.responses else response
                    code = ErrorCode(response.error_code or row.error_code)
                    # A topic that was deleted by this operator exists again.
                    if code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
                        return not code
                await cluster.backoff()
                # Whoever is its coordinator now.
                coordinator.disconnect()
        finally:
            coordinator.disconnect()
