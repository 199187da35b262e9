"""TopicControlManager: creates and deletes topics, and adds partitions, in the coordination service.

The decisions are in kbroker/metadata/topics. Each topic is written in one multi.
"""

from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from kbroker.common import KafkaError
from kbroker.config.alter import validate_topic_overrides
from kbroker.config.config_def import ConfigResource, ConfigResourceType
from kbroker.config.queue_configs import VIEW_OF
from kbroker.coordination.interface import Create, Delete, Op, Set, op_bytes
from kbroker.metadata.control_manager import ControlManager
from kbroker.metadata.image import PartitionRegistration, WriteHealth
from kbroker.metadata.replication.partition_requests import ANY_EPOCH
from kbroker.metadata.store import znodes
from kbroker.metadata.store.partition_chunks import ChunkDraft
from kbroker.metadata.topics.closing_checks import check_not_closing, check_open, without_forwarding
from kbroker.metadata.topics.replica_placement import MAX_PARTITIONS_PER_REQUEST, PlanningContext, no_leader
from kbroker.metadata.topics.topic_names import INTERNAL_TOPICS, ZERO_UUID
from kbroker.metadata.topics.topic_requests import (
    NewPartitions,
    NewTopic,
    TopicDeletion,
    TopicNameOrId,
    TopicPlan,
    check_not_view,
    check_partition_count,
    check_source,
    check_views_deleted,
    plan_deletions,
    plan_partitions,
    plan_topic,
)
from kbroker.quotas.client_quotas import UNLIMITED, MutationQuota
from kbroker.runtime.turns import paced, yield_if_due
from protocol.errors import ErrorCode

Overrides = dict[str, str]
# The size at which another multi of topics is begun. The event loop reads and applies a multi at once: of 400 KB with
# 1,700 topics for 35 to 70 ms.
TOPICS_BYTES = 100_000
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


