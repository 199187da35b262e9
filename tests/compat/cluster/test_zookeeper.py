"""ZooKeeper's failures are not the brokers': work goes on without one of its servers, and without all of them.

`KBROKER_COMPAT_SECONDS` is the duration of an outage.
"""

import os
import time

import pytest

from tests.compat.cluster.cluster import IS_KBROKER, Cluster
from tests.compat.cluster.work import create_topic, working

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: another program's brokers, without ZooKeeper")

# Several times as long as a session.
OUTAGE_S = float(os.environ.get("KBROKER_COMPAT_SECONDS", "9"))


def test_each_server_of_the_ensemble_killed_in_turn(cluster: Cluster) -> None:
    topic = create_topic(cluster, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    with working(cluster, topic, 3) as work:
        for index in range(len(cluster.ensemble.servers)):
            cluster.ensemble.kill(index)
            # A write to ZooKeeper.
            create_topic(cluster, [[1, 2, 3]])
            work.wait_for_more()
            cluster.ensemble.start()


def test_work_goes_on_while_zookeeper_is_stopped(cluster: Cluster) -> None:
    topic = create_topic(cluster, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    with working(cluster, topic, 3) as work:
        cluster.ensemble.kill()
        end = time.monotonic() + OUTAGE_S
        while time.monotonic() < end:
            work.wait_for_more()
        cluster.ensemble.start()
        create_topic(cluster, [[1, 2, 3]])
        # The cluster decides again.
        killed = cluster.leader(topic)
        cluster.kill(killed)
        work.wait_for_more()
        cluster.start(killed)
