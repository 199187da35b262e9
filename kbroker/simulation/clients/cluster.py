"""A client's metadata of a cluster (nodes, leaders, topic ids), its connections to the nodes, and coordinators."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypeVar

from kbroker.client.requests import GROUP, Address, BrokerError, find_coordinator_request, found_coordinator
from kbroker.simulation.checker.history import Outcome, TopicPartition
from kbroker.simulation.clients.connection import Caps, ConnectionLostError, SimClientConnection, connect
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorResponse

T = TypeVar("T")

NO_LEADER = -1
NO_EPOCH = -1
NO_ID = bytes(16)
# How often a client of several nodes opens another connection.
ANOTHER_NODE = 0.2


class UnavailableError(ConnectionError):
    """No leader, node or coordinator is known now. Retriable."""


class RefusedError(Exception):
    """The broker responded with an error."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = ErrorCode(code)


class Leader(NamedTuple):
    """The leader of a partition. `epoch` is -1 if the broker does not send it."""

    node: int
    epoch: int


class Cluster:
    """The metadata and connections of one client program."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bootstrap: Sequence[Address],
        random: Random,
        client_id: str,
        *,
        caps: Caps | None = None,
        timeout_s: float = 10.0,
        backoff_s: tuple[float, float] = (0.02, 0.2),
    ) -> None:
        """`caps`: see versions.py. `timeout_s` is for one request, `backoff_s` (minimum, maximum) before a retry."""
        self.loop = loop
        self.random = random
        self.client_id = client_id
        self.nodes: dict[int, Address] = {}
        self.leaders: dict[TopicPartition, Leader] = {}
        self.partition_counts: dict[str, int] = {}
        self.topic_ids: dict[str, bytes] = {}
        self.topic_names: dict[bytes, str] = {}
        self._bootstrap = list(bootstrap)
        self.caps: Caps = caps or {}
        self.timeout_s = timeout_s
        self._backoff_s = backoff_s
        self._connections: dict[int, SimClientConnection] = {}
        self._opening: dict[int, asyncio.Task[SimClientConnection]] = {}
        self._any: SimClientConnection | None = None
        self._coordinator_connections: list[SimClientConnection] = []
        self._closed = False

    async def backoff(self) -> None:
        """Wait before a retry."""
        await asyncio.sleep(self.random.uniform(*self._backoff_s))

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat an attempt until no connection fails and no broker refuses it. Returns its result."""
        while True:
            try:
                return await attempt()
            except (OSError, RefusedError):
                await self.backoff()

    def close(self) -> None:
        self._closed = True
        for task in self._opening.values():
            task.cancel()
        for connection in (*self._connections.values(), *self._coordinator_connections):
            connection.close()
        if self._any is not None:
            self._any.close()

    # Leaders.

    def open_leader_connection(self, tp: TopicPartition) -> SimClientConnection | None:
        """Return the connection to a partition's leader if one is open."""
        leader = self.leaders.get(tp)
        connection = None if leader is None else self._connections.get(leader.node)
        return None if connection is None or connection.lost else connection

    async def leader(self, tp: TopicPartition) -> SimClientConnection:
        """Return a connection to a partition's leader. Raises OSError."""
        if tp not in self.leaders:
            await self.refresh_metadata([tp[0]])
        leader = self.leaders.get(tp)
        if leader is None:
            raise UnavailableError(f"no leader of {tp[0]}-{tp[1]} is known")
        return await self.node(leader.node)

    def forget_leader(self, tp: TopicPartition) -> None:
        """Forget a partition's leader: the next use refreshes the metadata."""
        self.leaders.pop(tp, None)

    def partitions(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Return the known partitions of these topics."""
        return [(topic, index) for topic in topics for index in range(self.partition_counts.get(topic, 0))]

    async def refresh_metadata(self, topics: Sequence[str]) -> None:
        """Request the metadata of the nodes and these topics. Raises OSError."""
        connection = await self.any_node()
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic) for topic in topics], allow_auto_topic_creation=False
        )
        response = await connection.request(request, MetadataResponse)
        self.nodes = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        for topic in response.topics:
            self._update_topic(topic)

    def _update_topic(self, topic: MetadataResponseTopic) -> None:
        name = topic.name
        if name is None:
            return
        if topic.error_code:
            for tp in self.partitions([name]):
                self.forget_leader(tp)
            return
        if topic.topic_id != NO_ID:
            self.topic_ids[name] = topic.topic_id
            self.topic_names[topic.topic_id] = name
        self.partition_counts[name] = len(topic.partitions)
        for partition in topic.partitions:
            tp = (name, partition.partition_index)
            if partition.error_code or partition.leader_id == NO_LEADER:
                self.forget_leader(tp)
            else:
                self.leaders[tp] = Leader(partition.leader_id, partition.leader_epoch)

    # Connections.

    async def node(self, node: int) -> SimClientConnection:
        """Return the connection to a node. Raises OSError, and then forgets the node's leaderships."""
        connection = self._connections.get(node)
        if connection is not None and not connection.lost:
            return connection
        task = self._opening.get(node)
        if task is None:
            task = self._opening[node] = self.loop.create_task(self._open(node))
        # Several callers may wait for it. Cancelling one must not cancel the others.
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Perhaps nobody waits for it any more, and then its failure is no error.
            task.add_done_callback(_ignore_failure)
            raise

    async def _open(self, node: int) -> SimClientConnection:
        try:
            if node not in self.nodes:
                raise UnavailableError(f"no node {node} is known")
            connection = await self._connect(self.nodes[node])
        except OSError:
            for tp in [tp for tp, leader in self.leaders.items() if leader.node == node]:
                self.forget_leader(tp)
            raise
        finally:
            del self._opening[node]
        self._connections[node] = connection
        return connection

    async def any_node(self) -> SimClientConnection:
        """Return a connection to any node. Raises OSError if no known node can be reached.

        With several nodes it is another one from time to time: a node that is cut off has old metadata.
        """
        known = (*self._connections.values(), self._any)
        usable = [connection for connection in known if connection is not None and not connection.lost]
        nodes = len(self._bootstrap)
        if usable and nodes == 1:
            return usable[0]
        if usable and (len(usable) >= nodes or self.random.random() >= ANOTHER_NODE):
            return self.random.choice(usable)
        addresses = list(dict.fromkeys((*self.nodes.values(), *self._bootstrap)))
        self.random.shuffle(addresses)
        failure: OSError = UnavailableError("no address is known")
        for address in addresses:
            try:
                connection = await self._connect(address)
            except OSError as error:
                failure = error
            else:
                if self._any is not None:
                    # Its requests may be in flight.
                    self._coordinator_connections.append(self._any)
                self._any = connection
                return connection
        raise failure

    async def coordinator(self, name: str, kind: int = GROUP) -> SimClientConnection:
        """Open a new connection to the coordinator of a group or transactional id. Raises OSError.

        It is not shared, since JoinGroup blocks a connection until the rebalance ends.
        """
        connection = await self.any_node()
        request = find_coordinator_request(name, kind, connection.version(ApiKey.FIND_COORDINATOR))
        try:
            found = found_coordinator(await connection.request(request, FindCoordinatorResponse), name)
        except BrokerError as error:
            raise UnavailableError(error.code.name) from None
        own = await self._connect(found.address)
        self._coordinator_connections = [
            *(connection for connection in self._coordinator_connections if not connection.lost),
            own,
        ]
        return own

    async def _connect(self, address: Address) -> SimClientConnection:
        connection = await connect(self.loop, address, self.client_id, self.caps, self.timeout_s)
        if self._closed:
            connection.close()
        return connection


def _ignore_failure(task: asyncio.Task[SimClientConnection]) -> None:
    if not task.cancelled():
        task.exception()


Attempt = Callable[[SimClientConnection], Awaitable[ErrorCode]]

# Errors after which the client looks up the coordinator again.
COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# Retriable errors of a request that had no effect.
NOT_APPLIED = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS})


