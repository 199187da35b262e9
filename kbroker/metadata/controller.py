"""The controller: the elected broker, which alone writes topics, partition state, configs and features.

An operation makes a decision (pure functions beside the managers), writes it as one change (MetadataWriter), and
waits until this broker's image has the change. A lone broker also waits until its listeners have acted on it: when
create_topics returns, it has opened the logs of the new topics. Operations run one at a time.
"""

from asyncio import Lock
from collections.abc import Callable, Sequence

from kbroker.common import KafkaError, TopicPartition
from kbroker.config import BrokerConfig
from kbroker.config.config_def import ConfigResource, ConfigResourceType
from kbroker.coordination.interface import Coordination, Op, Set
from kbroker.metadata.security.acl_control_manager import AclControlManager
from kbroker.metadata.security.client_quota_control_manager import ClientQuotaControlManager
from kbroker.metadata.control_manager import ControllerContext, ControlManager, MetadataWriter, PartitionOutcome
from kbroker.metadata.features import WITHOUT_EFFECT, FeatureUpdate, update_features
from kbroker.metadata.metadata_loader import MetadataLoader
from kbroker.metadata.reassignments.reassignment_control_manager import (
    ReassignmentControlManager,
    ReassignmentPlanManager,
)
from kbroker.metadata.reassignments.self_healing_manager import ReadDisks, SelfHealingManager
from kbroker.metadata.recovery.log_recovery_manager import LogRecoveryManager, ReadReplicaLogs
from kbroker.metadata.replication.isr_change_queue import IsrChangeQueue
from kbroker.metadata.replication.partition_requests import ELECTION_CONFIGS, ElectionType, NewConfigs
from kbroker.metadata.replication.replication_control_manager import ReplicationControlManager
from kbroker.metadata.security.scram_control_manager import ScramControlManager
from kbroker.metadata.store import znodes
from kbroker.metadata.topics.closing_checks import check_configs
from kbroker.metadata.topics.topic_control_manager import TopicControlManager
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode

Overrides = dict[str, str]

log = EventLogger("kbroker.metadata")


class Controller(ControlManager):
    """The election, configs and features; the managers have the other operations.

    Until this broker is elected, every operation fails with NOT_CONTROLLER.
    """

    def __init__(
        self,
        environment: Environment,
        node_id: int,
        coordination: Coordination,
        loader: MetadataLoader,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self.node_id = node_id
        writer = MetadataWriter(environment, node_id, coordination, loader)
        self.context = context = ControllerContext(loader, writer, Lock(), environment, config)
        super().__init__(context)
        self._reconciled_listeners: list[Callable[[], None]] = []
        self.replication = ReplicationControlManager(context, self._on_reconciled)
        self.isr_changes = IsrChangeQueue(context)
        self.topics = TopicControlManager(context)
        self.reassignments = ReassignmentControlManager(context)
        self.plans = ReassignmentPlanManager(context, self.reassignments)
        self.self_healing = SelfHealingManager(context, self.plans)
        self.recovery = LogRecoveryManager(context)
        self.scram = ScramControlManager(context)
        self.acls = AclControlManager(context)
        self.quotas = ClientQuotaControlManager(context)

    def use_reports(self, read_logs: ReadReplicaLogs, read_disks: ReadDisks | None = None) -> None:
        """Ask brokers for their logs and disks with these functions, from now on. Called before the first election."""
        self.recovery.read_logs = read_logs
        if read_disks is not None:
            self.self_healing.read_disks = read_disks

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
        `start_reconciling` of `replication`.
        """
        return await self._writer.campaign(last_epoch)

    def resign(self) -> None:
        """Stop deciding: another broker may be the controller now."""
        self._writer.resign()

    def use_session(self, coordination: Coordination) -> None:
        """Continue with a new session, in which this broker is not elected yet."""
        self._writer.use_session(coordination)

    def add_reconciled_listener(self, listener: Callable[[], None]) -> None:
        """Call the listener whenever this broker has become the controller, and its image is up to date."""
        self._reconciled_listeners.append(listener)

    def _on_reconciled(self) -> None:
        """Continue what a former controller has begun, now that the brokers are those of the ephemeral nodes."""
        self.recovery.start()
        self.plans.continue_plan()
        for listener in self._reconciled_listeners:
            listener()

    async def elect_leaders(
        self, election_type: ElectionType, requested: Sequence[TopicPartition] | None
    ) -> list[PartitionOutcome]:
        """Elect leaders on request (KIP-460); of all partitions if `requested` is None. Raises KafkaError.

        An unclean election ends the wait for the logs of brokers that do not respond, see LogRecoveryManager.
        """
        recovered = await self.recovery.force(requested) if election_type is ElectionType.UNCLEAN else []
        if requested is not None:
            requested = [each for each in requested if each not in recovered]
        outcomes = await self.replication.elect_leaders(election_type, requested)
        return [*(PartitionOutcome(*each, None) for each in recovered), *outcomes]

    async def alter_configs(
        self, resource_type: int, name: str, new_overrides: Overrides | Callable[[Overrides], Overrides] | None
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
                ops = self.replication.ops_for_configs(NewConfigs(resource, altered))
            await self._writer.commit_all([*ops, znodes.overrides_op(resource, current, altered)])
        await self._loader.wait_if_alone()

    async def update_features(self, updates: Sequence[FeatureUpdate], validate_only: bool) -> None:
        """Change levels of finalized features, all or none (KIP-584). Raises KafkaError."""
        async with self._lock:
            await self._writer.prepare()
            brokers = {id: known.registration.features for id, known in self._loader.registrations.items()}
            former = self._image.features
            features = update_features(former, updates, self.node_id, brokers)
            if features != former and not validate_only:
                await self._writer.commit([Set(znodes.FEATURES, znodes.encode_features(features))])
                for name, reason in WITHOUT_EFFECT.items():
                    if features.level(name) != former.level(name):
                        log.warning("feature without effect", feature=name, level=features.level(name), reason=reason)
