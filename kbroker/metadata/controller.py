"""The controller: the elected broker, which alone writes topics, partition state, configs and features.

An operation makes a decision (kbroker/metadata/topics, features.py), writes it as one change (metadata_writer.py), and
waits until this broker's image has the change. A lone broker also waits until its listeners have acted on it: when
create_topics returns, it has opened the logs of the new topics. Operations run one at a time. Leaders and in-sync
replicas are changed by the ReplicationControlManager.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.config.topic_config import validate_topic_configs
from kbroker.metadata.features import FeatureUpdate, update_features
from kbroker.metadata.image import PartitionRegistration, TopicImage
from kbroker.metadata.isr_change_queue import AlterPartitionResult, IsrChangeQueue, IsrRequest
from kbroker.metadata.metadata_writer import MetadataWriter
from kbroker.metadata.replication.alter_partition import ANY_EPOCH
from kbroker.metadata.replication.leader_elections import ElectionOutcome, ElectionType, RequestedElection
from kbroker.metadata.replication_control_manager import ELECTION_CONFIGS, NewConfigs, ReplicationControlManager
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import Create, Delete, Op, Set
from kbroker.metadata.store.multis import MULTI_BYTES, batches, op_bytes
from kbroker.metadata.store.partition_chunks import ChunkDraft
from kbroker.metadata.topics.create_partitions import NewPartitions, plan_partitions
from kbroker.metadata.topics.create_topics import NewTopic, TopicPlan, check_partition_count, plan_topic
from kbroker.metadata.topics.delete_topics import TopicDeletion, TopicNameOrId, plan_deletions
from kbroker.metadata.topics.internal_topics import INTERNAL_TOPICS, new_internal_topic
from kbroker.metadata.topics.planning_context import MAX_PARTITIONS_PER_REQUEST, PlanningContext
from kbroker.metadata.topics.replica_placement import no_leader
from kbroker.metadata.topics.topic_names import ZERO_UUID, collision_key, repeated_names
from kbroker.runtime.mutex import Mutex
from kbroker.runtime.slices import Slices, Steps, in_slices, step
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from random import Random

    from kbroker.config import BrokerConfig
    from kbroker.metadata.metadata_loader import MetadataLoader
    from kbroker.metadata.store.coordination import Coordination

Overrides = dict[str, str]
# About the size of the longest path of a topic's node.
PATH_BYTES = 300


@dataclass(slots=True)
class CreateTopicResult:
    """One topic in the response to CreateTopics. The other fields have no meaning if `error` is set."""

    name: str
    topic_id: bytes = ZERO_UUID
    partitions: int = -1
    replication_factor: int = -1
    configs: Overrides = field(default_factory=dict)
    error: KafkaError | None = None


@dataclass(slots=True)
class CreatePartitionsResult:
    name: str
    error: KafkaError | None = None


class Controller:
    """The controller of a broker. Until the broker is elected, every operation fails with NOT_CONTROLLER."""

    def __init__(
        self,
        node_id: int,
        coordination: Coordination,
        loader: MetadataLoader,
        loop: AbstractEventLoop,
        random: Random,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self.node_id = node_id
        self._loader = loader
        self._image = loader.image
        self._random = random
        self._config = config
        self._lock = Mutex(loop)
        self._writer = MetadataWriter(node_id, coordination, loader, loop)
        self._replication = ReplicationControlManager(coordination, loader, self._writer, self._lock, loop, config)
        self._isr_changes = IsrChangeQueue(loader, self._writer, self._replication, self._lock, loop)

    @property
    def is_elected(self) -> bool:
        return self._writer.is_elected

    @property
    def epoch(self) -> int:
        """The controller epoch of this broker's last election. The cluster's first election has 1."""
        return self._writer.epoch

    @property
    def last_change_number(self) -> int:
        """The number of the last metadata change in this broker's image. The cluster's first change has 1."""
        return self._loader.change_log.number

    async def campaign(self) -> bool:
        """Become the controller if there is none. Returns whether this broker was elected. Raises CoordinationError.

        The caller then calls `reconcile` or `start_reconciling`.
        """
        return await self._writer.campaign()

    def resign(self) -> None:
        """Stop deciding: another broker may be the controller now."""
        self._writer.resign()

    def use_session(self, coordination: Coordination) -> None:
        """Continue with a new session, in which this broker is not elected yet."""
        self._writer.use_session(coordination)
        self._replication.use_session(coordination)

    async def reconcile(self) -> None:
        """Register new brokers, fence those without a session, and settle their partitions.

        Raises KafkaError, CoordinationError.
        """
        await self._replication.reconcile()

    def start_reconciling(self) -> None:
        """Reconcile in the background, until it succeeds or this broker is no longer the controller."""
        self._replication.start_reconciling()

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, proposals: Sequence[IsrRequest]
    ) -> list[AlterPartitionResult]:
        """Change in-sync replicas of partitions that a broker leads. Returns the result of each. Raises KafkaError."""
        return await self._isr_changes.alter_partitions(broker_id, broker_epoch, proposals)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> int:
        """Move leaderships away from a broker. Returns the number that it still has. Raises KafkaError."""
        return await self._replication.controlled_shutdown(broker_id, broker_epoch)

    async def elect_leaders(
        self,
        election_type: ElectionType,
        requested: Sequence[RequestedElection] | None,
        slices: Slices | None = None,
    ) -> list[ElectionOutcome]:
        """Elect leaders on request (KIP-460); of all partitions if `requested` is None. Raises KafkaError."""
        return await self._replication.elect_leaders(election_type, requested, slices)

    async def balance_leaders(self) -> None:
        """Elect the preferred leaders where they can lead. Raises KafkaError."""
        await self._replication.balance_leaders()

    async def create_topics(
        self, topics: Sequence[NewTopic], validate_only: bool, slices: Slices | None = None
    ) -> list[CreateTopicResult]:
        """Create each topic independently, and return one result for each name. A repeated name is not created."""
        repeated = repeated_names(topic.name for topic in topics)
        names = list(dict.fromkeys(topic.name for topic in topics))
        results: dict[str, CreateTopicResult] = {}
        for name in repeated:
            error = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            results[name] = CreateTopicResult(name, error=error)
        unique = [topic for topic in topics if topic.name not in repeated]
        async with self._lock:
            try:
                await self._writer.prepare()
                check_partition_count(unique, self._config().num_partitions)
            except KafkaError as error:
                return [CreateTopicResult(name, error=error) for name in names]
            plans = await in_slices(slices, self._plan_topics(unique, results))
        if not validate_only:
            await self._create(plans, results)
        await self._wait_for_listeners()
        return [results[name] for name in names]

    def _plan_topics(self, topics: Sequence[NewTopic], results: dict[str, CreateTopicResult]) -> Steps[list[TopicPlan]]:
        """Return the plans of the valid topics, and add the results of all topics to `results`."""
        context = self._planning_context()
        existing_names = {collision_key(name): name for name in self._image.topics if "." in name or "_" in name}
        plans: list[TopicPlan] = []
        for topic in topics:
            try:
                plan = plan_topic(topic, context, existing_names)
            except KafkaError as error:
                results[topic.name] = CreateTopicResult(topic.name, error=error)
                yield
                continue
            plans.append(plan)
            results[topic.name] = CreateTopicResult(
                topic.name, self._random_topic_id(), len(plan.replicas), len(plan.replicas[0]), plan.configs
            )
            yield
        return plans

    async def _create(self, plans: Sequence[TopicPlan], results: dict[str, CreateTopicResult]) -> None:
        """Write the topics in as few multis as their size allows, each topic in one multi.

        Other operations may run between two multis: a failover must not wait for thousands of topics.
        """
        remaining = list(reversed(plans))
        while remaining:
            async with self._lock:
                error = await _error_of(self._writer.prepare())
                draft = ChunkDraft(self._loader.chunks)
                ops: list[Op] = []
                names: list[str] = []
                size = 0
                while remaining and size + draft.max_bytes < MULTI_BYTES:
                    plan = remaining.pop()
                    try:
                        topic_ops = self._create_topic(plan, results[plan.name].topic_id, draft)
                    except KafkaError as refusal:
                        results[plan.name] = CreateTopicResult(plan.name, error=refusal)
                        continue
                    names.append(plan.name)
                    size += sum(map(op_bytes, topic_ops))
                    ops += topic_ops
                if error is None and ops:
                    error = await _error_of(self._writer.commit([*ops, *draft.ops()]))
                if error is not None:
                    results.update({name: CreateTopicResult(name, error=error) for name in names})

    def _create_topic(self, plan: TopicPlan, topic_id: bytes, draft: ChunkDraft) -> list[Create]:
        """Add the topic's partitions to the draft, and return the operations for its other nodes. Raises KafkaError."""
        if plan.name in self._image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{plan.name}' already exists.")
        partitions = [self._new_partition(replicas) for replicas in plan.replicas]
        is_internal = plan.name in INTERNAL_TOPICS
        node = znodes.TopicNode(topic_id, is_internal, has_kafka_key_hash=is_internal)
        ops = [Create(znodes.topic_path(plan.name), znodes.encode_topic(node))]
        if plan.configs:
            path = znodes.config_path(ConfigResource(ConfigResourceType.TOPIC, plan.name))
            ops.append(Create(path, znodes.encode(plan.configs)))
        for index, partition in enumerate(partitions):
            draft.add(topic_id, index, partition)
        return ops

    def _new_partition(self, replicas: list[int]) -> PartitionRegistration:
        """Return a new partition. Raises KafkaError if none of its brokers can lead it."""
        isr = [broker_id for broker_id in replicas if self._image.is_replica_eligible(broker_id, ANY_EPOCH)]
        if not isr:
            raise no_leader(len(replicas))
        return PartitionRegistration(leader=isr[0], leader_epoch=0, replicas=replicas, isr=isr)

    async def delete_topics(
        self, requested: Sequence[TopicNameOrId], slices: Slices | None = None
    ) -> list[TopicDeletion]:
        """Delete topics, and return one result for each name or id."""
        async with self._lock:
            error = await _error_of(self._writer.prepare())
            plan = plan_deletions(requested, self._image.topics, self._image.topics_by_id)
            deletions = await in_slices(slices, plan)
            if error is not None:
                # The image may be old, so an error such as "unknown topic" may be wrong.
                return [TopicDeletion(deletion.name, deletion.topic_id, error) for deletion in deletions]
        valid = [deletion for deletion in deletions if deletion.error is None]
        while valid:
            async with self._lock:
                await self._delete_some(valid)
        await self._wait_for_listeners()
        return deletions

    async def _delete_some(self, deletions: list[TopicDeletion]) -> None:
        """Delete topics from the end of a list, as many as one multi has room for, and remove them from the list."""
        error = await _error_of(self._writer.prepare())
        draft = ChunkDraft(self._loader.chunks)
        ops: list[Op] = []
        removed: list[TopicDeletion] = []
        while deletions and PATH_BYTES * len(ops) + draft.max_bytes < MULTI_BYTES:
            deletion = deletions.pop()
            topic = self._image.topics_by_id.get(deletion.topic_id)
            if topic is None:
                continue  # another request has deleted it meanwhile
            removed.append(deletion)
            draft.remove(topic.topic_id)
            ops.append(Delete(znodes.topic_path(topic.name)))
            resource = ConfigResource(ConfigResourceType.TOPIC, topic.name)
            if self._image.overrides(*resource):
                ops.append(Delete(znodes.config_path(resource)))
        if error is None and ops:
            error = await _error_of(self._writer.commit([*ops, *draft.ops()]))
        for deletion in removed:
            deletion.error = error

    async def create_partitions(
        self, topics: Sequence[NewPartitions], validate_only: bool, slices: Slices | None = None
    ) -> list[CreatePartitionsResult]:
        """Add partitions to each topic independently, and return one result for each name."""
        repeated = repeated_names(topic.name for topic in topics)
        results: dict[str, CreatePartitionsResult] = {}
        max_new_partitions = MAX_PARTITIONS_PER_REQUEST
        async with self._lock:
            for topic in topics:
                result = results[topic.name] = CreatePartitionsResult(topic.name)
                try:
                    if topic.name in repeated:
                        raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                    max_new_partitions -= await self._add_partitions(topic, validate_only, max_new_partitions)
                except KafkaError as error:
                    result.error = error
                await step(slices)
        await self._wait_for_listeners()
        return list(results.values())

    async def _add_partitions(self, new: NewPartitions, validate_only: bool, max_new_partitions: int) -> int:
        """Add partitions to a topic, unless `validate_only`. Returns how many are added."""
        await self._writer.prepare()
        added = plan_partitions(new, self._planning_context(), max_new_partitions)
        if validate_only:
            return len(added)
        topic = self._image.topics[new.name]
        draft = ChunkDraft(self._loader.chunks)
        for index, replicas in enumerate(added, len(topic.partitions)):
            draft.add(topic.topic_id, index, self._new_partition(replicas))
        await self._writer.commit(draft.ops())
        return len(added)

    async def alter_configs(
        self,
        resource_type: int,
        name: str,
        new_overrides: Overrides | Callable[[Overrides], Overrides] | None,
    ) -> None:
        """Replace a resource's overrides; None or {} removes them. Raises KafkaError.

        A function is called with the current overrides and returns the new ones; it may raise KafkaError. No other
        operation changes them in between. The caller validates the values; this method checks that the topic exists.
        """
        async with self._lock:
            await self._writer.prepare()
            if resource_type == ConfigResourceType.TOPIC and name not in self._image.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            current = self._image.overrides(resource_type, name)
            altered = new_overrides(dict(current)) if callable(new_overrides) else new_overrides or {}
            if altered == current:
                return
            resource = ConfigResource(resource_type, name)
            path, data = znodes.config_path(resource), znodes.encode(altered)
            op = Delete(path) if not altered else Set(path, data) if current else Create(path, data)
            ops: list[Op] = []
            if any(current.get(config) != altered.get(config) for config in ELECTION_CONFIGS):
                ops = self._replication.ops_for_configs(NewConfigs(resource, altered))
            for batch in batches([*ops, op]):
                await self._writer.commit(batch)
        await self._wait_for_listeners()

    async def update_features(self, updates: Sequence[FeatureUpdate], validate_only: bool) -> None:
        """Change levels of finalized features, all or none (KIP-584). Raises KafkaError."""
        async with self._lock:
            await self._writer.prepare()
            features = update_features(self._image.features, updates, self.node_id)
            if features != self._image.features and not validate_only:
                await self._writer.commit([Set(znodes.FEATURES, znodes.encode_features(features))])

    async def auto_create_topic(self, name: str) -> TopicImage:
        """Return a topic; create it with the broker's defaults if it does not exist. Raises KafkaError."""
        if name in INTERNAL_TOPICS:
            return await self.ensure_internal_topic(name)
        return await self._ensure_topic(NewTopic(name))

    async def ensure_internal_topic(self, name: str) -> TopicImage:
        """Return __consumer_offsets or __transaction_state; create it if it does not exist. Raises KafkaError."""
        return await self._ensure_topic(new_internal_topic(name, self._config()))

    async def _ensure_topic(self, new: NewTopic) -> TopicImage:
        topic = self._image.topics.get(new.name)
        if topic is None:
            (result,) = await self.create_topics([new], validate_only=False)
            if result.error is not None and result.error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise result.error
            topic = self._image.topics[new.name]
        return topic

    async def _wait_for_listeners(self) -> None:
        """Wait until this broker has acted on a change, if it is alone. Others might have to act as well."""
        if len(self._image.brokers) + len(self._image.fenced_brokers) <= 1:
            await self._loader.wait_for_listeners()

    def _planning_context(self) -> PlanningContext:
        config, fenced = self._config(), self._image.fenced_brokers
        return PlanningContext(
            topics=self._image.topics,
            racks={broker.id: broker.rack for broker in (*self._image.brokers.values(), *fenced.values())},
            random=self._random,
            default_partitions=config.num_partitions,
            default_replication_factor=config.default_replication_factor,
            validate_configs=lambda overrides: validate_topic_configs(overrides, config.topic_defaults),
            cordoned_brokers=frozenset(filter(self._is_cordoned, (*self._image.brokers, *fenced))),
            fenced_brokers=frozenset(fenced),
        )

    def _is_cordoned(self, broker: int) -> bool:
        """Return whether cordoned.log.dirs has the broker's log directory. Others' static configs are unknown."""
        config = self._config()
        if broker == config.node_id:
            return bool(config.get("cordoned.log.dirs"))
        return bool(self._image.overrides(ConfigResourceType.BROKER, str(broker)).get("cordoned.log.dirs"))

    def _random_topic_id(self) -> bytes:
        """Return a version 4 UUID. Its text must not begin with "-", like an option of a command-line tool."""
        topic_id = bytearray(self._random.randbytes(16))
        topic_id[6] = topic_id[6] & 0x0F | 0x40
        topic_id[8] = topic_id[8] & 0x3F | 0x80
        return self._random_topic_id() if urlsafe_b64encode(topic_id).startswith(b"-") else bytes(topic_id)


async def _error_of(operation: Awaitable[None]) -> KafkaError | None:
    try:
        await operation
    except KafkaError as error:
        return error
    return None
