"""Members of share groups that send exactly what a test passes, and a coordinator of their state."""

import asyncio
from typing import Any

from kbroker.common import KafkaError
from kbroker.coordinator.share.share_partition_state import (
    UNINITIALIZED_START_OFFSET,
    DeliveryState,
    PersistedState,
    SharePartitionKey,
    StateBatch,
    StateWrite,
)
from kbroker.metadata.features import FinalizedFeatures
from kbroker.share.dead_letters import DeadLetterWriter
from kbroker.share.group_settings import ShareGroupSettings
from kbroker.share.manager import SharePartitionManager
from protocol.errors import ErrorCode
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.messages.k78_share_fetch import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgePartitionData,
    AcknowledgeTopic,
    FetchPartition,
    FetchTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    SharePartitionData,
)
from protocol.records.batch import body_of, iter_headers
from protocol.records.compression import decompress
from protocol.records.record import Record, iter_records
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import Machine

# (first, last, type, ...): one type for all, or one for each.
Acknowledged = tuple[int, ...]
VERSION = 2


class StateCoordinator:
    """Keeps the state of share partitions in memory, by offset. `refusal`: the error of all writes, if set."""

    def __init__(self) -> None:
        self.starts: dict[SharePartitionKey, int] = {}
        self.batches: dict[SharePartitionKey, dict[int, StateBatch]] = {}
        self.refusal: ErrorCode | None = None
        self.writes: list[StateWrite] = []
        # While it is not done, writes wait.
        self.held: asyncio.Future[None] | None = None
        self._leader_epochs: dict[SharePartitionKey, int] = {}

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> PersistedState:
        if leader_epoch < self._leader_epochs.get(key, -1):
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        self._leader_epochs[key] = leader_epoch
        start = self.starts.get(key, UNINITIALIZED_START_OFFSET)
        batches = [
            each._replace(first=n, last=n) for n, each in sorted(self.batches.get(key, {}).items()) if n >= start
        ]
        return PersistedState(0, start, tuple(batches))

    async def write(self, key: SharePartitionKey, write: StateWrite) -> None:
        if self.held is not None:
            await self.held
        if self.refusal is not None:
            raise KafkaError(self.refusal)
        if write.leader_epoch < self._leader_epochs[key]:
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
        self.writes.append(write)
        self.starts[key] = write.start_offset
        for batch in write.batches:
            for offset in range(batch.first, batch.last + 1):
                self.batches.setdefault(key, {})[offset] = batch

    def states(self, key: SharePartitionKey) -> dict[int, DeliveryState]:
        return {n: DeliveryState(each.state) for n, each in self.batches.get(key, {}).items() if n >= self.starts[key]}


def install(machine: Machine, coordinator: StateCoordinator, share_version: int = 2) -> None:
    """Let the broker use a coordinator in memory, as if the cluster had finalized a level of share.version."""
    services = machine.broker.services
    features = services.metadata.features
    services.metadata.features = FinalizedFeatures(features.epoch, {**features.levels, "share.version": share_version})

    def config() -> Any:
        return machine.broker.config

    letters = DeadLetterWriter(
        services.environment, services.metadata, services.replicas, services.auto_topic_creation, None, config
    )
    services.share = SharePartitionManager(
        services.environment,
        services.replicas,
        coordinator,  # type: ignore[arg-type]
        ShareGroupSettings(services.metadata, config),
        config,
        letters.start,
    )
    machine.broker._started.append(services.share.stop)


# With these configs a lone broker has a share coordinator of its own.
ALONE = {"share_coordinator_state_topic_replication_factor": "1", "share_coordinator_state_topic_min_isr": "1"}


async def initialize(machine: Machine, group: str, topic_id: bytes) -> None:
    """Initialize the state of a group in the partition of a topic, as its coordinator does; see ALONE."""
    services = machine.broker.services
    features = services.metadata.features
    services.metadata.features = FinalizedFeatures(features.epoch, {**features.levels, "share.version": 2})
    key = SharePartitionKey(group, topic_id, 0)
    await services.share._parts.persister.initialize(key, 1, UNINITIALIZED_START_OFFSET)


