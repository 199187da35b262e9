"""The controller's decisions about brokers, leaders and in-sync replicas, written to the coordination service.

The decisions are in kbroker/metadata/replication. Each multi leaves a state from which another controller can continue:
it runs `reconcile` when it is elected, and again whenever a broker's ephemeral node appears or vanishes.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kbroker.common import KafkaError, TopicPartition
from kbroker.config.config_def import ConfigResource, ConfigResourceType
from kbroker.coordination.interface import CoordinationError, Create, Delete, Op, Set, WatchEvent, batches
from kbroker.metadata.control_manager import ControllerContext, ControlManager, PartitionOutcome
from kbroker.metadata.features import unsupported_levels
from kbroker.metadata.image import BrokerNode, KnownBroker, WriteHealth
from kbroker.metadata.recovery.log_recovery_manager import OlderMetadata
from kbroker.metadata.replication.broker_changes import (
    BrokerChanges,
    acceptable_leaders,
    log_changes,
    plan_broker_changes,
    settle_partition,
)
from kbroker.metadata.replication.partition_change import TopicRules, remove_failed_replica, waits_for
from kbroker.metadata.replication.partition_requests import (
    ElectionType,
    NewConfigs,
    balance_leader,
    elect_on_request,
    give_up_replica,
    unknown_partition,
)
from kbroker.metadata.store import znodes
from kbroker.metadata.store.partition_chunks import ChunkDraft
from kbroker.metadata.store.znodes import removal_ops
from kbroker.metadata.topics.topic_requests import check_not_view
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import yield_if_due
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Task

log = EventLogger("kbroker.metadata")

# The interval of attempts while the coordination service is unavailable, in seconds.
RETRY_BACKOFF_S = 1.0
# The most elections in one balance of leaders, as in Kafka.
MAX_BALANCED = 1000

# The topic id and the index of a partition.
ReplicaKey = tuple[bytes, int]


class ReplicationControlManager(ControlManager):
    """`on_reconciled` is called after each reconciliation."""

    def __init__(self, context: ControllerContext, on_reconciled: Callable[[], None] = lambda: None) -> None:
        super().__init__(context)
        self._on_reconciled = on_reconciled
        # The controller epoch in which all partitions have been checked.
        self._reconciled_epoch = 0
        self._older_metadata = OlderMetadata(context)
        self._brokers_changed = False
        self._reconciling: Task[None] | None = None

    # Brokers.

    def start_reconciling(self) -> None:
        """Reconcile in the background until it succeeds, or until this broker is no longer the controller."""
        self._brokers_changed = True
        if self._reconciling is None:
            self._reconciling = self._loop.create_task(self._keep_reconciling())

    async def _keep_reconciling(self) -> None:
        is_reported = False
        try:
            while self._brokers_changed and self._writer.is_elected:
                self._brokers_changed = False
                try:
                    await self.reconcile()
                except (KafkaError, CoordinationError) as error:
                    if self._writer.is_elected:
                        # Once for each outage of the coordination service.
                        if not is_reported:
                            log.warning("brokers not reconciled", reason=error)
                        is_reported = self._brokers_changed = True
                        await sleep(RETRY_BACKOFF_S)
                except Exception as error:
                    # Retried, since only the controller can fence brokers and elect leaders.
                    log.failure("brokers not reconciled", error)
                    self._brokers_changed = True
                    await sleep(RETRY_BACKOFF_S)
        finally:
            self._reconciling = None

    async def reconcile(self) -> None:
        """Compare the brokers' ephemeral nodes with their registrations, and settle all partitions.

        Raises KafkaError, CoordinationError.
        """
        async with self._lock:
            await self._writer.prepare()
            known = self._loader.registrations
            nodes = self._supporting(await self._read_broker_nodes())
            changes = plan_broker_changes(nodes, known)
            epoch = self._writer.epoch
            is_reconciled = self._reconciled_epoch == epoch
            newer = await self._older_metadata.seen_by_brokers(nodes, changes)
            if not newer and not is_reconciled:
                self._older_metadata.wait_for_former_brokers(known, changes)
            if changes or not is_reconciled:
                after = changes.after(known, self._clock.now_ms())
                # Brokers are fenced first: a failure between two multis may have left their partitions unsettled.
                self._reconciled_epoch = 0
                if newer:
                    await self._older_metadata.begin_recovery(newer, *self._registration_ops(changes, after))
                else:
                    await self._write(changes, after, only_changed=is_reconciled)
                self._reconciled_epoch = epoch
                if len(after) > 1:
                    log_changes(changes)
        self._on_reconciled()

    async def _read_broker_nodes(self) -> dict[int, BrokerNode]:
        children = await self._writer.coordination.children(znodes.BROKERS, self._on_brokers_change)
        names = [name for name in children if name.isdecimal()]
        if len(names) < len(children):
            log.warning("not the nodes of brokers", path=znodes.BROKERS, names=sorted({*children} - {*names}))
        nodes = await self._writer.coordination.get_many([f"{znodes.BROKERS}/{name}" for name in names])
        return {
            int(name): znodes.decode_broker(int(name), node.data)
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }

    def _supporting(self, nodes: Mapping[int, BrokerNode]) -> dict[int, BrokerNode]:
        """Return the nodes of the brokers that support all finalized features; the others stay fenced, as in Kafka.

        A version that does not check it itself would lead partitions whose records it ignores.
        """
        supporting = {}
        for broker_id, node in nodes.items():
            if unsupported := unsupported_levels(self._image.features, node.registration.features):
                log.error(
                    "a broker is not unfenced: its version does not support features that the cluster uses",
                    broker=broker_id, unsupported=unsupported,
                )  # fmt: skip
            else:
                supporting[broker_id] = node
        return supporting

    def _on_brokers_change(self, event: WatchEvent) -> None:
        if self._writer.is_elected:
            self.start_reconciling()

    async def _write(self, changes: BrokerChanges, after: Mapping[int, KnownBroker], only_changed: bool) -> None:
        """Write changes of brokers with their effect on all partitions, in one multi if it is not too large.

        Otherwise brokers are fenced in the first multi and unfenced in the last. If it is not reached, the next
        controller finds the same brokers restarted. `only_changed`: partitions without a replica on these brokers have
        been settled already.
        """
        brokers = changes.brokers if only_changed else None
        draft = self._settle(changes, after, brokers=brokers)
        leaving, entering = self._registration_ops(changes, after)
        for batch in batches([*leaving, *draft.ops(), *entering]):
            await self._writer.write(batch)

    def _registration_ops(
        self, changes: BrokerChanges, after: Mapping[int, KnownBroker]
    ) -> tuple[Sequence[Op], Sequence[Op]]:
        """Return the operations that fence brokers, and those that unfence brokers."""
        leaving = [self._registration_op(broker_id, after) for broker_id in changes.fenced]
        entered = (*changes.restarted, *changes.unfenced, *changes.completed)
        entering = [self._registration_op(broker_id, after) for broker_id in entered]
        return leaving, entering

    def _settle(
        self,
        changes: BrokerChanges,
        after: Mapping[int, KnownBroker],
        new_configs: NewConfigs | None = None,
        brokers: frozenset[int] | None = None,
    ) -> ChunkDraft:
        """Settle the partitions of a topic whose configs change, those with replicas on some brokers, or all."""
        is_acceptable = acceptable_leaders(after).__contains__
        rules: dict[bytes, TopicRules] = {}
        draft = ChunkDraft(self._loader.chunks)
        topic = None
        if new_configs is not None and new_configs.resource.type == ConfigResourceType.TOPIC:
            topic = self._image.topics.get(new_configs.resource.name)
        for number, topic_id, index, partition in (
            draft.partitions() if topic is None else draft.partitions_of(topic.topic_id)
        ):
            if brokers is not None and brokers.isdisjoint(partition.replicas):
                continue
            if topic_id not in rules:
                rules[topic_id] = self._rules(topic_id, new_configs, after)
            settled = settle_partition(partition, changes, is_acceptable, rules[topic_id])
            draft.replace(number, topic_id, index, settled)
        return draft

    def ops_for_configs(self, new_configs: NewConfigs) -> list[Op]:
        """Return the operations that adapt partitions to new configs of a topic, or of all brokers.

        They are written before the new configs are: with a lower min.insync.replicas the high watermark advances
        without the eligible leader replicas.
        """
        draft = self._settle(BrokerChanges(), self._loader.registrations, new_configs)
        return draft.ops()

    def _registration_op(self, broker_id: int, after: Mapping[int, KnownBroker]) -> Op:
        path, data = znodes.registration_path(broker_id), znodes.encode_registration(after[broker_id])
        return Set(path, data) if broker_id in self._loader.registrations else Create(path, data)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> int:
        """Move the leaderships of a broker that is about to stop to others, and end its ISR memberships.

        Returns the number of partitions that it still leads. Raises KafkaError.
        """
        async with self._lock:
            await self._writer.prepare()
            self._check_broker_epoch(broker_id, broker_epoch)
            known = self._loader.registrations
            if acceptable_leaders(known) <= {broker_id}:
                return 0  # no other broker could lead
            broker = known[broker_id]
            stopping = broker.registration._replace(in_controlled_shutdown=True)
            after = {**known, broker_id: broker._replace(registration=stopping)}
            draft = self._settle(BrokerChanges(), after, brokers=frozenset((broker_id,)))
            await self._writer.commit_all([self._registration_op(broker_id, after), *draft.ops()])
            return sum(partition.leader == broker_id for _, _, _, partition in draft.partitions())

    async def unregister_broker(self, broker_id: int) -> None:
        """Remove a broker's registration. Its replicas stay assigned to it, as in Kafka. Raises KafkaError.

        This fences a broker that is alive, which registers again at once. A later broker with this id counts as a new
        one: it is not cordoned, and its disk may be another one. So the request is refused while a partition without a
        leader waits for this broker.
        """
        async with self._lock:
            await self._writer.prepare()
            known = self._loader.registrations
            if broker_id not in known:
                raise KafkaError(
                    ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered"
                )
            after = {other: broker for other, broker in known.items() if other != broker_id}
            self._check_not_awaited(broker_id, after)
            draft = self._settle(BrokerChanges(unclean={broker_id}, replaced_disks={broker_id}), after)
            resource = ConfigResource(ConfigResourceType.BROKER, str(broker_id))
            uncordon = removal_ops(resource, self._image.overrides(*resource), "cordoned.log.dirs")
            await self._writer.commit_all([*draft.ops(), *uncordon, Delete(znodes.registration_path(broker_id))])
        log.info("broker unregistered", broker=broker_id)
        self.start_reconciling()

    def _check_not_awaited(self, broker_id: int, after: Mapping[int, KnownBroker]) -> None:
        """Raise KafkaError if only this broker is known to have all records of a partition."""
        draft = self._settle(BrokerChanges(), after, brokers=frozenset((broker_id,)))
        for _, topic_id, index, partition in draft.partitions():
            if waits_for(partition, broker_id):
                name = f"{self._image.topics_by_id[topic_id].name}-{index}"
                text = (
                    "start it. To give records up, elect another leader (unclean), or delete the topic with all of them"
                )
                message = f"Only broker {broker_id} is known to have all records of {name}: {text}."
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)

    async def remove_failed_replicas(self, broker_id: int, broker_epoch: int, failed: Sequence[ReplicaKey]) -> None:
        """End the ISR memberships of replicas whose logs have failed, if other replicas can lead. Raises KafkaError."""
        async with self._lock:
            await self._writer.prepare()
            self._check_broker_epoch(broker_id, broker_epoch)
            is_acceptable = self._is_acceptable()
            draft = ChunkDraft(self._loader.chunks)
            for topic_id, index in failed:
                found = draft.find(topic_id, index)
                if found is None:
                    continue
                number, partition = found
                changed = remove_failed_replica(partition, broker_id, is_acceptable, self._rules(topic_id))
                draft.replace(number, topic_id, index, changed)
            await self._writer.commit_all(draft.ops())

    async def set_write_health(self, broker_id: int, broker_epoch: int, health: WriteHealth) -> None:
        """Store whether a broker can write. One that cannot gives up its roles, where others can have them.

        A broker that still cannot write repeats the report: it may be in sync again, or others may be. Raises
        KafkaError.
        """
        async with self._lock:
            await self._writer.prepare()
            self._check_broker_epoch(broker_id, broker_epoch)
            known = self._loader.registrations
            broker = known[broker_id]
            registration = broker.registration._replace(write_health=health)
            after = {**known, broker_id: broker._replace(registration=registration)}
            draft = ChunkDraft(self._loader.chunks)
            if health is WriteHealth.FAILING:
                is_acceptable = acceptable_leaders(after).__contains__
                for number, topic_id, index, partition in draft.partitions():
                    if broker_id in partition.isr:
                        rules = self._rules(topic_id, None, after)
                        changed = give_up_replica(partition, broker_id, is_acceptable, rules)
                        draft.replace(number, topic_id, index, changed)
            ops = draft.ops()
            if broker.registration.write_health is not health:
                # First: if it needs several multis, the broker is not elected in between.
                ops.insert(0, self._registration_op(broker_id, after))
                log.info("write health of a broker", broker=broker_id, health=health.name)
            await self._writer.commit_all(ops)

    # Elections.

    async def elect_leaders(
        self, election_type: ElectionType, requested: Sequence[TopicPartition] | None
    ) -> list[PartitionOutcome]:
        """Elect leaders on request. Raises KafkaError.

        None stands for all partitions; those that need no election then have no outcome.
        """
        async with self._lock:
            await self._writer.prepare()
            is_acceptable = self._is_acceptable()
            topics = self._image.topics
            draft = ChunkDraft(self._loader.chunks)
            outcomes = []
            for topic, index in self._all_partitions() if requested is None else requested:
                found = draft.find(topics[topic].topic_id, index) if topic in topics else None
                error = None
                try:
                    check_not_view(topics.get(topic), "elect the leaders of")
                    if found is None:
                        raise unknown_partition(topics, topic, index)
                    number, partition = found
                    elected = elect_on_request(
                        partition, election_type, is_acceptable, self._rules(topics[topic].topic_id)
                    )
                    draft.replace(number, topics[topic].topic_id, index, elected)
                except KafkaError as refusal:
                    error = refusal
                if requested is not None or error is None or error.code != ErrorCode.ELECTION_NOT_NEEDED:
                    outcomes.append(PartitionOutcome(topic, index, error))
                yield_if_due()
            await self._writer.commit_all(draft.ops())
            return outcomes

    def _all_partitions(self) -> list[TopicPartition]:
        topics = self._image.topics.values()
        return [TopicPartition(topic.name, index) for topic in topics for index in range(len(topic.partitions))]

    async def balance_leaders(self) -> None:
        """Elect at most MAX_BALANCED preferred leaders that can lead and do not.

        After a failure, the next run tries again, perhaps on the next controller.
        """
        try:
            count = await self._balance_leaders()
        except KafkaError as error:
            if self._writer.is_elected:
                log.warning("leaders not balanced", reason=error)
            return
        if count:
            log.info("leaders balanced", partitions=count)

    async def _balance_leaders(self) -> int:
        """Return the number of elections. Raises KafkaError."""
        async with self._lock:
            await self._writer.prepare()
            is_acceptable = self._is_acceptable()
            draft = ChunkDraft(self._loader.chunks)
            count = 0
            for number, topic_id, index, partition in draft.partitions():
                balanced = balance_leader(partition, is_acceptable, self._rules(topic_id))
                if balanced is not None and count < MAX_BALANCED:
                    draft.replace(number, topic_id, index, balanced)
                    count += 1
            await self._writer.commit_all(draft.ops())
        return count
