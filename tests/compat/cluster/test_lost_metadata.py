"""ZooKeeper loses its data, or has another cluster, while the brokers run: they stop, and keep every log.

Then the operator puts the data of before back, and the cluster goes on with all records.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kazoo.client import KazooClient
from kazoo.protocol.states import ZnodeStat

from tests.compat.cluster.cluster import IS_KBROKER, Cluster, running_cluster
from tests.compat.cluster.ensemble import Ensemble
from tests.compat.cluster.work import create_topic
from tests.compat.support import DEADLINE_S, EXTERNAL_BOOTSTRAP, BrokerProcess, eventually
from tests.sampling import runs_in_third

pytestmark = pytest.mark.skipif(not IS_KBROKER or bool(EXTERNAL_BOOTSTRAP), reason="not run: needs its own cluster")

PARTITIONS = 3
RECORDS = [b"%d" % number for number in range(60)]
# A deleted log is gone after this time.
DELETE_DELAY_MS = "100"


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path, servers=1, log_segment_delete_delay_ms=DELETE_DELAY_MS) as cluster:
        yield cluster


class Data:
    """A topic with records, and the logs that each broker has before ZooKeeper loses its data."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._topic = create_topic(cluster, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        for number, value in enumerate(RECORDS):
            producer.produce(self._topic, value, partition=number % PARTITIONS)
        assert producer.flush(DEADLINE_S) == 0
        cluster.wait_until_healthy()
        self._sizes = {node_id: self._log_sizes(node_id) for node_id in cluster.brokers}

    def _log_sizes(self, node_id: int) -> dict[str, int]:
        """Return the size of each log, whether it is in place or set aside."""
        found = self._cluster.brokers[node_id].data_dir.glob(f"{self._topic}-*/*.log")
        logs = [
            (path.parent.name.partition(".")[0], path) for path in found if not path.parent.name.endswith("-delete")
        ]
        return {name: path.stat().st_size for name, path in logs}

    def check_logs(self) -> None:
        assert {node_id: self._log_sizes(node_id) for node_id in self._cluster.brokers} == self._sizes

    def check_records(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._cluster.bootstrap, "group.id": "check"})
        consumer.assign([TopicPartition(self._topic, index, 0) for index in range(PARTITIONS)])
        values: list[bytes] = []

        def has_all() -> bool:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                values.append(message.value())
            return len(values) >= len(RECORDS)

        eventually(has_all, "all records")
        consumer.close()
        assert sorted(values) == sorted(RECORDS)
        names = [path.name for broker in self._cluster.brokers.values() for path in broker.data_dir.iterdir()]
        assert not [name for name in names if name.endswith(("-stray", "-delete"))]


def replace_data(ensemble: Ensemble, restored: Path | None = None) -> Path:
    """Stop all servers, and let them start without data, or with that of `restored`. Returns where their data is."""
    ensemble.kill()
    kept = ensemble.servers[0].directory.parent / ("lost" if restored is None else "replaced")
    kept.mkdir()
    for index, server in enumerate(ensemble.servers):
        shutil.move(server.directory / "version-2", kept / str(index))
        if restored is not None:
            shutil.move(restored / str(index), server.directory / "version-2")
    ensemble.start()
    if restored is None:
        # Clients that have seen more than the new servers are refused until there was another election.
        ensemble.kill()
        ensemble.start()
    return kept


def wait_until_stopped(cluster: Cluster, *node_ids: int) -> None:
    for node_id in node_ids:
        broker = cluster.brokers[node_id]
        assert broker.wait() == 1
        cluster.stopped.add(node_id)
        (reason,) = [line for line in broker.errors.splitlines() if "the broker stops" in line]
        assert "cluster" in reason
        assert "restore" in reason
        assert "Traceback" not in broker.errors


def check_refused(cluster: Cluster, node_id: int) -> None:
    """Check that a broker does not start with the metadata of another cluster."""
    broker = cluster.brokers[node_id]
    broker.launch()
    assert broker.wait() == 1
    assert "belongs to cluster" in broker.errors


@pytest.fixture
def intruder(own_cluster: Cluster, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A fourth broker, with an empty disk."""
    broker = own_cluster.new_broker(tmp_path / "broker-4", 4)
    yield broker
    broker.end()


@runs_in_third(0)
def test_zookeeper_loses_its_data_and_an_empty_broker_starts(own_cluster: Cluster, intruder: BrokerProcess) -> None:
    data = Data(own_cluster)
    # The running brokers find the new cluster, not the empty ensemble.
    for node_id in own_cluster.brokers:
        own_cluster.pause(node_id)
    lost = replace_data(own_cluster.ensemble)
    intruder.start()
    for node_id in own_cluster.brokers:
        own_cluster.resume(node_id)
    wait_until_stopped(own_cluster, 1, 2, 3)
    check_refused(own_cluster, 1)
    data.check_logs()
    intruder.kill()
    replace_data(own_cluster.ensemble, lost)
    own_cluster.start()
    own_cluster.wait_until_healthy()
    data.check_records()


@runs_in_third(1)
def test_an_operator_removes_meta_properties_of_one_broker(own_cluster: Cluster) -> None:
    data = Data(own_cluster)
    own_cluster.kill(1)
    own_cluster.pause(2)
    own_cluster.pause(3)
    lost = replace_data(own_cluster.ensemble)
    owner = own_cluster.brokers[1].data_dir / "meta.properties"
    owner.rename(owner.with_suffix(".removed"))
    own_cluster.start(1)
    own_cluster.resume(2)
    own_cluster.resume(3)
    wait_until_stopped(own_cluster, 2, 3)
    data.check_logs()
    # Its own logs are set aside, and come back.
    assert list(own_cluster.brokers[1].data_dir.glob("*-stray"))
    own_cluster.kill(1)
    owner.with_suffix(".removed").rename(owner)
    replace_data(own_cluster.ensemble, lost)
    own_cluster.start()
    own_cluster.wait_until_healthy()
    data.check_records()


@runs_in_third(2)
def test_the_nodes_of_the_chroot_are_replaced(own_cluster: Cluster, intruder: BrokerProcess) -> None:
    """The sessions go on: only the nodes are others."""
    data = Data(own_cluster)
    root = f"/{own_cluster.connect.partition('/')[2]}/kbroker"
    zookeeper = KazooClient(own_cluster.ensemble.address)
    zookeeper.start(DEADLINE_S)
    nodes = _nodes(zookeeper, root)
    removal = zookeeper.transaction()
    for path in reversed(nodes):
        removal.delete(path)
    assert all(result is True for result in removal.commit())
    intruder.start()
    wait_until_stopped(own_cluster, 1, 2, 3)
    check_refused(own_cluster, 2)
    data.check_logs()
    intruder.kill()
    zookeeper.delete(root, recursive=True)
    for path, (value, stat) in nodes.items():
        if not stat.ephemeralOwner:
            zookeeper.create(path, value)
    # Its version is the last broker epoch.
    for _ in range(nodes[f"{root}/broker-epoch"][1].version):
        zookeeper.set(f"{root}/broker-epoch", b"")
    zookeeper.stop()
    own_cluster.start()
    own_cluster.wait_until_healthy()
    data.check_records()


def _nodes(zookeeper: KazooClient, path: str) -> dict[str, tuple[bytes, ZnodeStat]]:
    """Return the nodes below a path with their data, parents first."""
    nodes = {path: zookeeper.get(path)}
    for name in sorted(zookeeper.get_children(path)):
        nodes.update(_nodes(zookeeper, f"{path}/{name}"))
    return nodes