class TopicControlManager(ControlManager):
    async def create_topics(
        self, topics: Sequence[NewTopic], validate_only: bool, quota: MutationQuota = UNLIMITED
    ) -> list[CreateTopicResult]:
        """Create each topic independently, and return one result for each name. A repeated name is not created.

        As in Kafka, partitions count in the quota with `validate_only`, too.
        """
        times_named = Counter(topic.name for topic in paced(topics))
        results = {
            name: CreateTopicResult(name, error=_repeated() if count > 1 else None)
            for name, count in paced(times_named.items())
        }
        unique = [topic for topic in paced(topics) if times_named[topic.name] == 1]
        async with self._lock:
            try:
                await self._writer.prepare()
                check_partition_count(unique, self._config().num_partitions)
            except KafkaError as error:
                return [CreateTopicResult(name, error=error) for name in paced(results)]
            context = self._planning_context()
            plans: list[TopicPlan] = []
            for topic in paced(unique):
                try:
                    plan = plan_topic(topic, context, self._image.names_by_collision_key)
                    quota.charge(len(plan.replicas))
                except KafkaError as error:
                    results[topic.name] = CreateTopicResult(topic.name, error=error)
                    continue
                plans.append(plan)
                replicas: Sequence[Sequence[int]] = plan.replicas
                if VIEW_OF in plan.configs:
                    source = self._image.resolve(self._image.topics[plan.configs[VIEW_OF]])
                    replicas = [partition.replicas for partition in source.partitions]
                results[topic.name] = CreateTopicResult(
                    topic.name, self._random_topic_id(), len(replicas), len(replicas[0]), plan.configs
                )
        if not validate_only:
            await self._create(plans, context, results)
        await self._loader.wait_if_alone()
        return list(results.values())

    async def _create(
        self, plans: Sequence[TopicPlan], context: PlanningContext, results: dict[str, CreateTopicResult]
    ) -> None:
        """Write the topics in as few multis as their size allows, each topic in one multi.

        Other operations may run before each multi: a failover must not wait for thousands of topics. If these add,
        remove or cordon brokers, which `context` does not show, the topics are planned again.
        """
        remaining = list(reversed(plans))
        while remaining:
            async with self._lock:
                error = await _error_of(self._writer.prepare())
                current = self._planning_context()
                is_outdated = current.uncordoned_racks != context.uncordoned_racks
                draft = ChunkDraft(self._loader.chunks)
                ops: list[Op] = []
                names: list[str] = []
                size = 0
                while remaining and size + draft.max_bytes < TOPICS_BYTES:
                    plan = remaining.pop()
                    try:
                        if is_outdated:
                            plan = plan_topic(plan.topic, current, self._image.names_by_collision_key)
                        topic_ops = self._create_topic(plan, results[plan.topic.name].topic_id, draft)
                    except KafkaError as refusal:
                        results[plan.topic.name] = CreateTopicResult(plan.topic.name, error=refusal)
                        continue
                    names.append(plan.topic.name)
                    size += sum(map(op_bytes, topic_ops))
                    ops += topic_ops
                if error is None and ops:
                    error = await _error_of(self._writer.commit([*ops, *draft.ops()]))
                if error is not None:
                    results.update({name: CreateTopicResult(name, error=error) for name in names})

    def _create_topic(self, plan: TopicPlan, topic_id: bytes, draft: ChunkDraft) -> list[Create]:
        """Add the topic's partitions to the draft, and return the operations for its other nodes. Raises KafkaError."""
        if plan.topic.name in self._image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{plan.topic.name}' already exists.")
        if VIEW_OF in plan.configs:
            # It may have been deleted since the topic was planned.
            check_source(plan.configs[VIEW_OF], self._image.topics)
        partitions = [self._new_partition(replicas, 0) for replicas in plan.replicas]
        is_internal = plan.topic.name in INTERNAL_TOPICS
        node = znodes.TopicNode(topic_id, is_internal, has_kafka_key_hash=is_internal)
        ops = [Create(znodes.topic_path(plan.topic.name), znodes.encode_topic(node))]
        if plan.configs:
            path = znodes.config_path(ConfigResource(ConfigResourceType.TOPIC, plan.topic.name))
            ops.append(Create(path, znodes.encode(plan.configs)))
        for index, partition in enumerate(partitions):
            draft.add(topic_id, index, partition)
        return ops

    def _new_partition(self, replicas: list[int], leader_epoch: int) -> PartitionRegistration:
        """Return a new partition. Raises KafkaError if none of its brokers can lead it."""
        eligible = [broker_id for broker_id in replicas if self._image.is_replica_eligible(broker_id, ANY_EPOCH)]
        if not eligible:
            raise no_leader(len(replicas))
        able = [id for id in eligible if self._image.write_health(id) is not WriteHealth.FAILING]
        isr = sorted(able or eligible, key=self._image.write_health)
        return PartitionRegistration(leader=isr[0], leader_epoch=leader_epoch, replicas=replicas, isr=isr)

    async def delete_topics(
        self, requested: Sequence[TopicNameOrId], quota: MutationQuota = UNLIMITED
    ) -> list[TopicDeletion]:
        """Delete topics, and return one result for each name or id."""
        async with self._lock:
            error = await _error_of(self._writer.prepare())
            deletions = plan_deletions(requested, self._image.topics, self._image.topics_by_id)
            if error is not None:
                # The image may be old, so an error such as "unknown topic" may be wrong.
                return [TopicDeletion(deletion.name, deletion.topic_id, error) for deletion in deletions]
            for deletion in deletions:
                if deletion.error is None:
                    try:
                        quota.charge(len(self._image.topics_by_id[deletion.topic_id].partitions))
                    except KafkaError as refusal:
                        deletion.error = refusal
        valid = [deletion for deletion in deletions if deletion.error is None]
        names = {deletion.name or "" for deletion in valid}
        while valid:
            async with self._lock:
                await self._delete_some(valid, names)
        await self._loader.wait_if_alone()
        return deletions

    async def _delete_some(self, deletions: list[TopicDeletion], names: Collection[str]) -> None:
        """Delete topics from the end of a list, as many as one multi has room for, and remove them from the list.

        `names`: those of all topics that the request deletes.
        """
        error = await _error_of(self._writer.prepare())
        draft = ChunkDraft(self._loader.chunks)
        ops: list[Op] = []
        removed: list[TopicDeletion] = []
        while deletions and PATH_BYTES * len(ops) + draft.max_bytes < TOPICS_BYTES:
            deletion = deletions.pop()
            topic = self._image.topics_by_id.get(deletion.topic_id)
            if topic is None:
                continue  # another request has deleted it meanwhile
            if topic.name in self._image.views:
                try:
                    check_views_deleted(topic.name, self._image.views[topic.name], names)
                except KafkaError as refusal:
                    deletion.error = refusal
                    continue
            removed.append(deletion)
            draft.remove(topic.topic_id)
            ops.append(Delete(znodes.topic_path(topic.name)))
            resource = ConfigResource(ConfigResourceType.TOPIC, topic.name)
            if self._image.overrides(*resource):
                ops.append(Delete(znodes.config_path(resource)))
        if error is None and ops:
            ids = [deletion.topic_id for deletion in removed]
            error = await _error_of(self._writer.commit([*ops, *draft.ops()], ids))
        for deletion in removed:
            deletion.error = error

    async def create_partitions(
        self, topics: Sequence[NewPartitions], validate_only: bool, quota: MutationQuota = UNLIMITED
    ) -> list[CreatePartitionsResult]:
        """Add partitions to each topic independently, and return one result for each name."""
        times_named = Counter(topic.name for topic in paced(topics))
        results: dict[str, CreatePartitionsResult] = {}
        max_new_partitions = MAX_PARTITIONS_PER_REQUEST
        async with self._lock:
            for topic in topics:
                result = results[topic.name] = CreatePartitionsResult(topic.name)
                try:
                    if times_named[topic.name] > 1:
                        raise _repeated()
                    max_new_partitions -= await self._add_partitions(topic, validate_only, max_new_partitions, quota)
                except KafkaError as error:
                    result.error = error
                yield_if_due()
        await self._loader.wait_if_alone()
        return list(results.values())

    async def _add_partitions(
        self, new: NewPartitions, validate_only: bool, max_new_partitions: int, quota: MutationQuota
    ) -> int:
        """Add partitions to a topic, unless `validate_only`. Returns how many are added."""
        await self._writer.prepare()
        check_not_view(self._image.topics.get(new.name), "add partitions to")
        added = plan_partitions(new, self._planning_context(), max_new_partitions)
        check_not_closing(self._image.topics[new.name])
        topic = self._image.topics[new.name]
        listed = topic.listed_partitions
        check_open(topic)
        quota.charge(len(added))
        if validate_only:
            return len(added)
        draft = ChunkDraft(self._loader.chunks)
        for number, topic_id, index, row in list(draft.partitions_of(topic.topic_id)):
            if listed <= index < new.count:
                draft.replace(number, topic_id, index, without_forwarding(row))
        for index, replicas in enumerate(added, len(topic.partitions)):
            draft.add(topic.topic_id, index, self._new_partition(replicas, topic.first_leader_epoch))
        ops = draft.ops()
        if topic.removed_from is not None:
            node = replace(self._loader.topics[new.name], removed_from=None, removed_to=None)
            ops.append(Set(znodes.topic_path(new.name), znodes.encode_topic(node)))
        await self._writer.commit(ops)
        return len(added)

    def _planning_context(self) -> PlanningContext:
        config, running, fenced = self._config(), self._image.brokers, self._image.fenced_brokers
        return PlanningContext(
            topics=self._image.topics,
            racks={broker.id: broker.rack for broker in (*running.values(), *fenced.values())},
            random=self._environment.random,
            default_partitions=config.num_partitions,
            default_replication_factor=config.default_replication_factor,
            validate_configs=partial(validate_topic_overrides, config=config),
            cordoned_brokers=frozenset(filter(self._is_cordoned, (*running, *fenced))),
            fenced_brokers=frozenset(fenced),
            stopping_brokers=frozenset(id for id, broker in running.items() if broker.in_controlled_shutdown),
            failing_brokers=frozenset(
                id for id, broker in running.items() if broker.write_health is WriteHealth.FAILING
            ),
        )

    def _is_cordoned(self, broker: int) -> bool:
        """Return whether cordoned.log.dirs has the broker's log directory. Others' static configs are unknown."""
        config = self._config()
        if broker == config.node_id:
            return bool(config.get("cordoned.log.dirs"))
        return bool(self._image.overrides(ConfigResourceType.BROKER, str(broker)).get("cordoned.log.dirs"))

    def _random_topic_id(self) -> bytes:
        """Return a version 4 UUID. Its text must not begin with "-", like an option of a command-line tool."""
        topic_id = bytearray(self._environment.random.randbytes(16))
        topic_id[6] = topic_id[6] & 0x0F | 0x40
        topic_id[8] = topic_id[8] & 0x3F | 0x80
        return self._random_topic_id() if urlsafe_b64encode(topic_id).startswith(b"-") else bytes(topic_id)


def _repeated() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


async def _error_of(operation: Awaitable[None]) -> KafkaError | None:
    try:
        await operation
    except KafkaError as error:
        return error
    return None
