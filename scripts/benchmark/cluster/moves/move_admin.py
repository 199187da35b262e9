"""Requests that move replicas: the same for both clusters, as kafka-reassign-partitions.sh sends them."""

import time
from collections.abc import Callable

from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k45_alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from protocol.messages.k46_list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from scripts.benchmark.clients import BROKER, TOPIC, check
from scripts.benchmark.cluster.admin import Admin, Assignments, wait_until
from scripts.benchmark.cluster.clusters import BROKERS

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
# All moves must have ended after this time.
END_S = 600
POLL_S = 0.05


class MoveAdmin(Admin):
    """Moves replicas and sets throttles. All methods raise SystemExit if a request fails."""

    def move(self, topic: str, target: Assignments, on_poll: Callable[[], None]) -> float:
        """Move the replicas of all partitions. Returns the seconds from the request until no move is listed.

        `on_poll` is called every POLL_S.
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
            time.sleep(POLL_S)
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
