"""The controller: the elected broker that alone writes topics, partition state and configs.

Each operation decides (kbroker/metadata/topics/topic_plans.py), writes one multi that begins with a check of the
controller epoch and adds one numbered change, and then waits until this broker's own image and listeners
have followed: when a call returns, a topic that it created has its logs. Operations run one at a time.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.config.topic_config import validate_topic_configs
from kbroker.metadata.features import FeatureUpdate, update_features
from kbroker.metadata.image import PartitionRegistration, TopicImage
from kbroker.metadata.metadata_writer import MetadataWriter
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import Create, Delete, Op, Set
from kbroker.metadata.store.partition_chunks import ChunkDraft
from kbroker.metadata.topics.topic_plans import (
    INTERNAL_TOPICS,
    MAX_PARTITIONS_PER_REQUEST,
    PartitionsSpec,
    PlanningContext,
    TopicDeletion,
    TopicPlan,
    TopicRef,
    TopicSpec,
    check_request_size,
    collision_key,
    duplicates,
    internal_topic,
    plan_deletions,
    plan_partitions,
    plan_topic,
)
from kbroker.runtime.turnstile import Turnstile
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from random import Random

    from kbroker.config import BrokerConfig
    from kbroker.metadata.metadata_loader import MetadataLoader
    from kbroker.metadata.store.coordination import Coordination

# Well below the 1 MiB or so that ZooKeeper takes in one multi.
MULTI_BYTES = 400_000
Overrides = dict[str, str]


@dataclass(slots=True)
class TopicResult:
    """One line of CreateTopics' answer; the rest is meaningless when `error` is set."""

    name: str
    topic_id: bytes = bytes(16)
    partitions: int = -1
    replication_factor: int = -1
    configs: Overrides = field(default_factory=dict)
    error: KafkaError | None = None


@dataclass(slots=True)
class PartitionsResult:
    name: str
    error: KafkaError | None = None


