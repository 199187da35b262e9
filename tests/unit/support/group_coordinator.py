"""A group coordinator with its handlers in virtual time, on a log in memory."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any, TypeVar

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.internal_log import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TransactionMarker
from kbroker.coordinator.transaction.marker_writer import TransactionMarkerWriter
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.metadata.features import TRANSACTION_VERSION, FinalizedFeatures
from kbroker.metadata.image import (
    BrokerRegistration,
    MetadataDelta,
    MetadataImage,
    PartitionChange,
    PartitionRegistration,
    TopicImage,
)
from kbroker.runtime.environment import Environment
from kbroker.simulation.runtime.loop import SimLoop
from kbroker.storage.producers.producer_state_manager import NO_SEQUENCE, ProducerStateManager
from kbroker.storage.producers.verification import VerificationGuard
from protocol.apis import APIS, ApiKey
from protocol.errors import ErrorCode
from protocol.messages import message_classes
from protocol.records.batch import iter_headers, parse_header, patch_base_offset
from protocol.records.control import EndMarker, build_end_marker
from protocol.schema.codec import decode, encode
from protocol.schema.message import Struct, StructType

T = TypeVar("T")
NODE = 1
HANDLERS = {
    ApiKey.OFFSET_COMMIT: "k08_offset_commit",
    ApiKey.OFFSET_FETCH: "k09_offset_fetch",
    ApiKey.FIND_COORDINATOR: "k10_find_coordinator",
    ApiKey.JOIN_GROUP: "k11_join_group",
    ApiKey.HEARTBEAT: "k12_heartbeat",
    ApiKey.LEAVE_GROUP: "k13_leave_group",
    ApiKey.SYNC_GROUP: "k14_sync_group",
    ApiKey.DESCRIBE_GROUPS: "k15_describe_groups",
    ApiKey.LIST_GROUPS: "k16_list_groups",
    ApiKey.INIT_PRODUCER_ID: "k22_init_producer_id",
    ApiKey.ADD_OFFSETS_TO_TXN: "k25_add_offsets_to_txn",
    ApiKey.END_TXN: "k26_end_txn",
    ApiKey.TXN_OFFSET_COMMIT: "k28_txn_offset_commit",
    ApiKey.DELETE_GROUPS: "k42_delete_groups",
    ApiKey.OFFSET_DELETE: "k47_offset_delete",
}
KEYS = {APIS[key].name: key for key in HANDLERS}


class VirtualLoop(SimLoop):
    """The simulation's loop, with ways to let time stand still or pass."""

    def settle(self) -> None:
        """Run what can run without time passing."""

        async def yields() -> None:
            for _ in range(50):
                await asyncio.sleep(0)

        self.run_until_complete(yields())

    def pass_ms(self, ms: int) -> None:
        self.run_until_complete(asyncio.sleep(ms / 1000))
        self.settle()


