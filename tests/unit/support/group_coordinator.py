"""A group coordinator with its handlers, in virtual time and on a log in memory."""

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any, TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.group.group import Committer
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.group_shard import GroupKind, GroupShard
from kbroker.coordinator.group.kinds import GROUP_KINDS
from kbroker.coordinator.group.offset_metadata_manager import TopicOffsets
from kbroker.coordinator.group.records import OffsetAndMetadata, OffsetKey, OffsetRecord
from kbroker.coordinator.group.share.share_group_states import ShareGroupStates
from kbroker.coordinator.share.persister import ShareStatePersister
from kbroker.coordinator.share.share_coordinator import ShareCoordinator
from kbroker.coordinator.transaction.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.coordinator.transaction.transaction_markers import TransactionMarkerWriter
from kbroker.metadata.features import (
    GROUP_VERSION,
    SHARE_VERSION,
    STREAMS_VERSION,
    TRANSACTION_VERSION,
    FinalizedFeatures,
)
from kbroker.metadata.image import MetadataDelta, PartitionChange, PartitionRegistration, TopicImage
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from protocol.apis import ALL_APIS
from protocol.messages import message_classes
from protocol.messages.k11_classic_groups import JoinGroupRequest, JoinGroupRequestProtocol
from protocol.schema.message import Struct, StructType
from tests.unit.support.coordinator_harness import NODE, CoordinatorHarness
from tests.unit.support.handlers import respond
from tests.unit.support.internal_log import MemoryLog
from tests.unit.support.share_coordinator import DEFAULTS as SHARE_DEFAULTS

T = TypeVar("T")
API_KEYS = {api.name: key for key, api in ALL_APIS.items()}
# (client, API name, version, body)
Response = tuple[str, str, int, dict[str, Any]]

DEFAULTS = {
    "node_id": NODE,
    "group_consumer_assignment_interval_ms": 0,
    "group_consumer_assignors": ("uniform", "range"),
    "group_consumer_heartbeat_interval_ms": 500,
    "group_consumer_max_size": 2**31 - 1,
    "group_consumer_migration_policy": "bidirectional",
    "group_consumer_session_timeout_ms": 3000,
    "group_coordinator_append_linger_ms": -1,
    "group_coordinator_rebalance_protocols": ("classic", "consumer", "share", "streams"),
    "group_share_assignment_interval_ms": 1000,
    "group_share_heartbeat_interval_ms": 5000,
    "group_share_max_size": 200,
    "group_share_session_timeout_ms": 45_000,
    "group_streams_assignment_interval_ms": 1000,
    "group_streams_assignor_name": "sticky",
    "group_streams_heartbeat_interval_ms": 5000,
    "group_streams_initial_rebalance_delay_ms": 3000,
    "group_streams_max_size": 200,
    "group_streams_num_standby_replicas": 0,
    "group_streams_rack_aware_assignment_tags": (),
    "group_streams_session_timeout_ms": 45_000,
    "group_initial_rebalance_delay_ms": 0,
    "group_min_session_timeout_ms": 100,
    "group_max_session_timeout_ms": 60_000,
    "group_max_size": 2**31 - 1,
    "message_max_bytes": 1 << 20,
    "offset_metadata_max_bytes": 4096,
    "offsets_commit_timeout_ms": 5000,
    "offsets_load_buffer_size": 5 << 20,
    "offsets_retention_minutes": 7 * 24 * 60,
    "offsets_retention_check_interval_ms": 600_000,
    "offsets_topic_compression_codec": 0,
    "offsets_topic_num_partitions": 5,
    "request_timeout_ms": 30_000,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 10_000,
    "transaction_max_timeout_ms": 900_000,
    "transaction_partition_verification_enable": True,
    "transaction_remove_expired_transaction_cleanup_interval_ms": 3_600_000,
    "transaction_state_log_load_buffer_size": 5 << 20,
    "transaction_state_log_num_partitions": 1,
    "transactional_id_expiration_ms": 604_800_000,
}


class FakeController:
    """Creates an internal topic as one change of the metadata, which the coordinators follow."""

    def __init__(self, harness: "Harness") -> None:
        self._harness = harness
        self.error: KafkaError | None = None

    async def ensure_internal_topic(self, name: str) -> TopicImage:
        if self.error is not None:
            raise self.error
        await asyncio.sleep(0)
        return await self._harness.add_topic(name, self._harness.config.offsets_topic_num_partitions)


