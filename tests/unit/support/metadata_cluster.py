"""Brokers that share one store, as far as the metadata: they load it, register, and one is the controller."""

from collections.abc import Callable, Iterable

from kbroker.config import BrokerConfig
from kbroker.config.config_def import ConfigResourceType
from kbroker.coordination.embedded import EmbeddedSession, EmbeddedStore
from kbroker.coordination.interface import Coordination
from kbroker.metadata.cluster_member import ClusterMember
from kbroker.metadata.controller import Controller
from kbroker.metadata.image import BrokerRegistration, PartitionRegistration
from kbroker.metadata.replication.isr_change_queue import AlterPartitionResult, IsrRequest
from kbroker.metadata.replication.partition_change import target_replicas
from kbroker.metadata.replication.partition_requests import RequestedIsr
from kbroker.metadata.topics.topic_requests import NewTopic
from kbroker.runtime.environment import Clock, Environment
from tests.unit.support.memory_disk import MemoryDisk, SteadyClock, make_environment, settle

CONFIG = BrokerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:9092"})


class Cluster:
    """Brokers in one event loop, with sessions of one store."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.brokers: dict[int, ClusterMember] = {}
        self.sessions: dict[int, EmbeddedSession] = {}
        self.failures: list[BaseException] = []
        self.clock: Clock = SteadyClock()
        # The broker epochs of those that have stopped cleanly.
        self.clean_epochs: dict[int, int] = {}

    async def start(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            session = self.sessions[broker_id] = self.store.session()
            environment = make_environment(seed=broker_id)
            environment.clock = self.clock
            member = ClusterMember(environment, session, broker_id, lambda: CONFIG, self.failures.append)
            await member.load()
            registration = BrokerRegistration(broker_id, "h", broker_id)
            await member.register(registration, previous_epoch=self.clean_epochs.pop(broker_id, -1))
            self.brokers[broker_id] = member
        await settle()

    async def stop(self, broker_id: int) -> None:
        member = self.brokers.pop(broker_id)
        self.clean_epochs[broker_id] = member.broker_epoch
        await member.leave()
        await settle()

    async def vanish(self, *broker_ids: int) -> None:
        """Let processes die; ZooKeeper expires their sessions."""
        for broker_id in broker_ids:
            self.brokers.pop(broker_id).on_session_lost()
            await self.sessions[broker_id].close()
        await settle()

    @property
    def controller(self) -> ClusterMember:
        (elected,) = (broker for broker in self.brokers.values() if broker.controller.is_elected)
        return elected

    @property
    def elected(self) -> Controller:
        return self.controller.controller

    async def create(self, name: str, *assignments: list[int]) -> None:
        topic = NewTopic(name, assignments=list(enumerate(assignments)))
        (result,) = await self.elected.topics.create_topics([topic], False)
        assert result.error is None
        await settle()

    async def alter(self, topic: str, config: str, value: str) -> None:
        await self.elected.alter_configs(ConfigResourceType.TOPIC, topic, {config: value})
        await settle()

    def partition(self, topic: str, index: int = 0) -> PartitionRegistration:
        """Return the partition as all brokers see it."""
        first, *others = (broker.image.topics[topic].partitions[index] for broker in self.brokers.values())
        assert all(other == first for other in others)
        return first

    def state(self, topic: str, index: int = 0) -> tuple[int, int, list[int]]:
        partition = self.partition(topic, index)
        return partition.leader, partition.leader_epoch, partition.isr

    async def propose(self, topic: str, isr: Iterable[int], index: int = 0) -> AlterPartitionResult:
        """Let the leader request an ISR, with the current broker epochs. Raises KafkaError."""
        image = self.controller.image
        partition, brokers = image.topics[topic].partitions[index], image.brokers
        requested = RequestedIsr(
            partition.leader_epoch, partition.partition_epoch, [(node, brokers[node].epoch) for node in isr]
        )
        (result,) = await self.elected.isr_changes.alter_partitions(
            partition.leader,
            brokers[partition.leader].epoch,
            [IsrRequest(image.topics[topic].topic_id, index, requested)],
        )
        return result

    async def expand(self, topic: str, broker_id: int) -> None:
        """Let the leader add a broker to the ISR of partition 0."""
        result = await self.propose(topic, [*self.partition(topic).isr, broker_id])
        assert isinstance(result, PartitionRegistration)
        await settle()

    async def complete_reassignments(self, topic: str) -> None:
        """Let the leaders that are there add the replicas that are added. Raises KafkaError."""
        image = self.controller.image
        for index, partition in enumerate(image.topics[topic].partitions):
            if partition.is_reassigning and partition.leader in image.brokers:
                await self.propose(topic, sorted({*partition.isr, *target_replicas(partition)}), index)

    async def catch_up(self) -> None:
        """Let the leaders add all replicas that live and are to stay."""
        image = self.controller.image
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                wanted = [node for node in target_replicas(partition) if node in image.brokers]
                if partition.leader in image.brokers and not set(wanted) <= set(partition.isr):
                    await self.propose(topic.name, dict.fromkeys((*partition.isr, *wanted)), index)
        await settle()


async def cluster_of_three() -> Cluster:
    return await cluster_of(3)


async def cluster_of(count: int, clock: Clock | None = None) -> Cluster:
    cluster = Cluster(await EmbeddedStore.open(make_environment(MemoryDisk()), "/data"))
    cluster.clock = clock or cluster.clock
    await cluster.start(*range(1, count + 1))
    return cluster


async def join_cluster(
    environment: Environment,
    coordination: Coordination,
    broker: BrokerRegistration,
    config: Callable[[], BrokerConfig],
    on_failure: Callable[[BaseException], None],
    max_wait_s: float = 0.0,
) -> ClusterMember:
    """Load the metadata and register the broker at once. See ClusterMember for the parameters and exceptions."""
    member = ClusterMember(environment, coordination, broker.id, config, on_failure)
    await member.load()
    await member.register(broker, max_wait_s)
    return member
