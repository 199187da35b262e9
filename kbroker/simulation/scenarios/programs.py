"""The client programs of a run: topic creation, workloads during the faults, final reads."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

from kbroker.simulation.checker.history import Join, Outcome, TopicPartition
from kbroker.simulation.clients.admin import Admin
from kbroker.simulation.clients.connections.cluster import GROUP as GROUP_KEY_TYPE
from kbroker.simulation.clients.connections.cluster import TRANSACTION, Cluster
from kbroker.simulation.clients.group_offsets import RefusedError, StandaloneGroupOffsets
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
from kbroker.simulation.clients.workloads.stale_client import send_stale_requests
from kbroker.simulation.clients.workloads.transactions import (
    SharedTransactionState,
    consume_transform_produce,
    produce_in_transactions,
)
from kbroker.simulation.disk.log_files import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.simulation.runtime.host_loop import HostLoop
from kbroker.simulation.scenarios.configs import RACKS, draw_internal_topic_configs, draw_topic_configs
from kbroker.simulation.scenarios.plan import LOSSY_FAULTS, OUTPUT

if TYPE_CHECKING:
    from kbroker.simulation.scenarios.plan import Plan
    from kbroker.simulation.scenarios.simulation import Simulation

# The group of the members, and that of the transformers.
GROUP, TRANSFORMERS_GROUP = "group", "pipeline"
# The number of batches or polls of a program that runs until it is stopped.
UNLIMITED = 1 << 60
CHECK_INTERVAL_S = 0.2


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
        self._recreated: tuple[HostLoop, RecreatedTopic] | None = None
        self._queues: tuple[HostLoop, QueueTopics] | None = None

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
        host = self._simulation.client("admin")
        await host.run(self._set_up(host))

    async def _set_up(self, host: HostLoop) -> None:
        context = self._context(host)
        cluster = Cluster(host, context.bootstrap, self._simulation.random_for("admin"), "admin")
        admin = Admin(cluster, context.history, "admin")
        for name, topic in self._plan.topics.items():
            await admin.create_topic(
                name, topic.partitions, topic.configs, replication_factor=self._plan.replication_factor
            )
        if self._plan.queues:
            self._queues = self._queue_topics()
            await self._queues[1].create(admin)
        if self._plan.members or self._plan.transformers:
            await self._create_internal_topic(admin, GROUP_KEY_TYPE, GROUPS_TOPIC, self._plan.groups_topic)
        if self._plan.transactional:
            await self._create_internal_topic(admin, TRANSACTION, TRANSACTIONS_TOPIC, self._plan.transactions_topic)
        elif self._plan.queues:
            configs = draw_internal_topic_configs(self._simulation.random_for("queues"), durable=self._is_lossy)
            await self._create_internal_topic(admin, TRANSACTION, TRANSACTIONS_TOPIC, configs)
        admin.close()

    async def _create_internal_topic(self, admin: Admin, key_type: int, topic: str, configs: dict[str, str]) -> None:
        """Create an internal topic with a FindCoordinator request, and set its configs."""
        while True:
            try:
                await admin.cluster.coordinator("anybody", key_type)
                break
            except OSError:
                await admin.cluster.backoff()
        if configs:
            await admin.alter_configs(topic, configs)

    def start(self) -> None:
        plan = self._plan
        for number in range(plan.producers):
            name = f"producer{number}"
            host, random = self._simulation.client(name), self._simulation.random_for(name)
            idempotent = random.random() < 0.7
            # With replicas, a change of the leader may lose a batch that was acknowledged to acks=1.
            weak_acks = (1, 0) if plan.brokers == 1 or plan.weak_acks else (0,)
            acks = -1 if idempotent else random.choice((-1, *weak_acks))
            self._run(
                host,
                produce(
                    self._context(host),
                    name,
                    random,
                    self._values,
                    self.partitions,
                    UNLIMITED,
                    idempotent=idempotent,
                    acks=acks,
                    replicated=plan.brokers > 1,
                    keys=max(topic.keys for topic in plan.topics.values()),
                    pause_s=plan.pause_between_sends_s,
                ),
            )
        for number in range(plan.readers):
            name = f"reader{number}"
            host, random = self._simulation.client(name), self._simulation.random_for(name)
            # Some commit offsets to a group of which they are not members.
            group = f"{name}-offsets" if plan.members and random.random() < 0.5 else None
            committed_only = plan.transactional and random.random() < 0.6
            reading = consume_assigned(
                self._context(host),
                name,
                random,
                self._all_partitions,
                UNLIMITED,
                group=group,
                committed_only=committed_only,
            )
            self._run(host, reading)
        for number in range(plan.members):
            name = f"member{number}"
            host, random = self._simulation.client(name), self._simulation.random_for(name)
            stop = StopSignal()
            context = self._context(host, stop)
            committed_only = plan.transactional and random.random() < 0.6
            work = consume_group(context, name, random, GROUP, self._inputs, UNLIMITED, committed_only=committed_only)
            self._members[name] = stop, host.run(work)
        for number in range(plan.deleters):
            name = f"deleter{number}"
            host, random = self._simulation.client(name), self._simulation.random_for(name)
            self._run(host, delete_records(self._context(host), name, random, self.partitions))
        self._start_transactions()
        if plan.administration:
            host, random = self._simulation.client("administrator"), self._simulation.random_for("administrator")
            topics = list(plan.topics)
            moved = [*topics, GROUPS_TOPIC, TRANSACTIONS_TOPIC, *([RECREATED_TOPIC] if plan.recreation else [])]
            cluster = self._simulation.cluster
            assert cluster is not None
            administrator = administrate(
                self._context(host), "administrator", random, topics, moved, lambda: cluster.has_lossy_replica
            )
            self._run(host, administrator)
        if plan.cordoning:
            host, random = self._simulation.client("cordons"), self._simulation.random_for("cordons")
            self._run(host, cordon_brokers(self._context(host), "cordons", random, plan.replication_factor))
        if plan.recreation:
            self._start_recreation()
        if self._queues is not None:
            host, queues = self._queues
            self._run(host, queues.run())

    def _queue_topics(self) -> tuple[HostLoop, QueueTopics]:
        host, random = self._simulation.client("queues"), self._simulation.random_for("queues")
        configs = self._lossless_configs(random)
        return host, QueueTopics(self._context(host), random, configs, self._plan.replication_factor)

    def _lossless_configs(self, random: Random) -> dict[str, str]:
        """Draw the configs of a topic that loses no acknowledged records: its clients do not allow for that."""
        return draw_topic_configs(random, durable=self._is_lossy)

    @property
    def _is_lossy(self) -> bool:
        """Whether faults of the run lose what is not synced."""
        return self._plan.durable or any(name in self._plan.faults for name in LOSSY_FAULTS)

    def _start_recreation(self) -> None:
        host, random = self._simulation.client("recreation"), self._simulation.random_for("recreation")
        configs = self._lossless_configs(random)
        replication_factor = self._plan.replication_factor
        # Coordinators of a cluster remove the offsets of a deleted topic when they see the deletion, as in Kafka.
        commits = self._plan.members > 0 and replication_factor == 1
        recreated = RecreatedTopic(
            self._context(host), random, configs, commits=commits, replication_factor=replication_factor
        )
        self._recreated = host, recreated
        self._run(host, recreated.run())

    def _start_transactions(self) -> None:
        plan = self._plan
        for number in range(plan.transactors):
            name = f"transactor{number}"
            host, random = self._simulation.client(name), self._simulation.random_for(name)
            transactional_id = f"id{number % plan.transactional_ids}"
            context = self._context(host)
            work = produce_in_transactions(
                context,
                name,
                random,
                self._transaction_state,
                self.partitions,
                transactional_id,
                pause_s=plan.pause_between_sends_s,
            )
            self._run(host, work)
        for number in range(plan.transformers):
            name = f"transformer{number}"
            host, random = self._simulation.client(name), self._simulation.random_for(name)
            context = self._context(host, self._transformers_stop)
            work = consume_transform_produce(
                context, name, random, self._transaction_state, TRANSFORMERS_GROUP, self._inputs, self._outputs
            )
            self._running_transformers.append(host.run(work))
        for number in range(plan.stale_clients):
            name = f"stale-client{number}"
            host, random = self._simulation.client(name), self._simulation.random_for(name)
            groups = [TRANSFORMERS_GROUP] * bool(plan.transformers) + [GROUP] * bool(plan.members)
            self._run(host, send_stale_requests(self._context(host), name, random, self._transaction_state, groups))

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

    async def _wait_for_quiescence(self) -> None:
        """Wait until all input is transformed and no transaction is open."""
        host = self._simulation.client("settling")
        cluster = Cluster(host, self._simulation.bootstrap, self._simulation.random_for("settling"), "settling")
        history = self._simulation.history
        self._transformers_stop.draining = True
        if self._running_transformers:
            await host.run(wait_until_all_transformed(cluster, history, TRANSFORMERS_GROUP, self.partitions))
        self._transformers_stop.request()
        await asyncio.gather(*self._running_transformers)
        await host.run(wait_until_no_open_transaction(cluster, self._all_partitions))
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

    async def fetch_on_idle_broker(self) -> None:
        """Run fetches that only the broker's timers complete."""
        host = self._simulation.client("waiter")
        await host.run(
            fetch_on_idle_broker(self._context(host), self._simulation.random_for("waiter"), self.partitions[0])
        )

    async def read_all(self) -> None:
        """Read all records, and the committed offsets of the groups."""
        host = self._simulation.client("final")
        if self._recreated is not None:
            await self._recreated[0].run(self._recreated[1].check_at_the_end())
        if self._queues is not None:
            await self._queues[0].run(self._queues[1].check_at_the_end())
        if self._plan.members:
            await host.run(self._read_commits(host, GROUP))
        if self._plan.transformers:
            await host.run(self._read_commits(host, TRANSFORMERS_GROUP))
        for committed_only in (False, True) if self._plan.transactional else (False,):
            reading = final_reads(
                self._context(host),
                self._simulation.random_for("final"),
                self._all_partitions,
                committed_only=committed_only,
            )
            late = await host.run(reading)
            assert not late, f"these partitions were not read to the end: {late}"

    async def _read_commits(self, host: HostLoop, group: str) -> None:
        context = self._context(host)
        cluster = Cluster(host, context.bootstrap, self._simulation.random_for("final commits"), "final")
        group_offsets = StandaloneGroupOffsets(cluster, context.history, "final", group)
        while True:
            try:
                await cluster.refresh_metadata(self._inputs)
                await group_offsets.committed(self.partitions)
                break
            except (OSError, RefusedError):
                await cluster.backoff()
        cluster.close()

    def _run(self, host: HostLoop, program: Coroutine[Any, Any, None]) -> None:
        self._running.append(host.run(program))

    def _context(self, host: HostLoop, stop: StopSignal | None = None) -> WorkloadContext:
        simulation = self._simulation
        rack = simulation.random_for(f"rack of {host.host}").choice(RACKS) if self._plan.has_racks else ""
        return WorkloadContext(host, simulation.history, simulation.bootstrap, stop or self._stop, rack=rack)
