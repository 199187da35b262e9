"""Partitions move to other brokers while clients work and the controller is killed; and a move that is cancelled."""

from collections.abc import Mapping, Sequence

from protocol.errors import ErrorCode
from protocol.messages.k45_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.compat.broker_connection import BrokerConnection
from tests.compat.cluster.cluster import SETTINGS, Cluster
from tests.compat.cluster.test_groups import PARTITIONS, ConfluentMember
from tests.compat.cluster.views import FAILURES, TIMEOUT_S
from tests.compat.cluster.work import create_topic, working
from tests.compat.support import eventually, unique

OFFSETS = "__consumer_offsets"
OFFSETS_PARTITIONS = int(SETTINGS["offsets.topic.num.partitions"])
# The target of each partition; None cancels.
Targets = Mapping[tuple[str, int], Sequence[int] | None]
# While there is no controller, or it loses its session.
UNAVAILABLE = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER, ErrorCode.UNKNOWN_SERVER_ERROR}


def reassign(cluster: Cluster, targets: Targets) -> None:
    """Begin or cancel reassignments. Every broker accepts the request."""
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=10_000,
        topics=[
            ReassignableTopic(
                name=topic, partitions=[ReassignablePartition(partition_index=index, replicas=target and list(target))]
            )
            for (topic, index), target in targets.items()
        ],
    )

    def is_accepted() -> bool:
        try:
            with BrokerConnection(cluster.brokers[cluster.running[-1]].bootstrap, timeout_s=30) as connection:
                response = connection.request(request, 1, AlterPartitionReassignmentsResponse)
        except FAILURES:
            return False
        codes = {row.error_code for topic in response.responses for row in topic.partitions} | {response.error_code}
        assert codes <= {0, *UNAVAILABLE}, response
        return codes == {0}

    eventually(is_accepted, "the reassignments begin", interval=0.2)


def ongoing(cluster: Cluster) -> set[tuple[str, int]] | None:
    """Return the partitions that are moving; None if the broker does not say."""
    try:
        with BrokerConnection(cluster.brokers[cluster.running[0]].bootstrap, timeout_s=TIMEOUT_S) as connection:
            response = connection.request(
                ListPartitionReassignmentsRequest(topics=None), 0, ListPartitionReassignmentsResponse
            )
    except FAILURES:
        return None
    if response.error_code:
        return None
    return {(topic.name, row.partition_index) for topic in response.topics for row in topic.partitions}


def wait_until_moved(cluster: Cluster, targets: Targets) -> None:
    cluster.wait_until(
        lambda view: all(
            view.partitions[key].replicas == tuple(target or ()) and view.partitions[key].leader in (target or ())
            for key, target in targets.items()
        ),
        "the partitions have moved",
    )
    eventually(lambda: ongoing(cluster) == set(), "no reassignment is in progress", interval=0.2)


def test_partitions_move_while_clients_work_and_the_controller_is_killed(cluster: Cluster) -> None:
    controller = cluster.controller()
    leader, follower = cluster.others(controller)
    topic = create_topic(cluster, [[leader, follower], [follower, leader]], {"min.insync.replicas": "1"})
    with working(cluster, topic, PARTITIONS) as work:
        member = ConfluentMember(cluster, unique("group"), topic)
        eventually(lambda: member.poll() > 10, "the member reads")
        moved: Targets = {
            (topic, 0): [controller, follower],
            (topic, 1): [leader, controller],
            **{(OFFSETS, index): [follower, leader] for index in range(OFFSETS_PARTITIONS)},
        }
        reassign(cluster, moved)
        cluster.kill(controller)
        work.wait_for_more()
        cluster.start(controller)
        wait_until_moved(cluster, moved)
        work.wait_for_more()
        read = member.poll()
        eventually(lambda: member.poll() > read + 10, "the member reads on")
        eventually(lambda: all(offset > 0 for offset in member.committed(topic) or [0]), "the member commits")

        # The added replica is on a broker that is down, and so it is not in sync when this is cancelled.
        cluster.kill(leader)
        reassign(cluster, {(topic, 0): [leader]})
        assert ongoing(cluster) == {(topic, 0)}
        work.wait_for_more()
        reassign(cluster, {(topic, 0): None})
        # As in Kafka, the replicas that were to be removed are now in ascending order.
        wait_until_moved(cluster, {(topic, 0): sorted((controller, follower))})
        cluster.start(leader)
        back: Targets = {(OFFSETS, index): [leader, follower, controller] for index in range(OFFSETS_PARTITIONS)}
        reassign(cluster, back)
        wait_until_moved(cluster, back)
        read = member.poll()
        eventually(lambda: member.poll() > read + 10, "the member reads on")
        member.close()