class Controller:
    """Works only while this broker is elected; otherwise every operation refuses with NOT_CONTROLLER."""

    def __init__(
        self,
        node_id: int,
        coordination: Coordination,
        follower: MetadataLoader,
        loop: AbstractEventLoop,
        random: Random,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self.node_id = node_id
        self._follower = follower
        self._image = follower.image
        self._random = random
        self._config = config
        self._turn = Turnstile(loop)
        self._writer = MetadataWriter(node_id, coordination, follower, loop)

    @property
    def elected(self) -> bool:
        return self._writer.elected

    @property
    def epoch(self) -> int:
        """The number of the election that made this broker the controller; 1 is the cluster's first election."""
        return self._writer.epoch

    @property
    def change_count(self) -> int:
        """The number of metadata changes in the cluster's life that this broker has followed."""
        return self._follower.changes.number

    async def campaign(self) -> bool:
        """Becomes the controller unless there is one; true if this broker is it now. Raises CoordinationError."""
        return await self._writer.campaign()

    async def create_topics(self, specs: Sequence[TopicSpec], validate_only: bool) -> list[TopicResult]:
        """One result for each name, in the order of the request. Names given twice are refused, not
        created.
        """
        repeated = duplicates(spec.name for spec in specs)
        names = list(dict.fromkeys(spec.name for spec in specs))
        results: dict[str, TopicResult] = {}
        for name in repeated:
            twice = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            results[name] = TopicResult(name, error=twice)
        wanted = [spec for spec in specs if spec.name not in repeated]
        async with self._turn:
            try:
                await self._writer.prepare()
                check_request_size(wanted, self._config().num_partitions)
            except KafkaError as refusal:
                return [TopicResult(name, error=refusal) for name in names]
            plans = self._plan_topics(wanted, results)
            if not validate_only:
                await self._create(plans, results)
        return [results[name] for name in names]

    def _plan_topics(self, specs: Sequence[TopicSpec], results: dict[str, TopicResult]) -> list[TopicPlan]:
        around = self._surroundings()
        colliding = {collision_key(name): name for name in self._image.topics if "." in name or "_" in name}
        plans: list[TopicPlan] = []
        for spec in specs:
            try:
                plan = plan_topic(spec, around, colliding)
            except KafkaError as refusal:
                results[spec.name] = TopicResult(spec.name, error=refusal)
                continue
            plans.append(plan)
            results[spec.name] = TopicResult(
                spec.name, self._new_id(), len(plan.replicas), len(plan.replicas[0]), plan.configs
            )
        return plans

    async def _create(self, plans: Sequence[TopicPlan], results: dict[str, TopicResult]) -> None:
        """In as few multis as their size allows, each whole topics."""
        waiting = list(reversed(plans))
        while waiting:
            error = await _refusal(self._writer.prepare())
            draft = ChunkDraft(self._follower.chunks)
            ops: list[Op] = []
            group: list[str] = []
            size = 0
            while waiting and size < MULTI_BYTES:
                plan = waiting.pop()
                group.append(plan.name)
                created = self._creation(plan, results[plan.name].topic_id, draft)
                size += sum(len(op.path) + len(op.data) for op in created)
                ops += created
            if error is None:
                error = await _refusal(self._writer.commit([*ops, *draft.ops()]))
            if error is not None:
                results.update({name: TopicResult(name, error=error) for name in group})

    def _creation(self, plan: TopicPlan, topic_id: bytes, draft: ChunkDraft) -> list[Create]:
        node = znodes.TopicNode(topic_id, plan.name in INTERNAL_TOPICS)
        ops = [Create(znodes.topic_path(plan.name), znodes.encode_topic(node))]
        if plan.configs:
            path = znodes.config_path(ConfigResource(ConfigResourceType.TOPIC, plan.name))
            ops.append(Create(path, znodes.encode(plan.configs)))
        for index, replicas in enumerate(plan.replicas):
            draft.add(topic_id, index, _fresh(replicas))
        return ops

    async def delete_topics(self, refs: Sequence[TopicRef]) -> list[TopicDeletion]:
        """One answer for each name or id, the refused ones included."""
        async with self._turn:
            error = await _refusal(self._writer.prepare())
            answers = plan_deletions(refs, self._image.topics, self._image.topics_by_id)
            if error is not None:
                # That there is no such topic may not be so.
                return [TopicDeletion(answer.name, answer.topic_id, error) for answer in answers]
            good = [answer for answer in answers if answer.error is None]
            error = await _refusal(self._delete([self._image.topics_by_id[answer.topic_id] for answer in good]))
            for answer in good:
                answer.error = error
            return answers

    async def _delete(self, topics: Sequence[TopicImage]) -> None:
        if not topics:
            return
        draft = ChunkDraft(self._follower.chunks)
        ops: list[Op] = []
        for topic in topics:
            draft.remove(topic.topic_id)
            ops.append(Delete(znodes.topic_path(topic.name)))
            resource = ConfigResource(ConfigResourceType.TOPIC, topic.name)
            if self._image.overrides(*resource):
                ops.append(Delete(znodes.config_path(resource)))
        await self._writer.commit([*ops, *draft.ops()])

    async def create_partitions(self, specs: Sequence[PartitionsSpec], validate_only: bool) -> list[PartitionsResult]:
        """One result for each name, in the order of the request."""
        repeated = duplicates(spec.name for spec in specs)
        results: dict[str, PartitionsResult] = {}
        room = MAX_PARTITIONS_PER_REQUEST
        async with self._turn:
            for spec in specs:
                error: KafkaError | None = None
                try:
                    if spec.name in repeated:
                        raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                    room -= await self._grow(spec, validate_only, room)
                except KafkaError as refusal:
                    error = refusal
                results[spec.name] = PartitionsResult(spec.name, error)
        return list(results.values())

    async def _grow(self, spec: PartitionsSpec, validate_only: bool, room: int) -> int:
        """Gives the number of partitions that were added, or would be."""
        await self._writer.prepare()
        added = plan_partitions(spec, self._surroundings(), room)
        if validate_only:
            return len(added)
        topic = self._image.topics[spec.name]
        draft = ChunkDraft(self._follower.chunks)
        for index, replicas in enumerate(added, len(topic.partitions)):
            draft.add(topic.topic_id, index, _fresh(replicas))
        await self._writer.commit(draft.ops())
        return len(added)

    async def alter_configs(
        self,
        resource_type: int,
        name: str,
        new_overrides: Overrides | Callable[[Overrides], Overrides] | None,
    ) -> None:
        """Replaces a resource's overrides (None or {}: removes them). Raises KafkaError.

        A function gets the current overrides and gives the new ones; nothing else can change them in
        between. It may raise KafkaError. Values are the caller's to validate; that the topic exists is
        checked here.
        """
        async with self._turn:
            await self._writer.prepare()
            if resource_type == ConfigResourceType.TOPIC and name not in self._image.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
            current = self._image.overrides(resource_type, name)
            wanted = new_overrides(dict(current)) if callable(new_overrides) else new_overrides or {}
            if wanted == current:
                return
            path = znodes.config_path(ConfigResource(resource_type, name))
            data = znodes.encode(wanted)
            op = Delete(path) if not wanted else Set(path, data) if current else Create(path, data)
            await self._writer.commit([op])

    async def update_features(self, updates: Sequence[FeatureUpdate], validate_only: bool) -> None:
        """Other levels of finalized features, all or none. Raises KafkaError."""
        async with self._turn:
            await self._writer.prepare()
            features = update_features(self._image.features, updates, self.node_id)
            if features != self._image.features and not validate_only:
                await self._writer.commit([Set(znodes.FEATURES, znodes.encode_features(features))])

    async def auto_create(self, name: str) -> TopicImage:
        """The topic, made with the broker's defaults if it is absent; internal ones as they must be."""
        if name in INTERNAL_TOPICS:
            return await self.ensure_internal_topic(name)
        return await self._ensure(TopicSpec(name))

    async def ensure_internal_topic(self, name: str) -> TopicImage:
        """__consumer_offsets or __transaction_state, made as the broker's configs say if it is absent."""
        return await self._ensure(internal_topic(name, self._config()))

    async def _ensure(self, spec: TopicSpec) -> TopicImage:
        topic = self._image.topics.get(spec.name)
        if topic is None:
            (result,) = await self.create_topics([spec], validate_only=False)
            if result.error is not None and result.error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise result.error
            topic = self._image.topics[spec.name]
        return topic

    async def restart_leaders(self) -> None:
        """New leader epochs where this broker led before it restarted: what a crash may have cut off the
        end of a log is then told from what is written there next (KIP-320). Raises CoordinationError."""
        async with self._turn:
            draft = ChunkDraft(self._follower.chunks)
            for number, chunk in self._follower.chunks.items():
                for topic_id, states in chunk.items():
                    for index, state in states.items():
                        if state.leader == self.node_id:
                            draft.replace(number, topic_id, index, _led_anew(state))
            for ops in _batches(draft.ops()):
                await self._writer.write(ops)

    def _surroundings(self) -> PlanningContext:
        config = self._config()
        return PlanningContext(
            topics=self._image.topics,
            racks={node.id: node.rack for node in self._image.brokers.values()},
            random=self._random,
            default_partitions=config.num_partitions,
            default_replication_factor=config.default_replication_factor,
            check_configs=lambda overrides: validate_topic_configs(overrides, config.topic_defaults),
            cordoned=frozenset(filter(self._is_cordoned, self._image.brokers)),
        )

    def _is_cordoned(self, broker: int) -> bool:
        """With one log directory each, cordoned.log.dirs names it or nothing. Of other brokers, what was altered."""
        config = self._config()
        if broker == config.node_id:
            return bool(config.get("cordoned.log.dirs"))
        return bool(self._image.overrides(ConfigResourceType.BROKER, str(broker)).get("cordoned.log.dirs"))

    def _new_id(self) -> bytes:
        """A random topic id: a version 4 UUID whose text does not look like an option to command-line tools."""
        drawn = bytearray(self._random.randbytes(16))
        drawn[6] = drawn[6] & 0x0F | 0x40
        drawn[8] = drawn[8] & 0x3F | 0x80
        return self._new_id() if urlsafe_b64encode(drawn).startswith(b"-") else bytes(drawn)


def _fresh(replicas: list[int]) -> PartitionRegistration:
    return PartitionRegistration(leader=replicas[0], leader_epoch=0, replicas=replicas, isr=list(replicas))


def _led_anew(state: PartitionRegistration) -> PartitionRegistration:
    return replace(state, leader_epoch=state.leader_epoch + 1, partition_epoch=state.partition_epoch + 1)


async def _refusal(work: Awaitable[None]) -> KafkaError | None:
    try:
        await work
    except KafkaError as refusal:
        return refusal
    return None


def _batches(ops: Iterable[Op]) -> Iterable[list[Op]]:
    batch: list[Op] = []
    size = 0
    for op in ops:
        batch.append(op)
        size += len(op.data) if isinstance(op, Create | Set) else 0
        if size > MULTI_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