class VirtualClock:
    """The wall clock is at a fixed distance from the monotonic one; `skew_ms` moves it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.skew_ms = 0

    def mono_ms(self) -> int:
        return self._loop.elapsed_ns // 1_000_000

    def mono_ns(self) -> int:
        return self._loop.elapsed_ns

    def now_ms(self) -> int:
        return 1_700_000_000_000 + self.mono_ms() + self.skew_ms


def virtual_environment(loop: VirtualLoop) -> Environment:
    async def offload(fn: Callable[..., T], /, *args: object) -> T:
        await asyncio.sleep(0)
        return fn(*args)

    return Environment(loop, VirtualClock(loop), SimpleNamespace(), random.Random(7), offload, SimpleNamespace())


@dataclass
class Waiting:
    tp: TopicPartition
    offset: int
    callback: Callable[[ErrorCode], None]


class MemoryLog:
    """An InternalLog whose high watermark follows at once, or when the test says so (`hold`, `commit`, `fail`)."""

    def __init__(self) -> None:
        self.batches: dict[TopicPartition, list[bytearray]] = {}
        self.producers: defaultdict[TopicPartition, ProducerStateManager] = defaultdict(ProducerStateManager)
        self.held = False
        self.refusal: ErrorCode | None = None
        self.max_batch = 1 << 20
        self.read_error: Exception | None = None
        self.read_sizes: list[int] = []
        self.waiting: list[Waiting] = []

    def end_offset(self, tp: TopicPartition) -> int:
        batches = self.batches.get(tp)
        return parse_header(batches[-1]).next_offset if batches else 0

    def append_internal(
        self, tp: TopicPartition, batch: bytearray, *, guard: VerificationGuard | None = None, verify: bool = False
    ) -> int:
        header, producers = parse_header(batch), self.producers[tp]
        data_of_transaction = header.is_transactional and not header.is_control
        if data_of_transaction:
            producers.check_internal(header, guard, verify)
        if self.refusal is not None:
            raise KafkaError(self.refusal)
        if len(batch) > self.max_batch:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        base_offset = self.end_offset(tp)
        patch_base_offset(batch, 0, base_offset)
        self.batches.setdefault(tp, []).append(batch)
        if data_of_transaction:
            producers.update(header, base_offset)
        return self.end_offset(tp)

    def begin_verification(self, tp: TopicPartition, producer_id: int, epoch: int) -> VerificationGuard | None:
        return self.producers[tp].begin_verification(producer_id, epoch, NO_SEQUENCE, False)

    def write_marker(self, tp: TopicPartition, marker: TransactionMarker, done: Callable[[ErrorCode], None]) -> None:
        end = EndMarker(marker.committed, marker.coordinator_epoch)
        batch = build_end_marker(end, marker.producer_id, marker.producer_epoch, 1)
        base_offset = self.end_offset(tp)
        try:
            self.producers[tp].check_marker(marker)
            self.append_internal(tp, batch)
        except KafkaError as error:
            done(error.code)
            return
        self.producers[tp].end_transaction(parse_header(batch), base_offset, marker.committed, marker.coordinator_epoch)
        self.on_committed(tp, base_offset + 1, done)

    def on_committed(self, tp: TopicPartition, offset: int, callback: Callable[[ErrorCode], None]) -> None:
        if self.held:
            self.waiting.append(Waiting(tp, offset, callback))
        else:
            callback(ErrorCode.NONE)

    def read_internal_blocking(self, tp: TopicPartition, offset: int, size: int) -> bytes:
        self.read_sizes.append(size)
        if self.read_error is not None:
            raise self.read_error
        for batch in self.batches.get(tp, []):
            if parse_header(batch).next_offset > offset:
                return bytes(batch)
        return b""

    def commit(self, count: int | None = None) -> None:
        """The high watermark passes the oldest `count` appends that wait."""
        ready, self.waiting = self.waiting[:count], self.waiting[len(self.waiting[:count]) :]
        for one in ready:
            one.callback(ErrorCode.NONE)

    def fail(self, error: ErrorCode) -> None:
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one.callback(error)

    def count(self) -> int:
        return sum(header.count for batches in self.batches.values() for b in batches for _, header in iter_headers(b))


DEFAULTS = {
    "node_id": NODE,
    "group_coordinator_append_linger_ms": -1,
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
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 10_000,
    "transaction_max_timeout_ms": 900_000,
    "transaction_partition_verification_enable": True,
    "transaction_remove_expired_transaction_cleanup_interval_ms": 3_600_000,
    "transaction_state_log_load_buffer_size": 5 << 20,
    "transaction_state_log_num_partitions": 1,
    "transactional_id_expiration_ms": 604_800_000,
}


class FakeController:
    """Makes the internal topic, as one change that the coordinator follows."""

    def __init__(self, harness: "Harness") -> None:
        self._harness = harness
        self.error: KafkaError | None = None

    async def ensure_internal_topic(self, name: str) -> TopicImage:
        if self.error is not None:
            raise self.error
        await asyncio.sleep(0)
        return await self._harness.add_topic(name, self._harness.config.offsets_topic_num_partitions)


class CountedProducerIds:
    """From 1 on, as on a new broker."""

    def __init__(self) -> None:
        self._ids = count(1)

    async def generate_producer_id(self) -> int:
        return next(self._ids)


class Harness:
    """One broker's groups, and transactions for their offsets. Requests go in as messages or as plain dicts,
    encoded and decoded in their version."""

    def __init__(self, log: MemoryLog | None = None, *, with_topic: bool = True, **config: Any) -> None:
        self.loop = VirtualLoop()
        self.environment = virtual_environment(self.loop)
        self.log = log or MemoryLog()
        self.config = SimpleNamespace(**{**DEFAULTS, **config})
        self.metadata = MetadataImage()
        self.metadata.brokers[NODE] = BrokerRegistration(NODE, "127.0.0.1", 9092)
        self.metadata.features = FinalizedFeatures(1, {TRANSACTION_VERSION: 2})
        self.groups = GroupCoordinator(self.environment, self.log, self.metadata, lambda: self.config)
        self.producer_ids = CountedProducerIds()
        self.transactions = TransactionCoordinator(
            self.environment,
            self.log,
            self.metadata,
            lambda: self.config,
            self.producer_ids,
            TransactionMarkerWriter(self.log, self.groups),
        )
        self.controller = FakeController(self)
        self.services: Any = SimpleNamespace(
            node_id=NODE,
            config=self.config,
            environment=self.environment,
            metadata=self.metadata,
            controller=self.controller,
            groups=self.groups,
            transactions=self.transactions,
            producer_ids=self.producer_ids,
        )
        self.answers: list[tuple[str, str, int, dict[str, Any]]] = []
        self.run(self.groups.start())
        self.run(self.transactions.start())
        if with_topic:
            self.run(self.add_topic(GROUP_METADATA_TOPIC, self.config.offsets_topic_num_partitions))
            self.run(self.add_topic(TRANSACTION_STATE_TOPIC, self.config.transaction_state_log_num_partitions))
            self.loop.settle()

    def close(self) -> None:
        self.run(self.transactions.stop())
        self.run(self.groups.stop())
        self.loop.settle()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.settle()
        self.loop.close()

    def run(self, awaitable: Awaitable[T]) -> T:
        async def wait() -> T:
            return await awaitable

        return self.loop.run_until_complete(wait())

    async def add_topic(self, name: str, partitions: int) -> TopicImage:
        topic = TopicImage(name, self.environment.random.randbytes(16))
        topic.partitions = [PartitionRegistration(NODE, 0, [NODE], [NODE]) for _ in range(partitions)]
        delta = MetadataDelta(created=[topic])
        delta.partitions = [
            PartitionChange(TopicPartition(name, index), topic.topic_id, None, image)
            for index, image in enumerate(topic.partitions)
        ]
        await self.follow(delta)
        return topic

    async def delete_topic(self, name: str) -> None:
        topic = self.metadata.topics[name]
        delta = MetadataDelta(deleted=[topic])
        delta.partitions = [
            PartitionChange(TopicPartition(name, index), topic.topic_id, image, None)
            for index, image in enumerate(topic.partitions)
        ]
        await self.follow(delta)

    async def move_group_partition(self, index: int, leader: int) -> None:
        """Another broker (or again this one) leads a partition of __consumer_offsets."""
        topic = self.metadata.topics[GROUP_METADATA_TOPIC]
        old = topic.partitions[index]
        topic.partitions[index] = PartitionRegistration(leader, old.leader_epoch + 1, old.replicas, old.isr)
        change = PartitionChange(
            TopicPartition(GROUP_METADATA_TOPIC, index), topic.topic_id, old, topic.partitions[index]
        )
        await self.follow(MetadataDelta(updated=[topic], partitions=[change]))

    async def follow(self, delta: MetadataDelta) -> None:
        self.metadata.apply(delta)
        await self.groups.on_delta(delta)
        await self.transactions.on_delta(delta)

    # Requests.

    async def serve(self, request: Any, version: int, client: str = "client") -> Any:
        """One request through its handler, both ways over the wire's bytes."""
        key = ApiKey(type(request).__options__["key"])
        module = __import__(f"kbroker.api.{HANDLERS[key]}", fromlist=["handle"])
        context = SimpleNamespace(version=version, client_id=client, client_host="/127.0.0.1", peer="127.0.0.1:5")
        wire = encode(request, version)
        response = module.handle(self.services, context, decode(type(request), wire, version))
        if asyncio.iscoroutine(response):
            response = await response
        return decode(type(response), encode(response, version), version)

    def call(self, request: Any, version: int, client: str = "client") -> Any:
        """The answer to a request that is answered without time passing."""
        task = self.loop.create_task(self.serve(request, version, client))
        self.loop.settle()
        assert task.done(), f"{request} is not answered"
        return task.result()

    def start(self, request: Any, version: int, client: str = "client") -> "asyncio.Task[Any]":
        """A request that may have to wait."""
        task = self.loop.create_task(self.serve(request, version, client))
        self.loop.settle()
        return task

    # A transcript's target.

    def send(self, client: str, api: str, version: int, body: dict[str, Any]) -> None:
        request_class, _ = message_classes(KEYS[api])

        async def answer() -> None:
            response = await self.serve(from_dict(request_class, body), version, client)
            self.answers.append((client, api, version, to_dict(response, version)))

        self.sent = self.loop.create_task(answer())

    def settle(self, sleep_ms: int) -> list[tuple[str, str, int, dict[str, Any]]]:
        """A command that is not answered at once takes 150 ms, as in the recording."""
        self.loop.settle()
        if sleep_ms or not self.answers:
            self.loop.pass_ms(sleep_ms or 150)
        answers, self.answers = self.answers, []
        return answers

    def create_topic(self, name: str, partitions: int) -> bytes:
        return self.run(self.add_topic(name, partitions)).topic_id


def from_dict(cls: StructType, values: dict[str, Any]) -> Any:
    """A struct from plain values, nested ones too."""
    made = {}
    for name, item in values.items():
        kind = cls.__rows__[name].type
        if isinstance(kind, list) and isinstance(kind[0], StructType) and item is not None:
            item = [from_dict(kind[0], one) for one in item]
        made[name] = item
    return cls(**made)


def to_dict(struct: Struct, version: int) -> dict[str, Any]:
    """The fields that a version has, as plain values."""
    rows = type(struct).__rows__
    return {name: _plain(getattr(struct, name), version) for name, row in rows.items() if row.is_in(version)}


def _plain(item: Any, version: int) -> Any:
    if isinstance(item, list):
        return [_plain(one, version) for one in item]
    return to_dict(item, version) if isinstance(item, Struct) else item