class FakeProducerIds:
    def __init__(self) -> None:
        self._ids = count(1)

    async def generate_producer_id(self) -> int:
        return next(self._ids)


class Harness(CoordinatorHarness):
    """The group coordinator of one broker, with a transaction coordinator for transactional offset commits.

    Requests are encoded and decoded in their version, as on the wire.
    """

    def __init__(
        self,
        log: MemoryLog | None = None,
        *,
        with_topic: bool = True,
        kinds: Sequence[type[GroupKind[Any]]] = GROUP_KINDS,
        **config: Any,
    ) -> None:
        super().__init__(log, SHARE_DEFAULTS | DEFAULTS | config)
        self.config.group_config = partial(group_config, self.config)
        self.metadata.features = FinalizedFeatures(
            1, {TRANSACTION_VERSION: 2, GROUP_VERSION: 1, SHARE_VERSION: 1, STREAMS_VERSION: 1}
        )
        self.groups = GroupCoordinator(self.environment, self.log, self.metadata, lambda: self.config, kinds)
        producer_ids: Any = FakeProducerIds()
        self.transactions = TransactionCoordinator(
            self.environment,
            self.log,
            self.metadata,
            lambda: self.config,
            producer_ids,
            TransactionMarkerWriter(self.log, self.groups),
        )
        self.controller = FakeController(self)
        add_partitions_to_txn = AddPartitionsToTxnManager(
            self.environment, NODE, self.metadata, lambda: self.config.request_timeout_ms, self.transactions
        )
        self.share_states = ShareCoordinator(self.environment, self.log, self.metadata, lambda: self.config)
        topics: Any = self.controller
        self.persister = ShareStatePersister(
            self.environment, NODE, self.metadata, lambda: self.config.request_timeout_ms, self.share_states, topics
        )
        self.share_group_states = ShareGroupStates(self.environment, self.metadata, self.groups, self.persister)
        self.services: Any = SimpleNamespace(
            audit=None,
            authorizer=None,
            node_id=NODE,
            config=self.config,
            environment=self.environment,
            metadata=self.metadata,
            controller=self.controller,
            controller_channel=None,
            auto_topic_creation=self.controller,
            replicas=self.log,
            groups=self.groups,
            transactions=self.transactions,
            add_partitions_to_txn=add_partitions_to_txn,
            producer_ids=producer_ids,
            share_states=self.share_states,
            share_group_states=self.share_group_states,
        )
        self._responses: list[Response] = []
        self.coordinators = (self.groups, self.transactions, self.share_states)
        self.start_coordinators()
        if with_topic:
            self.run(self.add_topic(GROUP_METADATA_TOPIC, self.config.offsets_topic_num_partitions))
            self.run(self.add_topic(TRANSACTION_STATE_TOPIC, self.config.transaction_state_log_num_partitions))
            self.loop.run_ready()

    def close(self) -> None:
        self.run(self.share_group_states.stop())
        super().close()

    def shard(self, group_id: str = "g") -> GroupShard:
        return self.groups.runtime.context(group_id).shard

    def commit_offset(self, topic: str, partition: int, offset: OffsetAndMetadata, group_id: str = "g") -> None:
        """Commit an offset as a tool does."""
        record = OffsetRecord(OffsetKey(group_id, topic, partition), offset)
        errors: list[KafkaError | None] = []
        self.groups.commit_offsets(
            group_id, Committer("", None, -1, 8), [record], lambda _, error: errors.append(error)
        )
        self.loop.run_ready()
        assert errors == [None]

    def unstable_partitions(self, group_id: str = "g") -> frozenset[tuple[str, int]]:
        return self.run(self.groups.fetch_offsets(group_id, require_stable=True)).unstable

    def join_group(self) -> str:
        """Join the new group "g" as its only member. Returns the member id; the generation is 1."""
        protocols = [JoinGroupRequestProtocol(name="range")]
        join = JoinGroupRequest(group_id="g", session_timeout_ms=5000, protocol_type="consumer", protocols=protocols)
        task = self.start(join, 0)
        self.loop.pass_ms(1)
        member_id: str = task.result().member_id
        return member_id

    def committed_offsets(self, group_id: str = "g", *, require_stable: bool = False) -> TopicOffsets:
        return self.run(self.groups.fetch_offsets(group_id, require_stable=require_stable)).topics

    # The cluster.

    async def add_topic(self, name: str, partitions: int) -> TopicImage:
        return self.create(name, partitions)

    async def delete_topic(self, name: str) -> None:
        self.delete(name)

    async def elect(self, index: int, leader: int) -> None:
        """Elect a leader for a partition of __consumer_offsets."""
        self.elect_leader(GROUP_METADATA_TOPIC, index, leader)

    def lose_group(self, group_id: str = "g") -> None:
        """Make another broker the coordinator of a group."""
        self.run(self.elect(self.groups.runtime.partition_for(group_id), NODE + 1))

    async def on_delta(self, delta: MetadataDelta) -> None:
        self.apply(delta)

    # Requests.

    async def serve(self, request: Any, version: int, client: str = "client") -> Any:
        """Return the response of a request's handler."""
        return await respond(self.services, request, version, client)

    def call(self, request: Any, version: int, client: str = "client") -> Any:
        """Return the response to a request that needs no time to pass."""
        task = self.start(request, version, client)
        assert task.done(), f"no response to {request}"
        return task.result()

    def start(self, request: Any, version: int, client: str = "client") -> "asyncio.Task[Any]":
        """Send a request whose response may be delayed."""
        task = self.loop.create_task(self.serve(request, version, client))
        self.loop.run_ready()
        return task

    # The target of a transcript (group_transcript.py).

    def send(self, client: str, api: str, version: int, body: dict[str, Any]) -> None:
        request_class, _ = message_classes(API_KEYS[api])

        async def record_response() -> None:
            response = await self.serve(from_dict(request_class, body), version, client)
            self._responses.append((client, api, version, to_dict(response, version)))

        self._sent = self.loop.create_task(record_response())

    def responses(self, sleep_ms: int) -> list[Response]:
        """Return the responses since the last call. A command without one takes 150 ms, as in the recording."""
        self.loop.run_ready()
        if sleep_ms or not self._responses:
            self.loop.pass_ms(sleep_ms or 150)
        responses, self._responses = self._responses, []
        return responses

    def create_topic(self, name: str, partitions: int) -> bytes:
        return self.run(self.add_topic(name, partitions)).topic_id

    def add_partitions(self, name: str, partitions: int) -> None:
        topic = self.metadata.topics[name]
        delta = MetadataDelta(updated=[topic])
        for index in range(len(topic.partitions), partitions):
            topic.partitions.append(PartitionRegistration(NODE, 0, [NODE], [NODE]))
            change = PartitionChange(TopicPartition(name, index), topic.topic_id, None, topic.partitions[-1])
            delta.partitions.append(change)
        self.run(self.on_delta(delta))

    def remove_topic(self, name: str) -> None:
        self.run(self.delete_topic(name))
        self.loop.run_ready()


