"""A cluster without a data plane: the controller, another broker that follows it, and the registrations of the rest.

All share one store in this process. Brokers of which only the registration matters have no image: 100 images of 200,000
partitions would not fit into the memory of one machine.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from kbroker.common import TopicPartition
from kbroker.config import BrokerConfig
from kbroker.coordination.embedded import EmbeddedSession, EmbeddedStore
from kbroker.coordination.interface import ANY_VERSION, Check, Coordination, Create, Node, Op, Set, Watch
from kbroker.metadata.cluster_member import ClusterMember
from kbroker.metadata.features import OWN_FEATURES
from kbroker.metadata.image import BrokerRegistration, PartitionRegistration
from kbroker.metadata.registration import register_broker
from kbroker.metadata.replication.isr_change_queue import IsrRequest
from kbroker.metadata.replication.partition_requests import ElectionType, RequestedIsr, RequestedReassignment
from kbroker.metadata.topics.topic_requests import NewTopic
from kbroker.runtime.environment import Environment

CONFIG = BrokerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:9092"})
CONTROLLER, FOLLOWER = 1, 2
REPLICAS = 3
# The most partitions that one request creates.
REQUEST_PARTITIONS = 10_000
MAX_WAIT_S = 600.0
POLL_S = 0.002


class MetadataCluster:
    """Brokers 1 (the controller) and 2 have metadata images; 3, 4, ... are only registered."""

    def __init__(self, environment: Environment, store: EmbeddedStore) -> None:
        self._environment = environment
        self._store = store
        self.members: dict[int, ClusterMember] = {}
        self.sessions: dict[int, CountingSession] = {}
        self._registered: dict[int, EmbeddedSession] = {}
        self._inner: dict[int, EmbeddedSession] = {}
        self.failures: list[BaseException] = []

    @property
    def controller(self) -> ClusterMember:
        (elected,) = (member for member in self.members.values() if member.controller.is_elected)
        return elected

    async def start(self, brokers: int) -> None:
        """Register the brokers 1 to `brokers`."""
        for broker_id in (CONTROLLER, FOLLOWER):
            await self.start_member(broker_id)
        for broker_id in range(FOLLOWER + 1, brokers + 1):
            session = self._registered[broker_id] = self._store.session()
            await register_broker(self._environment, session, registration(broker_id), -1, 0.0)
        await self.wait_until(lambda: len(self.controller.image.brokers) == brokers)

    async def start_member(self, broker_id: int) -> ClusterMember:
        inner = self._inner[broker_id] = self._store.session()
        session = self.sessions[broker_id] = CountingSession(inner)
        member = ClusterMember(self._environment, session, broker_id, lambda: CONFIG, self.failures.append)
        await member.load()
        await member.register(registration(broker_id))
        self.members[broker_id] = member
        return member

    async def wait_until(self, is_met: Callable[[], bool]) -> None:
        """Raises TimeoutError, and what a broker has failed with."""
        deadline = self._environment.loop.time() + MAX_WAIT_S
        while not is_met():
            if self.failures:
                raise self.failures[0]
            if self._environment.loop.time() > deadline:
                raise TimeoutError
            await asyncio.sleep(POLL_S)

    async def create_topics(self, topics: int, partitions: int, prefix: str = "topic") -> None:
        """Create topics of `partitions` partitions each, in as few requests as are allowed."""
        per_request = max(REQUEST_PARTITIONS // partitions, 1)
        for first in range(0, topics, per_request):
            numbers = range(first, min(first + per_request, topics))
            await self.create([NewTopic(f"{prefix}-{number}", partitions, REPLICAS) for number in numbers])

    async def create(self, topics: list[NewTopic]) -> None:
        for result in await self.controller.controller.topics.create_topics(topics, False):
            if result.error is not None:
                raise result.error

    async def shrink_isr(self, topic: str, index: int) -> None:
        """Let the leader remove the last replica from the ISR."""
        partition = self.partition(topic, index)
        await self._alter_isr(topic, index, partition.isr[:-1])

    async def expand_isr(self, topic: str, index: int) -> None:
        """Let the leader add all replicas to the ISR."""
        await self._alter_isr(topic, index, self.partition(topic, index).replicas)

    async def _alter_isr(self, topic: str, index: int, isr: list[int]) -> None:
        image, partition = self.controller.image, self.partition(topic, index)
        with_epochs = [(broker_id, image.brokers[broker_id].epoch) for broker_id in isr]
        requested = RequestedIsr(partition.leader_epoch, partition.partition_epoch, with_epochs)
        (result,) = await self.controller.controller.isr_changes.alter_partitions(
            partition.leader,
            image.brokers[partition.leader].epoch,
            [IsrRequest(image.topics[topic].topic_id, index, requested)],
        )
        if not isinstance(result, PartitionRegistration):
            raise AssertionError(f"ISR not changed: {result}")

    async def prefer_second(self, topic: str, index: int) -> None:
        """Make the second replica the preferred leader, with a reassignment to the same brokers in another order."""
        first, second, *others = self.partition(topic, index).replicas
        target = RequestedReassignment(topic, index, [second, first, *others])
        (outcome,) = await self.controller.controller.reassignments.alter_reassignments([target])
        if outcome.error is not None:
            raise outcome.error

    async def elect_preferred(self, topic: str, index: int) -> None:
        """Elect the preferred leader, which must not lead yet."""
        (outcome,) = await self.controller.controller.elect_leaders(
            ElectionType.PREFERRED, [TopicPartition(topic, index)]
        )
        if outcome.error is not None:
            raise outcome.error

    def partition(self, topic: str, index: int) -> PartitionRegistration:
        return self.controller.image.topics[topic].partitions[index]

    async def kill(self, broker_id: int) -> None:
        """End the session of a broker, as ZooKeeper does when it has timed out."""
        if broker_id in self.members:
            self.members.pop(broker_id).on_session_lost()
            self.sessions.pop(broker_id)
            await self._inner.pop(broker_id).close()
        else:
            await self._registered.pop(broker_id).close()

    async def wait_until_fenced(self, broker_id: int) -> None:
        """Wait until a controller has fenced the broker, and has settled all its partitions."""
        await self.wait_until(
            lambda: any(
                member.controller.is_elected and broker_id in member.image.fenced_brokers
                for member in self.members.values()
            )
        )
        # Returns when a failover of several multis has ended, and does nothing itself.
        await self.controller.controller.replication.reconcile()

    async def close(self) -> None:
        for member in self.members.values():
            await member.leave()
        await self._store.close()


def registration(broker_id: int) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id, f"broker{broker_id}.example", 9092, directory_id=f"{broker_id:022}", features=OWN_FEATURES
    )


# A session of the coordination service that counts what one broker reads and writes.


@dataclass(slots=True)
class Traffic:
    """`nodes_read` and `bytes_read`: nodes that were read, with the size of their data. `operations` are of `multis`.

    `bytes_written`: the data and the paths of the operations.
    """

    nodes_read: int = 0
    bytes_read: int = 0
    multis: int = 0
    operations: int = 0
    bytes_written: int = 0

    def since(self, before: "Traffic") -> "Traffic":
        return Traffic(*(getattr(self, each.name) - getattr(before, each.name) for each in fields(Traffic)))

    def copy(self) -> "Traffic":
        return self.since(Traffic())


class CountingSession:
    """Passes every call on to another session (Coordination), and counts it in `traffic`."""

    def __init__(self, session: Coordination) -> None:
        self.traffic = Traffic()
        self._session = session

    @property
    def session_id(self) -> int:
        return self._session.session_id

    @property
    def is_connected(self) -> bool:
        return self._session.is_connected

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        node = await self._session.get(path, watch)
        self._count_read(node)
        return node

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        nodes = await self._session.get_many(paths)
        for node in nodes:
            self._count_read(node)
        return nodes

    def _count_read(self, node: Node | None) -> None:
        self.traffic.nodes_read += 1
        self.traffic.bytes_read += 0 if node is None else len(node.data)

    async def exists(self, path: str, watch: Watch | None = None) -> int | None:
        return await self._session.exists(path, watch)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        names = await self._session.children(path, watch)
        self.traffic.bytes_read += sum(map(len, names))
        return names

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        self._count_write([Create(path, data, ephemeral)])
        await self._session.create(path, data, ephemeral=ephemeral)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        self._count_write([Set(path, data, version)])
        return await self._session.set(path, data, version)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        self._count_write([Check(path, version)])
        await self._session.delete(path, version)

    async def multi(self, ops: Sequence[Op]) -> None:
        self._count_write(ops)
        await self._session.multi(ops)

    def _count_write(self, ops: Sequence[Op]) -> None:
        self.traffic.multis += 1
        self.traffic.operations += len(ops)
        self.traffic.bytes_written += sum(
            len(op.path) + (len(op.data) if isinstance(op, Create | Set) else 0) for op in ops
        )

    async def sync(self) -> None:
        await self._session.sync()

    def on_expired(self, callback: Callable[[], None]) -> None:
        self._session.on_expired(callback)

    async def close(self) -> None:
        await self._session.close()
