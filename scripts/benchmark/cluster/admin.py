"""Requests to a cluster, from one connection to each broker: creates topics, and looks at what clients see."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count

from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k19_create_topics import CreatableReplicaAssignment, CreatableTopic
from protocol.messages.k55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionRequest,
    TopicRequest,
)
from scripts.benchmark.clients import LATEST, Connection
from scripts.benchmark.cluster.clusters import BROKERS, Cluster

READY_S = 300
POLL_S = 0.01
NO_LEADER = -1
# The partition of Kafka's metadata. Its leader is the controller; the names are part of the protocol.
CONTROLLER_TOPIC = "__cluster_metadata"
_numbers = count()

# The brokers of each partition, the preferred leader first.
Assignments = Sequence[Sequence[int]]


def wait_until(is_met: Callable[[], bool], what: str, poll_s: float = POLL_S) -> None:
    """Raises SystemExit if a condition is not met in time."""
    deadline = time.monotonic() + READY_S
    while not is_met():
        if time.monotonic() > deadline:
            raise SystemExit(f"not in {READY_S} s: {what}")
        time.sleep(poll_s)


def balanced(partitions: int) -> list[list[int]]:
    """Return assignments in which each broker leads a third."""
    return [[(first + index) % BROKERS + 1 for index in range(BROKERS)] for first in range(partitions)]


class Admin:
    """Blocking connections to all brokers of a cluster, which are opened when they are needed."""

    def __init__(self, cluster: Cluster) -> None:
        self._ports = dict(enumerate(cluster.ports(), 1))
        self._connections: dict[int, Connection] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connection(self, node_id: int) -> Connection:
        if node_id not in self._connections:
            self._connections[node_id] = Connection(self._ports[node_id])
        return self._connections[node_id]

    def wait_for_brokers(self) -> None:
        """Wait until each broker knows all brokers, and the controller."""

        def is_complete() -> bool:
            with suppress(OSError):
                return bool(self.controller()) and all(
                    len(self._metadata(node_id, []).brokers) == len(self._ports) for node_id in self._ports
                )
            return False

        wait_until(is_complete, "all brokers are registered")

    def create(self, assignments: Assignments) -> str:
        """Create a topic. Its leaders may not be known yet when this returns. Raises SystemExit if it fails."""
        name = f"topic-{time.monotonic_ns()}-{next(_numbers)}"
        rows = [CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
                for index, brokers in enumerate(assignments)]  # fmt: skip
        topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=rows)
        self._connection(1).create_topic(topic)
        return name

    def new_topic(self, assignments: Assignments) -> str:
        """Create a topic whose preferred leaders lead, and whose leaders respond, when this returns."""
        name = self.create(assignments)
        self.wait_until_usable(name, assignments)
        return name

    def wait_until_usable(self, topic: str, assignments: Assignments) -> None:
        """Wait until each broker names the leaders of all partitions, and each leader responds for its own."""
        expected = {index: brokers[0] for index, brokers in enumerate(assignments)}
        for node_id in self._ports:
            wait_until(lambda node_id=node_id: self.leaders(node_id, topic) == expected,  # type: ignore[misc]
                       f"broker {node_id} knows the leaders of {topic}")  # fmt: skip
            led = [index for index, leader in expected.items() if leader == node_id]
            if not led:
                continue
            wait_until(lambda node_id=node_id, led=led: self.is_leading(node_id, topic, led),  # type: ignore[misc]
                       f"broker {node_id} leads its partitions of {topic}")  # fmt: skip

    def is_leading(self, node_id: int, topic: str, partitions: Iterable[int]) -> bool:
        """Return whether a broker responds for partitions as their leader."""
        rows = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in partitions]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=rows)])
        response = self._connection(node_id).request(request, ListOffsetsResponse)
        return not any(row.error_code for row in response.topics[0].partitions)

    def leaders(self, node_id: int, topic: str) -> dict[int, int]:
        """Return the leader of each partition as a broker names it in Metadata; -1 if there is none."""
        metadata = self._metadata(node_id, [topic])
        return {
            partition.partition_index: NO_LEADER if partition.error_code else partition.leader_id
            for partition in metadata.topics[0].partitions
        }

    def are_in_sync(self, node_id: int, topic: str) -> bool:
        """Return whether all partitions have a leader and all replicas in sync, as a broker names them in Metadata."""
        return all(
            not partition.error_code and len(partition.isr_nodes) == len(partition.replica_nodes)
            for partition in self._metadata(node_id, [topic]).topics[0].partitions
        )

    def _metadata(self, node_id: int, topics: Iterable[str]) -> MetadataResponse:
        rows = [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=rows, allow_auto_topic_creation=False)
        return self._connection(node_id).request(request, MetadataResponse)

    def controller(self) -> int:
        """Return the broker id of the controller, 0 if there is none."""
        request = DescribeQuorumRequest(
            topics=[TopicRequest(topic_name=CONTROLLER_TOPIC, partitions=[PartitionRequest(partition_index=0)])]
        )
        response = self._connection(1).request(request, DescribeQuorumResponse)
        if response.error_code or not response.topics:
            return 0
        return max(response.topics[0].partitions[0].leader_id, 0)
