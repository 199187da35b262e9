"""What a broker says about its cluster: brokers, leaders, in-sync replicas, controller and coordinators."""

from typing import NamedTuple

from protocol.messages.k03_metadata import MetadataRequest, MetadataResponse
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k55_describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionRequest,
    TopicRequest,
)
from tests.compat.broker_connection import BrokerConnection, ConnectionClosedError

# A broker that is paused or overloaded is asked again.
TIMEOUT_S = 5.0
FAILURES = (OSError, ConnectionClosedError)
GROUP, TRANSACTION, SHARE = 0, 1, 2


class PartitionView(NamedTuple):
    leader: int
    replicas: tuple[int, ...]
    isr: frozenset[int]


class ClusterView(NamedTuple):
    cluster_id: str
    brokers: frozenset[int]
    partitions: dict[tuple[str, int], PartitionView]

    @property
    def is_fully_replicated(self) -> bool:
        return all(part.leader >= 0 and part.isr == set(part.replicas) for part in self.partitions.values())


def cluster_view(bootstrap: str) -> ClusterView | None:
    """Return the metadata that a broker has; None if it does not respond."""
    request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    try:
        with BrokerConnection(bootstrap, timeout_s=TIMEOUT_S) as connection:
            response = connection.request(request, 9, MetadataResponse)
    except FAILURES:
        return None
    partitions = {
        (topic.name or "", part.partition_index): PartitionView(
            part.leader_id, tuple(part.replica_nodes), frozenset(part.isr_nodes)
        )
        for topic in response.topics
        for part in topic.partitions
    }
    return ClusterView(response.cluster_id or "", frozenset(broker.node_id for broker in response.brokers), partitions)


def controller_of(bootstrap: str) -> int | None:
    """Return the id of the controller; None if this broker does not know it or does not respond."""
    topic = TopicRequest(topic_name="__cluster_metadata", partitions=[PartitionRequest(partition_index=0)])
    try:
        with BrokerConnection(bootstrap, timeout_s=TIMEOUT_S) as connection:
            response = connection.request(DescribeQuorumRequest(topics=[topic]), 1, DescribeQuorumResponse)
    except FAILURES:
        return None
    if response.error_code or response.topics[0].partitions[0].error_code:
        return None
    return response.topics[0].partitions[0].leader_id


def coordinator_of(bootstrap: str, key: str, key_type: int) -> int | None:
    """Return the id of the coordinator of a group, transactional id or share partition; None if there is none yet."""
    request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
    try:
        with BrokerConnection(bootstrap, timeout_s=TIMEOUT_S) as connection:
            [response] = connection.request(request, 6, FindCoordinatorResponse).coordinators
    except FAILURES:
        return None
    return None if response.error_code else response.node_id