class ShareConsumer:
    """A member on its own connection, which fetches one partition."""

    def __init__(self, client: Client, topic_id: bytes, group: str, member: str) -> None:
        self.client = client
        self.topic_id = topic_id
        self.group = group
        self.member = member
        self.epoch = 0

    @classmethod
    async def open(cls, machine: Machine, topic_id: bytes, group: str = "g", member: str = "m") -> "ShareConsumer":
        return cls(await machine.client(member), topic_id, group, member)

    def send_fetch(self, *acknowledged: Acknowledged, **fields: Any) -> "asyncio.Future[ShareFetchResponse]":
        part = FetchPartition(acknowledgement_batches=_batches(acknowledged))
        topics = [FetchTopic(topic_id=self.topic_id, partitions=[part])]
        request = ShareFetchRequest(
            **{
                "group_id": self.group, "member_id": self.member, "share_session_epoch": self.epoch, "topics": topics,
                "max_records": 500, "batch_size": 500, "max_bytes": 1 << 20, "min_bytes": 1, **fields,
            }
        )  # fmt: skip
        self.epoch += 1
        return self.client.send(request, VERSION, ShareFetchResponse)

    async def fetch(self, *acknowledged: Acknowledged, **fields: Any) -> SharePartitionData:
        """Return the partition's part of the response; an empty one if it has none."""
        response = await self.send_fetch(*acknowledged, **fields)
        assert response.error_code == 0
        parts = [part for topic in response.responses for part in topic.partitions]
        return parts[0] if parts else SharePartitionData()

    async def acquire(self, **fields: Any) -> list[tuple[int, int, int]]:
        """Return (first offset, last offset, delivery count) of what was acquired."""
        data = await self.fetch(**fields)
        assert data.error_code == 0
        return acquired(data)

    async def acknowledge(self, *acknowledged: Acknowledged, **fields: Any) -> AcknowledgePartitionData:
        part = AcknowledgePartition(acknowledgement_batches=_batches(acknowledged))
        request = ShareAcknowledgeRequest(
            **{
                "group_id": self.group, "member_id": self.member, "share_session_epoch": self.epoch,
                "topics": [AcknowledgeTopic(topic_id=self.topic_id, partitions=[part])], **fields,
            }
        )  # fmt: skip
        self.epoch += 1
        response = await self.client.request(request, VERSION, ShareAcknowledgeResponse)
        assert response.error_code == 0, response.error_code
        return response.responses[0].partitions[0]


def _batches(acknowledged: tuple[Acknowledged, ...]) -> list[AcknowledgementBatch]:
    return [
        AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
        for first, last, *types in acknowledged
    ]


def acquired(data: SharePartitionData) -> list[tuple[int, int, int]]:
    return [(each.first_offset, each.last_offset, each.delivery_count) for each in data.acquired_records]


def records_of(records: Any) -> dict[int, Record]:
    """Return records by offset."""
    found = {}
    for pos, header in iter_headers(bytes(records or b"")):
        body = decompress(header.codec, body_of(bytes(records), pos, header.size), 1 << 20)
        for record in iter_records(body, header.count, header.base_timestamp):
            found[header.base_offset + record.offset_delta] = record
    return found


async def alter_group(client: Client, group: str, **configs: str) -> None:
    """Set configs of a group; names have underscores for dots."""
    changes = [
        AlterableConfig(name=name.replace("_", "."), config_operation=0, value=value) for name, value in configs.items()
    ]
    resource = AlterConfigsResource(resource_type=32, resource_name=group, configs=changes)
    response = await client.request(
        IncrementalAlterConfigsRequest(resources=[resource]), 1, IncrementalAlterConfigsResponse
    )
    assert response.responses[0].error_code == 0, response.responses[0].error_message
