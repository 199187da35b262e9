"""API handlers without a broker: real metadata in an embedded store on a memory disk, and fake replicas."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kbroker.api.context import Identity, RequestContext, complete_response
from kbroker.api.dispatch import load_handler
from kbroker.api.local_requests import DetachedConnection
from kbroker.common import ANONYMOUS, KafkaError, Principal, TopicPartition
from kbroker.config import BrokerConfig
from kbroker.config.topic_config import TopicConfig
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.interbroker.auto_topic_creation_manager import AutoTopicCreationManager
from kbroker.metadata.cluster_member import ClusterMember
from kbroker.metadata.image import BrokerRegistration, WriteHealth
from kbroker.quotas.client_quotas import ClientQuotaManager, QuotaWindows
from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.log.log_health import LogHealth
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.telemetry.client_instances import ClientMetricsManager
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import message_classes
from protocol.schema.codec import decode, encode
from protocol.schema.message import message_info
from tests.unit.support.memory_disk import MemoryDisk, make_environment
from tests.unit.support.metadata_cluster import join_cluster

LISTENER = {"listeners": "PLAINTEXT://127.0.0.1:9092", "num.partitions": "4"}


@dataclass
class FakeLog:
    """`records` are (offset, timestamp), in the order of their offsets."""

    config: TopicConfig
    records: list[tuple[int, int]] = field(default_factory=list)
    log_start_offset: int = 0
    health: LogHealth = field(default_factory=lambda: LogHealth(TopicPartition("t", 0)))
    size_bytes: int = 0
    producers: ProducerStateManager = field(default_factory=ProducerStateManager)
    epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)

    @property
    def readable_end(self) -> int:
        return self.log_end_offset if self.health.offline is None else self.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.records[-1][0] + 1 if self.records else self.log_start_offset

    def find_offset_for_timestamp(
        self, timestamp: int, max_offset: int, visible: object = None
    ) -> tuple[int, int, int] | None:
        for offset, time in self.records:
            if time >= timestamp and self.log_start_offset <= offset < max_offset:
                return offset, time, 0
        return None

    def find_max_timestamp(self, visible: object = None) -> tuple[int, int, int] | None:
        if not self.records:
            return None
        offset, time = max(self.records, key=lambda record: record[1])
        return offset, time, 0


@dataclass
class FakePartition:
    log: FakeLog
    leader_epoch: int = 0
    committed: int | None = None
    stable: int | None = None
    is_leader: bool = True
    is_catching_up: bool = False
    state: Any = field(default_factory=lambda: SimpleNamespace(followers={}))

    @property
    def high_watermark(self) -> int:
        return self.log.log_end_offset if self.committed is None else self.committed

    @property
    def last_stable_offset(self) -> int:
        return self.high_watermark if self.stable is None else self.stable

    def check_leader(self, current_epoch: int) -> None:
        self.check_epoch(current_epoch)

    def check_epoch(self, current_epoch: int) -> None:
        if current_epoch not in (-1, self.leader_epoch):
            older = current_epoch < self.leader_epoch
            raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)


class FakeReplicas:
    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, FakePartition] = {}
        self.logs = SimpleNamespace(path="/data")
        self.may_be_replaced = lambda: False
        self.write_health = SimpleNamespace(health=WriteHealth.OK, error="", require_writable=lambda: None)
        self.maintenance = SimpleNamespace(unopened={})

    def add(
        self,
        topic: str,
        index: int,
        times: Mapping[int, int] | None = None,
        configs: Mapping[str, str] | None = None,
        **log_fields: Any,
    ) -> FakePartition:
        """Add a partition. `times` are its timestamps by offset."""
        log = FakeLog(TopicConfig.of(configs or {}), sorted((times or {}).items()), **log_fields)
        partition = FakePartition(log)
        self.partitions[TopicPartition(topic, index)] = partition
        return partition

    def get(self, topic: str, index: int) -> FakePartition | None:
        return self.partitions.get(TopicPartition(topic, index))

    def missing_error(self, topic: str, index: int) -> ErrorCode:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def find_readable(self, topic: str, index: int) -> tuple[FakePartition | None, None]:
        return self.get(topic, index), None

    def readable_leader(self, topic: str, index: int) -> FakePartition:
        return self.leader(topic, index)

    def leader(self, topic: str, index: int) -> FakePartition:
        partition = self.get(topic, index)
        if partition is None:
            raise KafkaError(self.missing_error(topic, index))
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def delete_records(self, partition: FakePartition, offset: int) -> None:
        offset = partition.high_watermark if offset == -1 else offset
        if not 0 <= offset <= partition.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        partition.log.log_start_offset = max(offset, partition.log.log_start_offset)

    async def store_log_starts(self) -> None:
        pass


class Handlers:
    """The handlers of one broker."""

    def __init__(self, member: ClusterMember, config: BrokerConfig, environment: Any, store: EmbeddedStore) -> None:
        self.member = member
        self.store = store
        self.replicas = FakeReplicas()
        self.services: Any = SimpleNamespace(
            node_id=1,
            started_ms=0,
            authorizer=None,
            config=config,
            environment=environment,
            metadata=member.image,
            controller=member.controller,
            controller_channel=None,
            audit=None,
            peers=None,
            auto_topic_creation=AutoTopicCreationManager(
                environment, member.image, member.controller, None, lambda: config
            ),
            replicas=self.replicas,
            producer_ids=member.producer_ids,
            client_metrics=ClientMetricsManager(environment, member.image),
            quotas=ClientQuotaManager(member.image.client_quotas, QuotaWindows()),
        )

    async def join(self, broker_id: int) -> ClusterMember:
        """Let another broker join the cluster."""
        environment = make_environment(seed=broker_id)
        broker = BrokerRegistration(broker_id, "127.0.0.1", 9091 + broker_id)
        config = self.services.config
        return await join_cluster(environment, self.store.session(), broker, lambda: config, raise_failure)

    async def request(
        self,
        key: ApiKey,
        version: int,
        *,
        peer_broker: tuple[int, int] | None = None,
        principal: Principal = ANONYMOUS,
        **fields: Any,
    ) -> Any:
        """Return the response to a request. `peer_broker`: the broker that has sent it, None for a client."""
        request = message_classes(key)[0](**fields)
        return await respond(self.services, request, version, peer_broker=peer_broker, principal=principal)


async def respond(
    services: Any,
    request: Any,
    version: int,
    client: str = "client",
    peer_broker: tuple[int, int] | None = None,
    principal: Principal = ANONYMOUS,
) -> Any:
    """Return the response of a request's handler. Both are encoded and decoded."""
    key = message_info(type(request)).key
    assert key is not None
    is_checked = services.authorizer is not None and peer_broker is None
    handler = load_handler(ApiKey(key), version, forwards=False, authorizes=is_checked)
    identity = Identity("PLAINTEXT", principal, peer_broker=peer_broker)
    context = RequestContext(DetachedConnection("127.0.0.1:5", identity), handler, version, 0, client, 0)
    decoded = decode(type(request), encode(request, version), version)
    response = await complete_response(handler.handle, services, context, decoded)
    return decode(type(response), encode(response, version), version)


def raise_failure(error: BaseException) -> None:
    raise AssertionError(error)


async def start_handlers(disk: MemoryDisk | None = None, **configs: str) -> Handlers:
    """Start the handlers of broker 1, with configs whose names have underscores instead of dots."""
    dotted = {name.replace("_", "."): value for name, value in configs.items()}
    config = BrokerConfig.load(LISTENER | dotted)
    environment = make_environment(disk)
    store = await EmbeddedStore.open(environment, "/data/coordination")
    broker = BrokerRegistration(1, "127.0.0.1", 9092)
    member = await join_cluster(environment, store.session(), broker, lambda: config, raise_failure)
    return Handlers(member, config, environment, store)
