"""Requests to a cluster, from one connection to each broker: creates topics, and looks at what clients see."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from itertools import count

from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k19_create_topics import CreatableReplicaAssignment, CreatableTopic
from protocol.messages.k45_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from protocol.messages.k55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionRequest,
    TopicRequest,
)
from scripts.benchmark.clients import BROKER, LATEST, TOPIC, Connection, check
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


# Requests that move replicas: the same for both clusters, as kafka-reassign-partitions.sh sends them.

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
# All moves must have ended after this time.
END_S = 600
MOVES_POLL_S = 0.05


class MoveAdmin(Admin):
    """Moves replicas and sets throttles. All methods raise SystemExit if a request fails."""

    def move(self, topic: str, target: Assignments, on_poll: Callable[[], None]) -> float:
        """Move the replicas of all partitions. Returns the seconds from the request until no move is listed.

        `on_poll` is called every MOVES_POLL_S.
        """
        rows = [ReassignablePartition(partition_index=index, replicas=list(brokers))
                for index, brokers in enumerate(target)]  # fmt: skip
        request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name=topic, partitions=rows)])
        begin = time.monotonic()
        response = self._connection(1).request(request, AlterPartitionReassignmentsResponse)
        check(response.error_code, "the moves")
        for row in response.responses[0].partitions:
            check(row.error_code, f"the move of partition {row.partition_index}")
        while self.is_moving():
            if time.monotonic() > begin + END_S:
                raise SystemExit(f"moves have not ended in {END_S} s")
            on_poll()
            time.sleep(MOVES_POLL_S)
        seconds = time.monotonic() - begin
        # The broker may learn it later than the controller, which has the list.
        wait_until(lambda: self.has_replicas(topic, target), f"the replicas of {topic} are where they were moved to")
        return seconds

    def is_moving(self) -> bool:
        request = ListPartitionReassignmentsRequest(topics=None)
        response = self._connection(1).request(request, ListPartitionReassignmentsResponse)
        check(response.error_code, "the list of moves")
        return bool(response.topics)

    def has_replicas(self, topic: str, target: Assignments) -> bool:
        """Return whether the partitions have the replicas of `target`, all in sync, and the first one leads."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        metadata = self._connection(1).request(request, MetadataResponse)
        for row in metadata.topics[0].partitions:
            expected = target[row.partition_index]
            if row.leader_id != expected[0] or not set(expected) == set(row.isr_nodes) == set(row.replica_nodes):
                return False
        return True

    def throttle(self, topic: str, rate: int) -> None:
        """Throttle all replicas of a topic to `rate` bytes/s on each broker, on both sides (KIP-73)."""
        self._set_throttle(topic, "*", str(rate))

    def remove_throttle(self, topic: str) -> None:
        self._set_throttle(topic, None, None)

    def _set_throttle(self, topic: str, replicas: str | None, rate: str | None) -> None:
        self._connection(1).alter_configs(TOPIC, topic, dict.fromkeys(REPLICAS, replicas))
        for node_id in range(1, BROKERS + 1):
            # Each broker accepts its own configs only.
            self._connection(node_id).alter_configs(BROKER, str(node_id), dict.fromkeys(RATES, rate))

    def set_delete_delay(self, delay_ms: int) -> None:
        """Set how long all brokers keep the files of replicas that were moved away."""
        self._connection(1).alter_configs(BROKER, "", {"log.segment.delete.delay.ms": str(delay_ms)})


def start(cluster: Cluster) -> None:
    """Start a cluster, and wait until each broker knows all brokers."""
    cluster.start()
    with closing(Admin(cluster)) as admin:
        admin.wait_for_brokers()