def group_config(config: SimpleNamespace, overrides: dict[str, str]) -> SimpleNamespace:
    """Return the configs of a group, without overrides."""
    values = {name.removeprefix("group_"): value for name, value in vars(config).items()}
    return SimpleNamespace(
        **{name: value for name, value in values.items() if name.startswith(("consumer_", "share_", "streams_"))}
    )


def from_dict(cls: StructType, values: dict[str, Any]) -> Any:
    """Return a struct with the values, which may be nested."""
    fields = {}
    for name, item in values.items():
        kind = cls.__rows__[name].type
        if isinstance(kind, list) and isinstance(kind[0], StructType) and item is not None:
            item = [from_dict(kind[0], element) for element in item]
        elif isinstance(kind, StructType) and item is not None:
            item = from_dict(kind, item)
        fields[name] = item
    return cls(**fields)


def to_dict(struct: Struct, version: int) -> dict[str, Any]:
    """Return the fields of a version as plain values."""
    rows = type(struct).__rows__
    return {name: _plain(getattr(struct, name), version) for name, row in rows.items() if row.is_in(version)}


def _plain(item: Any, version: int) -> Any:
    if isinstance(item, list):
        return [_plain(element, version) for element in item]
    return to_dict(item, version) if isinstance(item, Struct) else item
