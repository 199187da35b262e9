"""A broker that does not belong to the cluster, or is in it already, does not start, and says why."""

from pathlib import Path

import pytest

from tests.compat.cluster.cluster import IS_KBROKER, Cluster
from tests.compat.support import BrokerProcess
from tests.compat.zookeeper.test_broker import children

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: these are kbroker's own messages")


def refusal(broker: BrokerProcess) -> str:
    """Return the last line that a start logs, which must fail."""
    broker.launch()
    assert broker.wait() == 1
    assert "Traceback" not in broker.errors
    return broker.errors.splitlines()[-1]


def test_a_second_broker_with_the_same_id(cluster: Cluster, tmp_path: Path) -> None:
    line = refusal(cluster.new_broker(tmp_path / "twin", 2))
    assert "node.id=2" in line or "broker 2" in line
    # The first one is not disturbed.
    cluster.wait_until_healthy()


def test_a_data_directory_of_another_cluster(cluster: Cluster, tmp_path: Path) -> None:
    other = cluster.new_broker(tmp_path / "other", 4, connect=f"{cluster.ensemble.address}/other")
    other.start()
    other.stop()
    line = refusal(cluster.new_broker(tmp_path / "other", 4))
    assert "cluster" in line
    assert children(f"{cluster.ensemble.address}/cluster", "/kbroker/brokers") == ["1", "2", "3"]


def test_a_chroot_without_the_clusters_metadata(cluster: Cluster, tmp_path: Path) -> None:
    """A wrong chroot, or a ZooKeeper that was set up anew: the broker would forget its topics."""
    broker = cluster.new_broker(tmp_path / "own", 4, connect=f"{cluster.ensemble.address}/right")
    broker.start()
    broker.stop()
    wrong = cluster.new_broker(tmp_path / "own", 4, connect=f"{cluster.ensemble.address}/wrong")
    assert "restore it there" in refusal(wrong)
