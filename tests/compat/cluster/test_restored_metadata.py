"""ZooKeeper is restored from a copy that is older than the logs: no acknowledged record is lost, and writes go on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat.cluster.cluster import IS_KBROKER, Cluster, running_cluster
from tests.compat.cluster.work import Work, create_topic, working
from tests.compat.support import eventually
from tests.sampling import runs_in_third

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: another program's brokers, without ZooKeeper")

NOTICED = "has older metadata than brokers have seen"


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with one ZooKeeper server, which restarts faster than three."""
    with running_cluster(tmp_path_factory.mktemp("restored"), servers=1) as cluster:
        yield cluster


def says(cluster: Cluster, text: str, count: int = 1) -> bool:
    """Return whether the logs of the brokers have a text at least `count` times."""
    return sum(broker.all_errors.count(text) for broker in cluster.brokers.values()) >= count


def change_leaders(cluster: Cluster, work: Work) -> None:
    """Kill each broker in turn, so that others lead in epochs and ISRs that an earlier copy of the metadata lacks."""
    for killed in (1, 2):
        cluster.kill(killed)
        work.wait_for_more()
        cluster.start(killed)
        cluster.wait_until_healthy()


@runs_in_third(0)
def test_an_older_copy_is_restored_while_the_brokers_run(cluster: Cluster, tmp_path: Path) -> None:
    topic = create_topic(cluster, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    with working(cluster, topic, 3) as work:
        cluster.ensemble.copy_to(tmp_path)
        change_leaders(cluster, work)
        noticed = sum(broker.all_errors.count(NOTICED) for broker in cluster.brokers.values())
        cluster.ensemble.restore_from(tmp_path)
        eventually(lambda: says(cluster, NOTICED, noticed + 1), "the controller says that the metadata are older")
        work.wait_for_more()
        # It works as before: leaders fail over, ISRs change.
        cluster.kill(3)
        work.wait_for_more()
        cluster.start(3)


@runs_in_third(1)
def test_an_older_copy_is_restored_while_the_brokers_are_stopped(cluster: Cluster, tmp_path: Path) -> None:
    topic = create_topic(cluster, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    with working(cluster, topic, 3) as work:
        cluster.ensemble.copy_to(tmp_path)
        change_leaders(cluster, work)
        for broker in cluster.brokers:
            cluster.kill(broker)
        cluster.ensemble.restore_from(tmp_path)
        cluster.start()
        work.wait_for_more()
