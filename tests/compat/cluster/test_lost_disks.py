"""A follower is back with an empty disk before anyone has noticed that it was away: nothing is lost with the leader."""

import pytest

from tests.compat.cluster.cluster import IS_KBROKER, Cluster
from tests.compat.cluster.work import create_topic, working

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: another program's brokers")


def test_a_follower_bounces_with_an_empty_disk_while_there_is_no_controller(cluster: Cluster) -> None:
    controller = cluster.controller()
    leader, follower = cluster.others(controller)
    topic = create_topic(cluster, [[leader, follower, controller], [leader, follower, controller]])
    with working(cluster, topic, 2) as work:
        # No broker is the controller before the session of the killed one has expired.
        cluster.kill(follower)
        cluster.kill(controller)
        cluster.lose_disk(follower)
        cluster.start(follower)
        cluster.kill(leader)
        cluster.start(leader)
        cluster.start(controller)
        work.wait_for_more()
