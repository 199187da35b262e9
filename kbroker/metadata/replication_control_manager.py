"""The controller's decisions about brokers, leaders and in-sync replicas, written to the coordination service.

The decisions are in kbroker/metadata/replication. Each multi leaves a state from which another controller can continue:
it runs `reconcile` when it is elected, and again whenever a broker's ephemeral node appears or vanishes.
"""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.config.config_resource import ConfigResourceType
from kbroker.metadata.image import BrokerRegistration, KnownBroker, PartitionRegistration
from kbroker.metadata.replication.alter_partition import RequestedIsr, alter_partition
from kbroker.metadata.replication.broker_changes import (
    BrokerChanges,
    acceptable_leaders,
    plan_broker_changes,
    settle_partition,
)
from kbroker.metadata.replication.partition_change import Election
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import CoordinationError, Create, Op, Set, WatchEvent
from kbroker.metadata.store.partition_chunks import ChunkDraft
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, Task

    from kbroker.config import BrokerConfig
    from kbroker.metadata.metadata_loader import MetadataLoader
    from kbroker.metadata.metadata_writer import MetadataWriter
    from kbroker.metadata.store.coordination import Coordination
    from kbroker.runtime.mutex import Mutex

log = EventLogger("kbroker.metadata")

# The size at which another multi is begun, well below ZooKeeper's limit of about 1 MiB.
MULTI_BYTES = 400_000
# Changes of in-sync replicas that arrive within this time (in seconds) are written together. A broker that misses more
# than znodes.RECENT_CHANGES changes has to read everything.
GATHER_S = 0.05
# The interval of attempts while the coordination service is unavailable, in seconds.
RETRY_BACKOFF_S = 1.0

AlterPartitionResult = PartitionRegistration | ErrorCode


@dataclass(slots=True)
class IsrRequest:
    """A partition in an AlterPartition request."""

    topic_id: bytes
    index: int
    proposal: RequestedIsr


@dataclass(slots=True)
class _AlterPartitionCall:
    broker_id: int
    broker_epoch: int
    proposals: Sequence[IsrRequest]
    done: Future[list[AlterPartitionResult]]


