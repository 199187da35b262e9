"""Many partitions: neither the start of a broker that has them nor their creation is a gap in the service of others.

`KBROKER_COMPAT_PARTITIONS` is their number.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.cluster.cluster import IS_KBROKER, SESSION_S, Cluster
from tests.compat.cluster.views import ClusterView, cluster_view
from tests.compat.cluster.work import GapMeter, create_topic, working
from tests.compat.reports import reports
from tests.compat.support import DEADLINE_S, Sampler, eventually, unique

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: another program's brokers")

PARTITIONS = int(os.environ.get("KBROKER_COMPAT_PARTITIONS", "300"))


def creation(cluster: Cluster, name: str) -> Callable[[], None]:
    """Begin to create a topic with many partitions, and return a function that waits for it."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    created = admin.create_topics([NewTopic(name, PARTITIONS, 3)], request_timeout=DEADLINE_S)[name]

    def wait() -> None:
        created.result(DEADLINE_S)
        admin.poll(0)  # the client must live until here

    return wait


class ElectionWatch(Sampler):
    """Asks a broker all the time whether another one leads a partition; then counts the logs that this has open."""

    def __init__(self, asked: str, elected: int, pid: int) -> None:
        super().__init__()
        self.open_logs: int | None = None
        self._asked, self._elected, self._pid = asked, elected, pid

    def sample(self) -> None:
        if self.open_logs is not None:
            return
        view = cluster_view(self._asked)
        if view is not None and leads(view, self._elected):
            links = [os.readlink(path) for path in Path(f"/proc/{self._pid}/fd").iterdir() if path.is_symlink()]
            self.open_logs = len({link for link in links if link.endswith(".log")})


def leads(view: ClusterView, node_id: int) -> bool:
    return any(part.leader == node_id for part in view.partitions.values())


def test_many_partitions_are_created_and_recovered_without_a_gap(
    cluster: Cluster, request: pytest.FixtureRequest
) -> None:
    killed = cluster.others(cluster.controller())[0]
    others = cluster.others(killed)
    topic = create_topic(cluster, [[killed, *others], [*others, killed]])
    many = unique("many")
    create_topic(cluster, [[killed]])
    with working(cluster, topic, 2) as work:
        with GapMeter(work) as failover:
            # The failover does not wait until the logs of the new partitions are open.
            cluster.kill(killed)
            created = creation(cluster, many)
            work.wait_for_more()
        created()
        cluster.wait_until(lambda view: not leads(view, killed), "the other brokers lead everything")
        cluster.start(killed)
        cluster.wait_until_healthy()

        # After a kill it recovers all its logs. It is elected for the partition that has no other replica.
        cluster.kill(killed)
        cluster.wait_until(lambda view: not leads(view, killed), "the other brokers lead everything")
        work.wait_for_more()
        with GapMeter(work) as recovery:
            cluster.launch(killed)
            pid = cluster.brokers[killed].pid
            with ElectionWatch(cluster.brokers[others[0]].bootstrap, killed, pid) as watch:
                cluster.wait_until(lambda view: leads(view, killed), "it is elected")
                assert eventually(lambda: watch.open_logs, "it is elected") >= PARTITIONS, "its logs are open before"
            cluster.start(killed)
            work.wait_for_more()
        cluster.wait_until_healthy()
    assert recovery.longest_s < SESSION_S, "the other brokers serve while it starts"
    reports(request.config).section("many partitions").append(
        f"{PARTITIONS} partitions: longest time without an acknowledgement {failover.longest_s:.1f} s while they are "
        f"created and a leader is killed (session {SESSION_S:g} s), {recovery.longest_s:.1f} s while it is started"
    )
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    admin.delete_topics([many])[many].result(DEADLINE_S)
    eventually(
        lambda: all(view and all(key[0] != many for key in view.partitions) for view in cluster.views().values()),
        "the topic is deleted",
    )
