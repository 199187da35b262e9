"""What a client knows of a cluster: its nodes, who leads which partition, ids of topics; and connections to them."""

import asyncio
from collections.abc import Iterable, Sequence
from random import Random
from typing import NamedTuple

from kbroker.simulation.checker.history import Place
from kbroker.simulation.clients.connections.connection import Address, SimClientConnection, connect
from kbroker.simulation.clients.connections.versions import Caps
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

GROUP, TRANSACTION = 0, 1
SEVERAL_KEYS_VERSION = 4
NO_LEADER = -1
NO_EPOCH = -1
NO_ID = bytes(16)


class AbsentError(ConnectionError):
    """Nobody who could be asked is known or there; later there may be."""


class Leader(NamedTuple):
    """`epoch` is -1 where the broker does not tell it."""

    node: int
    epoch: int


class Cluster:
    """One client's view. It belongs to one client program, and so do its connections."""

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
        """`caps`: see versions.py. `timeout_s` is for one request, `backoff_s` (least, most) before another try."""
        self.loop = loop
        self.random = random
        self.client_id = client_id
        self.nodes: dict[int, Address] = {}
        self.leaders: dict[Place, Leader] = {}
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
        """Before another try."""
        await asyncio.sleep(self.random.uniform(*self._backoff_s))

    def close(self) -> None:
        self._closed = True
        for task in self._opening.values():
            task.cancel()
        for connection in (*self._connections.values(), *self._coordinator_connections):
            connection.close()
        if self._any is not None:
            self._any.close()

    # Leaders.

    def open_leader_connection(self, place: Place) -> SimClientConnection | None:
        """A connection to a partition's leader, if there is one already."""
        leader = self.leaders.get(place)
        connection = None if leader is None else self._connections.get(leader.node)
        return None if connection is None or connection.lost else connection

    async def leader(self, place: Place) -> SimClientConnection:
        """A connection to a partition's leader. Raises OSError."""
        if place not in self.leaders:
            await self.refresh_metadata([place[0]])
        leader = self.leaders.get(place)
        if leader is None:
            raise AbsentError(f"no leader of {place[0]}-{place[1]} is known")
        return await self.node(leader.node)

    def forget_leader(self, place: Place) -> None:
        """It is not as it was believed to be: ask again before the next use."""
        self.leaders.pop(place, None)

    def places(self, topics: Iterable[str]) -> list[Place]:
        """The partitions of topics, as far as they are known."""
        return [(topic, index) for topic in topics for index in range(self.partition_counts.get(topic, 0))]

    async def refresh_metadata(self, topics: Sequence[str]) -> None:
        """Ask for the nodes and for these topics. Raises OSError."""
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
            for place in self.places([name]):
                self.forget_leader(place)
            return
        if topic.topic_id != NO_ID:
            self.topic_ids[name] = topic.topic_id
            self.topic_names[topic.topic_id] = name
        self.partition_counts[name] = len(topic.partitions)
        for partition in topic.partitions:
            place = (name, partition.partition_index)
            if partition.error_code or partition.leader_id == NO_LEADER:
                self.forget_leader(place)
            else:
                self.leaders[place] = Leader(partition.leader_id, partition.leader_epoch)

    # Connections.

    async def node(self, node: int) -> SimClientConnection:
        """The connection to a node. Raises OSError; its partitions are asked for anew then."""
        connection = self._connections.get(node)
        if connection is not None and not connection.lost:
            return connection
        task = self._opening.get(node)
        if task is None:
            task = self._opening[node] = self.loop.create_task(self._open(node))
        # Several may wait for it: one that is cancelled must not take it from the others.
        return await asyncio.shield(task)

    async def _open(self, node: int) -> SimClientConnection:
        try:
            if node not in self.nodes:
                raise AbsentError(f"no node {node} is known")
            connection = await self._connect(self.nodes[node])
        except OSError:
            for place in [place for place, leader in self.leaders.items() if leader.node == node]:
                self.forget_leader(place)
            raise
        finally:
            del self._opening[node]
        self._connections[node] = connection
        return connection

    async def any_node(self) -> SimClientConnection:
        """A connection to some node. Raises OSError when none of those that are known can be reached."""
        for connection in (*self._connections.values(), self._any):
            if connection is not None and not connection.lost:
                return connection
        addresses = list(dict.fromkeys((*self.nodes.values(), *self._bootstrap)))
        self.random.shuffle(addresses)
        failure: OSError = AbsentError("no address is known")
        for address in addresses:
            try:
                self._any = await self._connect(address)
            except OSError as error:
                failure = error
            else:
                return self._any
        raise failure

    async def coordinator(self, name: str, kind: int = GROUP) -> SimClientConnection:
        """A connection of its own to the coordinator of a group or transactional id, for joining keeps one busy. Raises
        OSError."""
        connection = await self.any_node()
        several = connection.version(ApiKey.FIND_COORDINATOR) >= SEVERAL_KEYS_VERSION
        names = {"coordinator_keys": [name]} if several else {"key": name}
        response = await connection.request(FindCoordinatorRequest(key_type=kind, **names), FindCoordinatorResponse)
        found = response.coordinators[0] if several else response
        if found.error_code:
            raise AbsentError(ErrorCode(found.error_code).name)
        own = await self._connect((found.host, found.port))
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
