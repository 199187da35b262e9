"""The controller: the elected broker, which alone writes topics, partition state, configs and features.

An operation makes a decision (kbroker/metadata/topics, features.py), writes it as one change (metadata_writer.py), and
waits until this broker's image has the change. A lone broker also waits until its listeners have acted on it: when
create_topics returns, it has opened the logs of the new topics. Operations run one at a time. Leaders and in-sync
replicas are changed by the ReplicationControlManager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.coordination.interface import Op, Set
from kbroker.metadata.features import FeatureUpdate, update_features
from kbroker.metadata.image import TopicImage, WriteHealth
from kbroker.metadata.metadata_writer import MetadataWriter
from kbroker.metadata.reassignments.alter_reassignments import ReassignmentOutcome, RequestedReassignment
from kbroker.metadata.reassignments.plan_checks import RequestedPlan
from kbroker.metadata.reassignments.plan_manager import PlanProgress, ReassignmentPlanManager
from kbroker.metadata.reassignments.reassignment_control_manager import ReassignmentControlManager
from kbroker.metadata.reassignments.self_healing_manager import SelfHealingManager
from kbroker.metadata.recovery.log_recovery_manager import LogRecoveryManager
from kbroker.metadata.replication.isr_change_queue import AlterPartitionResult, IsrChangeQueue, IsrRequest
from kbroker.metadata.replication.leader_elections import (
    ELECTION_CONFIGS,
    ElectionOutcome,
    ElectionType,
    NewConfigs,
    RequestedElection,
)
from kbroker.metadata.replication.replication_control_manager import ReplicaKey, ReplicationControlManager
from kbroker.metadata.store import znodes
from kbroker.metadata.store.znodes import overrides_op
from kbroker.metadata.topics.closing_control_manager import ClosingControlManager
from kbroker.metadata.topics.closing_partitions import ClosingPartitions, check_configs
from kbroker.metadata.topics.create_topics import NewPartitions, NewTopic, new_internal_topic
from kbroker.metadata.topics.delete_topics import TopicDeletion, TopicNameOrId
from kbroker.metadata.topics.topic_control_manager import (
    CreatePartitionsResult,
    CreateTopicResult,
    TopicControlManager,
)
from kbroker.metadata.topics.topic_names import INTERNAL_TOPICS
from kbroker.runtime.mutex import Mutex
from kbroker.runtime.slices import Slices
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from random import Random

    from kbroker.config import BrokerConfig
    from kbroker.coordination.interface import Coordination
    from kbroker.metadata.metadata_loader import MetadataLoader
    from kbroker.runtime.environment import Clock, Offload

Overrides = dict[str, str]


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
        clock: Clock,
        offload: Offload,
    ) -> None:
        self.node_id = node_id
        self._loader = loader
        self._image = loader.image
        self._config = config
        self._lock = Mutex(loop)
        self._writer = MetadataWriter(node_id, coordination, loader, loop, clock)
        self._replication = ReplicationControlManager(
            coordination, loader, self._writer, self._lock, loop, config, clock
        )
        self._reassignments = ReassignmentControlManager(loader, self._writer, self._replication, self._lock)
        self._plans = ReassignmentPlanManager(
            coordination, loader, self._writer, self._reassignments, self._lock, loop, clock
        )
        self.self_healing = SelfHealingManager(loader, self._writer, self._plans, self._lock, clock, offload, config)
        self._closing = ClosingControlManager(loader, self._writer, self._lock, loop, config)
        self.recovery = LogRecoveryManager(loader, self._writer, self._replication, self._lock, loop)
        self._replication.on_reconciled = self._on_reconciled
        self._isr_changes = IsrChangeQueue(loader, self._writer, self._replication, self._lock, loop)
        self._topics = TopicControlManager(loader, self._writer, self._lock, random, config)

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

    async def campaign(self, last_epoch: int = 0) -> bool:
        """Become the controller if there is none. Returns whether this broker was elected. Raises CoordinationError.

        `last_epoch`: the highest controller epoch that this broker has seen. The caller then calls `reconcile` or
        `start_reconciling`.
        """
        return await self._writer.campaign(last_epoch)

    def resign(self) -> None:
        """Stop deciding: another broker may be the controller now."""
        self._writer.resign()

    def use_session(self, coordination: Coordination) -> None:
        """Continue with a new session, in which this broker is not elected yet."""
        self._writer.use_session(coordination)
        self._replication.use_session(coordination)
        self._plans.use_session(coordination)

    async def reconcile(self) -> None:
        """Register new brokers, fence those without a session, and settle their partitions.

        Raises KafkaError, CoordinationError.
        """
        await self._replication.reconcile()

    def _on_reconciled(self) -> None:
        """Continue what a former controller has begun, now that the brokers are those of the ephemeral nodes."""
        self.recovery.start()
        self._plans.continue_plan()
        self._closing.reopen_all()

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

    async def remove_failed_replicas(self, broker_id: int, broker_epoch: int, failed: Sequence[ReplicaKey]) -> None:
        """End the ISR memberships of replicas (topic id, index) whose logs have failed. Raises KafkaError."""
        await self._replication.remove_failed_replicas(broker_id, broker_epoch, failed)

    async def set_write_health(self, broker_id: int, broker_epoch: int, health: WriteHealth) -> None:
        """Store whether a broker can write; other brokers take the roles of one that cannot. Raises KafkaError."""
        await self._replication.set_write_health(broker_id, broker_epoch, health)

    async def elect_leaders(
        self,
        election_type: ElectionType,
        requested: Sequence[RequestedElection] | None,
        slices: Slices | None = None,
    ) -> list[ElectionOutcome]:
        """Elect leaders on request (KIP-460); of all partitions if `requested` is None. Raises KafkaError.

        An unclean election ends the wait for the logs of brokers that do not respond, see LogRecoveryManager.
        """
        recovered = await self.recovery.force(requested) if election_type is ElectionType.UNCLEAN else []
        if requested is not None:
            requested = [each for each in requested if each not in recovered]
        outcomes = await self._replication.elect_leaders(election_type, requested, slices)
        return [*(ElectionOutcome(*each, None) for each in recovered), *outcomes]

    async def alter_reassignments(
        self,
        requested: Sequence[RequestedReassignment],
        may_change_factor: bool = True,
        slices: Slices | None = None,
    ) -> list[ReassignmentOutcome]:
        """Begin, replace or cancel reassignments (KIP-455). Returns the outcome of each. Raises KafkaError.

        Without `may_change_factor` a target must have as many replicas as the partition has.
        """
        return await self._reassignments.alter_reassignments(requested, may_change_factor, slices)

    async def check_reassignments_current(self) -> None:
        """Wait until the image has all reassignments that have begun. Raises KafkaError."""
        await self._reassignments.check_current()

    async def create_reassignment_plan(self, requested: RequestedPlan, slices: Slices | None = None) -> int:
        """Store a plan of reassignments, which this or a later controller runs. Returns its id. Raises KafkaError."""
        return await self._plans.create_plan(requested, slices)

    async def cancel_reassignment_plan(self, plan_id: int) -> None:
        """Begin to move back everything that the plan has moved. Raises KafkaError if the plan is not running."""
        await self._plans.cancel_plan(plan_id)

    async def describe_reassignment_plan(self) -> PlanProgress | None:
        """Return the running plan or the last one; None if there has been none. Raises KafkaError."""
        return await self._plans.describe_plan()

    async def unregister_broker(self, broker_id: int) -> None:
        """Remove the registration of a broker that has gone for good. Raises KafkaError."""
        await self._replication.unregister_broker(broker_id)

    async def balance_leaders(self) -> None:
        """Elect the preferred leader of each partition whose preferred leader can lead."""
        await self._replication.balance_leaders()

    async def create_topics(
        self, topics: Sequence[NewTopic], validate_only: bool, slices: Slices | None = None
    ) -> list[CreateTopicResult]:
        """Create each topic independently, and return one result for each name. A repeated name is not created."""
        return await self._topics.create_topics(topics, validate_only, slices)

    async def delete_topics(
        self, requested: Sequence[TopicNameOrId], slices: Slices | None = None
    ) -> list[TopicDeletion]:
        """Delete topics, and return one result for each name or id."""
        return await self._topics.delete_topics(requested, slices)

    async def create_partitions(
        self, topics: Sequence[NewPartitions], validate_only: bool, slices: Slices | None = None
    ) -> list[CreatePartitionsResult]:
        """Add partitions to each topic independently, and return one result for each name."""
        return await self._topics.create_partitions(topics, validate_only, slices)

    async def close_partitions(self, name: str, count: int) -> ClosingPartitions:
        """Make a topic's partitions from `count` on refuse records until `reopen_partitions`. Raises KafkaError."""
        return await self._closing.close(name, count)

    async def begin_closing(self, closing: ClosingPartitions) -> None:
        """Make partitions that refuse records forward them to the topic's other partitions. Raises KafkaError."""
        await self._closing.begin_closing(closing)

    async def cancel_closing(self, name: str) -> None:
        """Make the closing partitions of a topic keep their records again. Raises KafkaError."""
        await self._closing.cancel_closing(name)

    async def retire_partitions(self, topic: TopicImage, first: int) -> None:
        """Retire the closing partitions of a topic, unless they differ from those in `topic`. Raises KafkaError."""
        await self._closing.retire(topic, first)

    async def remove_partitions(self, closing: ClosingPartitions) -> None:
        """Remove closing partitions that are empty in these leader epochs. Raises KafkaError."""
        await self._closing.remove(closing)

    async def reopen_partitions(self, topic_id: bytes) -> None:
        """Reopen the partitions of a topic that refuse records, if there are any."""
        await self._closing.reopen(topic_id)

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
            if resource_type == ConfigResourceType.TOPIC:
                check_configs(self._image.topics[name], current, altered)
            resource = ConfigResource(resource_type, name)
            ops: list[Op] = []
            if any(current.get(config) != altered.get(config) for config in ELECTION_CONFIGS):
                ops = self._replication.ops_for_configs(NewConfigs(resource, altered))
            await self._writer.commit_all([*ops, overrides_op(resource, current, altered)])
        await self._loader.wait_if_alone()

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
