"""The client programs of a run: topic creation, workloads during the faults, final reads."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from functools import partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from kbroker.client.requests import GROUP as GROUP_KEY_TYPE
from kbroker.client.requests import TRANSACTION
from kbroker.coordinator.share.share_partition_state import SharePartitionKey
from kbroker.metadata.topics.topic_names import SHARE_GROUP_STATE_TOPIC
from kbroker.simulation.checker.history import Join, Outcome, Own, TopicPartition
from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.cluster import Cluster
from kbroker.simulation.clients.group_offsets import GroupOffsets
from kbroker.simulation.clients.records import ValueSource
from kbroker.simulation.clients.workloads.administration import administrate, cordon_brokers
from kbroker.simulation.clients.workloads.consumers import consume_assigned, consume_group, final_reads
from kbroker.simulation.clients.workloads.context import StopSignal, WorkloadContext
from kbroker.simulation.clients.workloads.producers import delete_records, produce
from kbroker.simulation.clients.workloads.queue_topics import QueueTopics
from kbroker.simulation.clients.workloads.quiescence import (
    fetch_on_idle_broker,
    wait_until_all_transformed,
    wait_until_no_open_transaction,
)
from kbroker.simulation.clients.workloads.recreation import TOPIC as RECREATED_TOPIC
from kbroker.simulation.clients.workloads.recreation import RecreatedTopic
from kbroker.simulation.clients.workloads.security import USERS, SecuredUsers
from kbroker.simulation.clients.workloads.share_changes import CHANGING, ShareGroupOperator
from kbroker.simulation.clients.workloads.share_groups import DEAD_LETTERS, ShareGroupWorkload
from kbroker.simulation.clients.workloads.share_groups import GROUP as SHARE_GROUP
from kbroker.simulation.clients.workloads.stale_client import StaleClient
from kbroker.simulation.clients.workloads.transactions import (
    SharedTransactionState,
    consume_transform_produce,
    produce_in_transactions,
)
from kbroker.simulation.disk.log_files import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.simulation.scenarios.archiver import archive
from kbroker.simulation.scenarios.plan import (
    LOSSY_FAULTS,
    OUTPUT,
    draw_internal_topic_configs,
    draw_topic_configs,
)
from kbroker.simulation.scenarios.simulation import RACKS, Simulation

if TYPE_CHECKING:
    from kbroker.simulation.scenarios.plan import Plan

# The group of the members, and that of the transformers.
GROUP, TRANSFORMERS_GROUP = "group", "pipeline"
CHECK_INTERVAL_S = 0.2
# The type and a key of share coordinators.
SHARE, SHARE_KEY = 2, str(SharePartitionKey(SHARE_GROUP, bytes(16), 0))


class Programs:
    """The client programs of a plan."""

    def __init__(self, simulation: Simulation, plan: Plan) -> None:
        self._simulation = simulation
        self._plan = plan
        self._stop = StopSignal()
        self._values = ValueSource(1)
        self._transaction_state = SharedTransactionState(self._values, count(), [])
        self._running: list[asyncio.Future[Any]] = []
        # Transformers stop later, when all input is transformed.
        self._transformers_stop = StopSignal()
        self._running_transformers: list[asyncio.Future[Any]] = []
        # The group members by name, each with its stop signal.
        self._members: dict[str, tuple[StopSignal, asyncio.Future[Any]]] = {}
        self._recreated: RecreatedTopic | None = None
        self._queues: QueueTopics | None = None
        self._secured: SecuredUsers | None = None
        self._shares: ShareGroupWorkload | None = None
        self._operator: ShareGroupOperator | None = None
        # Members of the share group stop when it is finished with all records.
        self._shares_stop = StopSignal()
        self._running_shares: list[asyncio.Future[Any]] = []

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions but those of the transformers' output topic."""
        return [tp for tp in self._all_partitions if tp[0] != OUTPUT]

    @property
    def _all_partitions(self) -> list[TopicPartition]:
        return [(name, index) for name, topic in self._plan.topics.items() for index in range(topic.partitions)]

    @property
    def _outputs(self) -> list[TopicPartition]:
        return [tp for tp in self._all_partitions if tp[0] == OUTPUT]

    @property
    def _inputs(self) -> list[str]:
        return [name for name in self._plan.topics if name != OUTPUT]

    async def set_up(self) -> None:
        """Create the topics, and configure the internal topics."""
        _, context, random = self._client("admin")
        await context.loop.run(self._set_up(context, random))

    async def _set_up(self, context: WorkloadContext, random: Random) -> None:
        admin = Admin(Cluster(context.loop, context.bootstrap, random, "admin"), context.history, "admin")
        for name, topic in self._plan.topics.items():
            await admin.create_topic(
                name, topic.partitions, topic.configs, replication_factor=self._plan.replication_factor
            )
        if self._plan.queues:
            _, queues_context, queues_random = self._client("queues")
            configs = self._lossless_configs(queues_random)
            self._queues = QueueTopics(queues_context, queues_random, configs, self._plan.replication_factor)
            await self._queues.create(admin)
        if self._plan.security:
            self._secured = SecuredUsers(*self._client("security")[1:])
            await self._secured.create(admin, self._plan.replication_factor)
        if self._plan.share_members:
            self._shares = self._share_group()
            await self._shares.create(admin, self._plan.replication_factor)
            if self._operator is not None:
                await self._operator.create(admin, random)
            configs = {"internal.segment.bytes": str(random.choice((64, 1024)) << 10)}
            await self._create_internal_topic(admin, SHARE, SHARE_GROUP_STATE_TOPIC, configs, SHARE_KEY)
        if self._plan.members or self._plan.transformers:
            await self._create_internal_topic(admin, GROUP_KEY_TYPE, GROUPS_TOPIC, self._plan.groups_topic)
        if self._plan.transactional:
            await self._create_internal_topic(admin, TRANSACTION, TRANSACTIONS_TOPIC, self._plan.transactions_topic)
        elif self._plan.queues:
            configs = draw_internal_topic_configs(self._simulation.random_for("queues"), durable=self._is_lossy)
            await self._create_internal_topic(admin, TRANSACTION, TRANSACTIONS_TOPIC, configs)
        admin.close()

    async def _create_internal_topic(
        self, admin: Admin, key_type: int, topic: str, configs: dict[str, str], key: str = "anybody"
    ) -> None:
        """Create an internal topic with a FindCoordinator request, and set its configs."""
        await admin.cluster.retry(lambda: admin.cluster.coordinator(key, key_type))
        if configs:
            await admin.alter_configs(topic, configs)

    def start(self) -> None:
        plan = self._plan
        for name, context, random in self._clients("producer", plan.producers):
            idempotent = random.random() < 0.7
            # With replicas, a change of the leader may lose a batch that was acknowledged to acks=1.
            weak_acks = (1, 0) if plan.brokers == 1 or plan.weak_acks else (0,)
            producing = produce(
                context,
                name,
                random,
                self._values,
                self.partitions,
                idempotent=idempotent,
                acks=-1 if idempotent else random.choice((-1, *weak_acks)),
                replicated=plan.brokers > 1,
                keys=max(topic.keys for topic in plan.topics.values()),
                pause_s=plan.pause_between_sends_s,
            )
            self._run(context, producing)
        for name, context, random in self._clients("reader", plan.readers):
            # Some commit offsets to a group of which they are not members.
            group = f"{name}-offsets" if plan.members and random.random() < 0.5 else None
            partitions, committed_only = self._all_partitions, plan.transactional and random.random() < 0.6
            reading = consume_assigned(context, name, random, partitions, group=group, committed_only=committed_only)
            self._run(context, reading)
        for name, context, random in self._clients("member", plan.members):
            context.stop = StopSignal()
            committed_only = plan.transactional and random.random() < 0.6
            work = consume_group(
                context,
                name,
                random,
                GROUP,
                self._inputs,
                committed_only=committed_only,
                consumer_protocol=plan.consumer_protocol,
            )
            self._members[name] = context.stop, context.loop.run(work)
        if self._shares is not None:
            for name, context, random in self._clients("share", plan.share_members):
                context.stop = self._shares_stop
                self._running_shares.append(context.loop.run(self._shares.consume(context, name, random)))
        if self._secured is not None:
            self._run(self._secured.context, self._secured.administrate())
            for user in USERS:
                name, context, random = self._client(user)
                self._run(context, self._secured.use(context, name, random, user))
        if self._operator is not None:
            name, context, random = self._client("operator")
            self._run(context, self._operator.run(context, name, random))
        for name, context, random in self._clients("deleter", plan.deleters):
            self._run(context, delete_records(context, name, random, self.partitions))
        self._start_transactions()
        if plan.administration or (plan.group_changes and plan.brokers > 1):
            name, context, random = self._client("administrator")
            topics = list(plan.topics)
            moved = [*topics, GROUPS_TOPIC, TRANSACTIONS_TOPIC, *([RECREATED_TOPIC] if plan.recreation else [])]
            moved += [SHARE_GROUP_STATE_TOPIC, CHANGING, DEAD_LETTERS] if self._shares is not None else []
            cluster = self._simulation.cluster
            assert cluster is not None
            work = administrate(context, name, random, topics, moved, lambda: cluster.has_lossy_replica)
            self._run(context, work)
        if plan.cordoning:
            name, context, random = self._client("cordons")
            self._run(context, cordon_brokers(context, name, random, plan.replication_factor))
        if plan.recreation:
            _, context, random = self._client("recreation")
            # Coordinators of a cluster remove the offsets of a deleted topic when they see the deletion, as in Kafka.
            commits = plan.members > 0 and plan.replication_factor == 1
            configs, replicas = self._lossless_configs(random), plan.replication_factor
            self._recreated = RecreatedTopic(context, random, configs, commits=commits, replication_factor=replicas)
            self._run(context, self._recreated.run())
        if self._queues is not None:
            self._run(self._queues.context, self._queues.run())
        if plan.history:
            _, context, random = self._client("archiver")
            self._run(context, archive(self._simulation.machines, list(plan.topics), random, self._stop))

    def _lossless_configs(self, random: Random) -> dict[str, str]:
        """Draw the configs of a topic that loses no acknowledged records: its clients do not allow for that."""
        return draw_topic_configs(random, durable=self._is_lossy)

    @property
    def _is_lossy(self) -> bool:
        """Whether faults of the run lose what is not synced."""
        return self._plan.durable or any(name in self._plan.faults for name in LOSSY_FAULTS)

    def _start_transactions(self) -> None:
        plan, state = self._plan, self._transaction_state
        for number, (name, context, random) in enumerate(self._clients("transactor", plan.transactors)):
            id, pause_s = f"id{number % plan.transactional_ids}", plan.pause_between_sends_s
            work = produce_in_transactions(context, name, random, state, self.partitions, id, pause_s=pause_s)
            self._run(context, work)
        for name, context, random in self._clients("transformer", plan.transformers):
            context.stop = self._transformers_stop
            work = consume_transform_produce(
                context, name, random, state, TRANSFORMERS_GROUP, self._inputs, self._outputs
            )
            self._running_transformers.append(context.loop.run(work))
        groups = [TRANSFORMERS_GROUP] * bool(plan.transformers) + [GROUP] * bool(plan.members)
        for name, context, random in self._clients("stale-client", plan.stale_clients):
            self._run(context, StaleClient(context, name, random, state.ended_transactions, groups).run())

    async def finish(self) -> None:
        """Stop the programs and wait for them. The group stops after it has recovered from the loss of a member."""
        self._stop.request()
        await asyncio.gather(*self._running)
        await self._end_one_member()
        for stop, _ in self._members.values():
            stop.request()
        await asyncio.gather(*(running for _, running in self._members.values()))
        if self._plan.transactional:
            await self._wait_for_quiescence()
        if self._shares is not None:
            await self._finish_shares(self._shares)

    def _share_group(self) -> ShareGroupWorkload:
        plan, random = self._plan, self._simulation.random_for("shares")
        leader_of, partitions = partial(self._simulation.share_leader, SHARE_GROUP), self._all_partitions
        shares = ShareGroupWorkload(
            random,
            partitions,
            leader_of,
            has_exact_clocks="clock" not in plan.faults,
            committed_only=plan.transactional and random.random() < 0.5,
        )
        if plan.group_changes:
            shares.subscribe(CHANGING)
            self._operator = ShareGroupOperator(shares, self._lossless_configs(random), plan.replication_factor)
        return shares

    async def _finish_shares(self, shares: ShareGroupWorkload) -> None:
        """Stop the members of the share group when it is finished with all records."""
        _, context, random = self._client("shared-end")
        self._shares_stop.draining = True
        finished = context.loop.run(shares.until_finished(context, random))
        await asyncio.wait([finished, *self._running_shares], return_when=asyncio.FIRST_COMPLETED)
        self._shares_stop.request()
        for running in [*self._running_shares, finished]:
            await running

    async def _wait_for_quiescence(self) -> None:
        """Wait until all input is transformed and no transaction is open."""
        _, context, random = self._client("settling")
        cluster = Cluster(context.loop, context.bootstrap, random, "settling")
        self._transformers_stop.draining = True
        if self._running_transformers:
            await context.loop.run(
                wait_until_all_transformed(cluster, context.history, TRANSFORMERS_GROUP, self.partitions)
            )
        self._transformers_stop.request()
        await asyncio.gather(*self._running_transformers)
        await context.loop.run(wait_until_no_open_transaction(cluster, self._all_partitions))
        cluster.close()

    async def _end_one_member(self) -> None:
        """End one member without a LeaveGroup, and wait until the others own all partitions."""
        for stop, _ in self._members.values():
            stop.draining = True
        left = list(self._members)
        if len(left) > 1:
            stop, running = self._members[left.pop()]
            stop.request()
            await running
        while left and not self._own_all_partitions(left):
            await asyncio.sleep(CHECK_INTERVAL_S)

    def _own_all_partitions(self, names: list[str]) -> bool:
        """Return whether these members are in the same generation and own all partitions in it."""
        if self._plan.consumer_protocol:
            return self._share_all_partitions(names)
        last: dict[str, Join] = {}
        for operation in reversed(self._simulation.history.operations):
            if len(last) == len(names):
                break
            if isinstance(operation.action, Join) and operation.process in names:
                if operation.outcome is not Outcome.OK and operation.process not in last:
                    return False
                last.setdefault(operation.process, operation.action)
        generations = {join.generation for join in last.values()}
        partitions = {tp for join in last.values() for tp in join.partitions}
        return len(last) == len(names) and len(generations) == 1 and partitions.issuperset(self.partitions)

    def _share_all_partitions(self, names: list[str]) -> bool:
        """Return whether each partition has one owner among these members, of which some use the classic protocol."""
        last: dict[str, Own | Join] = {}
        for operation in reversed(self._simulation.history.operations):
            if len(last) == len(names):
                break
            if isinstance(operation.action, Own | Join) and operation.process in names:
                last.setdefault(operation.process, operation.action)
        owned = [tp for own in last.values() for tp in own.partitions]
        return len(owned) == len(set(owned)) and set(owned).issuperset(self.partitions)

    async def fetch_on_idle_broker(self) -> None:
        """Run fetches that only the broker's timers complete."""
        _, context, random = self._client("waiter")
        await context.loop.run(fetch_on_idle_broker(context, random, self.partitions[0]))

    async def read_all(self) -> None:
        """Read all records, and the committed offsets of the groups."""
        _, context, _ = self._client("final")
        for topics in (self._recreated, self._queues):
            if topics is not None:
                await topics.context.loop.run(topics.check_at_the_end())
        if self._plan.members:
            await context.loop.run(self._read_commits(context, GROUP))
        if self._plan.transformers:
            await context.loop.run(self._read_commits(context, TRANSFORMERS_GROUP))
        for committed_only in (False, True) if self._plan.transactional else (False,):
            random = self._simulation.random_for("final")
            reading = final_reads(context, random, self._all_partitions, committed_only=committed_only)
            late = await context.loop.run(reading)
            assert not late, f"these partitions were not read to the end: {late}"
        if self._shares is not None:
            while self._simulation.shares.states_of_deleted_topics():
                await asyncio.sleep(CHECK_INTERVAL_S)
            random, history = self._simulation.random_for("shared-end"), self._simulation.history
            keeps_all = not self._plan.deleters and not any(topic.keys for topic in self._plan.topics.values())
            await context.loop.run(self._shares.check_at_the_end(context, random, history, is_complete=keeps_all))

    async def _read_commits(self, context: WorkloadContext, group: str) -> None:
        random = self._simulation.random_for("final commits")
        cluster = Cluster(context.loop, context.bootstrap, random, "final")
        group_offsets = GroupOffsets(cluster, context.history, "final", group)

        async def read() -> None:
            await cluster.refresh_metadata(self._inputs)
            await group_offsets.committed(self.partitions)

        await cluster.retry(read)
        cluster.close()

    def _run(self, context: WorkloadContext, program: Coroutine[Any, Any, None]) -> None:
        self._running.append(context.loop.run(program))

    def _client(self, name: str) -> tuple[str, WorkloadContext, Random]:
        """Return a new client host: its name, its context and its source of randomness."""
        simulation = self._simulation
        rack = simulation.random_for(f"rack of {name}").choice(RACKS) if self._plan.has_racks else ""
        context = WorkloadContext(
            simulation.client(name), simulation.history, simulation.bootstrap, self._stop, rack=rack
        )
        return name, context, simulation.random_for(name)

    def _clients(self, kind: str, count: int) -> Iterator[tuple[str, WorkloadContext, Random]]:
        return (self._client(f"{kind}{number}") for number in range(count))
