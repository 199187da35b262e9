"""kill -9 and SIGSTOP of each kind of broker, under idempotent producers of two clients: nothing is lost or doubled."""

import pytest

from tests.compat.cluster.cluster import IS_KBROKER, Cluster
from tests.compat.cluster.work import create_topic, working
from tests.sampling import THOROUGH

# A leader that is back is a follower, and is killed as one by the same test: "follower" is for longer runs.
ROLES = ("leader", "controller", "follower") if THOROUGH else ("leader", "controller")


def topic_and_broker(cluster: Cluster, role: str) -> tuple[str, int, int]:
    """Return a topic, the number of its partitions, and the broker that has this role and no other."""
    controller = cluster.controller()
    leader, follower = cluster.others(controller)
    match role:
        case "leader":
            return create_topic(cluster, [[leader, follower, controller], [follower, leader, controller]]), 2, leader
        case "controller":
            return (
                create_topic(cluster, [[leader, controller, follower], [follower, controller, leader]]),
                2,
                controller,
            )
        case _:
            return create_topic(cluster, [[leader, follower, controller], [controller, follower, leader]]), 2, follower


@pytest.mark.parametrize("role", ROLES)
def test_nothing_is_lost_when_a_broker_is_killed(cluster: Cluster, role: str) -> None:
    topic, partitions, killed = topic_and_broker(cluster, role)
    with working(cluster, topic, partitions) as work:
        cluster.kill(killed)
        work.wait_for_more()
        survivors = frozenset(cluster.others(killed))
        cluster.wait_until(
            lambda view: all(
                part.leader in survivors and part.isr == survivors
                for (name, _), part in view.partitions.items()
                if name == topic
            ),
            f"the partitions are led without broker {killed}",
        )
        assert cluster.controller() in survivors
        work.wait_for_more()
        cluster.start(killed)
        cluster.wait_until_healthy()
        # It is killed again as soon as it is in sync, and this time others lead.
        cluster.kill(killed)
        work.wait_for_more()
        cluster.start(killed)


def test_nothing_is_lost_when_the_leader_is_paused_until_it_is_replaced(cluster: Cluster) -> None:
    """It continues with requests and records of its former leadership, none of which may count."""
    topic, partitions, paused = topic_and_broker(cluster, "leader")
    with working(cluster, topic, partitions) as work:
        cluster.pause(paused)
        cluster.wait_until(
            lambda view: all(part.leader != paused for (name, _), part in view.partitions.items() if name == topic),
            "a new leader",
        )
        work.wait_for_more()
        cluster.resume(paused)
        cluster.wait_until_healthy()


def test_two_brokers_killed_at_once_lose_nothing(cluster: Cluster) -> None:
    """Below min.insync.replicas nothing is acknowledged, until one of the two is back."""
    topic, partitions, killed = topic_and_broker(cluster, "leader")
    survivor, second = cluster.others(killed)
    with working(cluster, topic, partitions) as work:
        cluster.kill(killed)
        cluster.kill(second)
        if IS_KBROKER:  # a quorum of Kafka's controllers is killed, too
            cluster.wait_until(lambda view: view.brokers == {survivor}, "one broker is left")
        cluster.start(second)
        work.wait_for_more()
        cluster.start(killed)