@dataclass(slots=True)
class Attempts:
    """What is known about the attempts at one operation.

    `maybe_applied`: at least one attempt may have had an effect. `response_lost`: at least one attempt got no response,
    so it may still take effect at any time.
    """

    maybe_applied: bool = False
    response_lost: bool = False

    def outcome(self, code: ErrorCode) -> Outcome:
        """Return the outcome of the operation, whose last attempt had this error."""
        return Outcome.OK if not code else Outcome.UNKNOWN if self.maybe_applied else Outcome.FAILED


class CoordinatorClient:
    """A client of the coordinator of a group or transactional id."""

    def __init__(self, cluster: Cluster, name: str, kind: int) -> None:
        self._cluster = cluster
        self._name, self._kind = name, kind
        self._connection: SimClientConnection | None = None

    async def find(self) -> SimClientConnection:
        """Return a connection to the coordinator. Raises OSError."""
        if self._connection is None or self._connection.lost:
            self._connection = await self._cluster.coordinator(self._name, self._kind)
        return self._connection

    async def request(
        self, attempt: Attempt, deadline: float, attempts: Attempts, is_cancelled: Callable[[], bool] = lambda: False
    ) -> ErrorCode:
        """Retry `attempt` until its result is not retriable, and return that.

        Raises TimeoutError after the deadline or when `is_cancelled` returns true.
        """
        while self._cluster.loop.time() < deadline and not is_cancelled():
            try:
                connection = await self.find()
            except OSError:
                await self._cluster.backoff()
                continue
            try:
                code = await attempt(connection)
            except ConnectionLostError:
                attempts.maybe_applied = attempts.response_lost = True
                self.disconnect()
            else:
                if not code.retriable:
                    return code
                attempts.maybe_applied = attempts.maybe_applied or code not in NOT_APPLIED
                if code in COORDINATOR_MOVED:
                    self.disconnect()
            await self._cluster.backoff()
        raise TimeoutError

    def disconnect(self) -> None:
        """Close the connection. The next request looks up the coordinator again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