class ReplicationControlManager:
    """Used by the controller, whose lock and writer it shares. Only the elected controller's does anything."""

    def __init__(
        self,
        coordination: Coordination,
        loader: MetadataLoader,
        writer: MetadataWriter,
        lock: Mutex,
        loop: AbstractEventLoop,
        config: Callable[[], BrokerConfig],
    ) -> None:
        self._coordination = coordination
        self._loader = loader
        self._writer = writer
        self._lock = lock
        self._loop = loop
        self._config = config
        # The controller epoch in which all partitions have been checked.
        self._reconciled_epoch = 0
        self._brokers_changed = False
        self._reconciling: Task[None] | None = None
        self._calls: list[_AlterPartitionCall] = []
        self._altering: Task[None] | None = None
        self._altered_at = float("-inf")

    def use_session(self, coordination: Coordination) -> None:
        self._coordination = coordination

    # Brokers.

    def start_reconciling(self) -> None:
        """Reconcile in the background until it succeeds, or until this broker is no longer the controller."""
        self._brokers_changed = True
        if self._reconciling is None:
            self._reconciling = self._loop.create_task(self._keep_reconciling())

    async def _keep_reconciling(self) -> None:
        try:
            while self._brokers_changed and self._writer.is_elected:
                self._brokers_changed = False
                try:
                    await self.reconcile()
                except (KafkaError, CoordinationError) as error:
                    if self._writer.is_elected:
                        log.warning("brokers not reconciled", reason=error)
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
            changes = plan_broker_changes(await self._read_broker_nodes(), known)
            if not changes and self._reconciled_epoch == self._writer.epoch:
                return
            epoch = self._writer.epoch
            after = changes.after(known)
            await self._write(changes, after)
            self._reconciled_epoch = epoch
            if len(after) > 1:
                _log_changes(changes)

    async def _read_broker_nodes(self) -> dict[int, BrokerRegistration]:
        names = await self._coordination.children(znodes.BROKERS, self._on_brokers_change)
        nodes = await self._coordination.get_many([f"{znodes.BROKERS}/{name}" for name in names])
        return {
            int(name): znodes.decode_broker(int(name), node.data).registration
            for name, node in zip(names, nodes, strict=True)
            if node is not None
        }

    def _on_brokers_change(self, event: WatchEvent) -> None:
        if self._writer.is_elected:
            self.start_reconciling()

    async def _write(self, changes: BrokerChanges, after: Mapping[int, KnownBroker]) -> None:
        """Write changes of brokers with their effect on all partitions, in one multi if it is not too large.

        Otherwise brokers are fenced in the first multi and unfenced in the last. If it is not reached, the next
        controller finds the same brokers restarted.
        """
        draft = self._settle(changes, after)
        leaving = [self._registration_op(broker_id, after) for broker_id in changes.fenced]
        entering = [self._registration_op(broker_id, after) for broker_id in (*changes.restarted, *changes.unfenced)]
        for batch in batches([*leaving, *draft.ops(), *entering]):
            await self._writer.write(batch)

    def _settle(self, changes: BrokerChanges, after: Mapping[int, KnownBroker]) -> ChunkDraft:
        is_acceptable = acceptable_leaders(after).__contains__
        draft = ChunkDraft(self._loader.chunks)
        for number, topic_id, index, partition in draft.partitions():
            settled = settle_partition(partition, changes, is_acceptable, self._election(topic_id))
            if settled is not None:
                draft.replace(number, topic_id, index, settled)
        return draft

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
                return 0  # nobody could take over
            broker = known[broker_id]
            stopping = broker.registration._replace(in_controlled_shutdown=True)
            after = {**known, broker_id: KnownBroker(stopping, broker.fenced)}
            draft = self._settle(BrokerChanges(), after)
            for batch in batches([self._registration_op(broker_id, after), *draft.ops()]):
                await self._writer.commit(batch)
            return sum(partition.leader == broker_id for _, _, _, partition in draft.partitions())

    def _check_broker_epoch(self, broker_id: int, broker_epoch: int) -> None:
        broker = self._loader.registrations.get(broker_id)
        if broker is None:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED)
        if broker.registration.epoch != broker_epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Expected broker epoch {broker.registration.epoch}, but got broker epoch {broker_epoch}",
            )

    # In-sync replicas.

    async def alter_partitions(
        self, broker_id: int, broker_epoch: int, proposals: Sequence[IsrRequest]
    ) -> list[AlterPartitionResult]:
        """Change the ISRs of partitions that a broker leads. Returns each partition's new state or error, in order.

        Raises KafkaError if the whole request is refused.
        """
        if not self._writer.is_elected:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
        call = _AlterPartitionCall(broker_id, broker_epoch, proposals, self._loop.create_future())
        self._calls.append(call)
        if self._altering is None:
            self._altering = self._loop.create_task(self._alter_gathered())
        return await call.done

    async def _alter_gathered(self) -> None:
        try:
            while self._calls:
                wait_s = self._altered_at + GATHER_S - self._loop.time()
                if wait_s > 0:
                    await sleep(wait_s)
                async with self._lock:
                    calls, self._calls = self._calls, []
                    await self._alter(calls)
                self._altered_at = self._loop.time()
        finally:
            self._altering = None

    async def _alter(self, calls: Sequence[_AlterPartitionCall]) -> None:
        outcomes: list[list[AlterPartitionResult] | Exception]
        try:
            await self._writer.prepare()
            draft = ChunkDraft(self._loader.chunks)
            outcomes = [self._decide(call, draft) for call in calls]
            for batch in batches(draft.ops()):
                await self._writer.commit(batch)
        except Exception as error:
            outcomes = [error] * len(calls)
        for call, outcome in zip(calls, outcomes, strict=True):
            if call.done.done():
                continue
            if isinstance(outcome, Exception):
                call.done.set_exception(outcome)
            else:
                call.done.set_result(outcome)

    def _decide(self, call: _AlterPartitionCall, draft: ChunkDraft) -> list[AlterPartitionResult] | Exception:
        known = self._loader.registrations
        try:
            self._check_broker_epoch(call.broker_id, call.broker_epoch)
        except KafkaError as error:
            return error
        is_acceptable = acceptable_leaders(known).__contains__
        results: list[AlterPartitionResult] = []
        for topic_id, index, proposal in ((item.topic_id, item.index, item.proposal) for item in call.proposals):
            found = draft.find(topic_id, index)
            if topic_id not in self._loader.image.topics_by_id:
                results.append(ErrorCode.UNKNOWN_TOPIC_ID)
            elif found is None:
                results.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                number, partition = found
                result = alter_partition(
                    partition, call.broker_id, proposal, known, is_acceptable, self._election(topic_id)
                )
                if isinstance(result, PartitionRegistration) and result is not partition:
                    draft.replace(number, topic_id, index, result)
                results.append(result)
        return results

    def _election(self, topic_id: bytes) -> Election:
        """Return which replicas the topic's config unclean.leader.election.enable permits to be elected."""
        topic = self._loader.image.topics_by_id.get(topic_id)
        name = "unclean.leader.election.enable"
        override = (
            None if topic is None else self._loader.image.overrides(ConfigResourceType.TOPIC, topic.name).get(name)
        )
        enabled = bool(self._config().get(name)) if override is None else override == "true"
        return Election.UNCLEAN if enabled else Election.ONLINE


def batches(ops: Iterable[Op]) -> Iterator[list[Op]]:
    """Split operations into multis of about MULTI_BYTES."""
    batch: list[Op] = []
    size = 0
    for op in ops:
        batch.append(op)
        size += len(op.path) + (len(op.data) if isinstance(op, Create | Set) else 0)
        if size > MULTI_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _log_changes(changes: BrokerChanges) -> None:
    for broker_id, broker in changes.restarted.items():
        log.info("broker registered", broker=broker_id, epoch=broker.epoch)
    for broker_id in changes.unfenced:
        log.info("broker unfenced", broker=broker_id)
    for broker_id in changes.fenced:
        log.info("broker fenced", broker=broker_id)
