"""The checks of `kbroker doctor` for a broker of a cluster: each fails once."""

import ssl
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.doctor.cluster_checks import check_cluster
from kbroker.cli.doctor.host import (
    OK,
    PROBLEM,
    WARNING,
    CheckContext,
    CheckResult,
    ClusterUnreadable,
    ForeignNodes,
    Host,
    StoredCluster,
)
from kbroker.config import BrokerConfig
from kbroker.metadata.image import BrokerEndpoint, BrokerRegistration
from kbroker.runtime.real_disk import RealDisk
from kbroker.storage import metadata_files
from tests.unit.support.certificates import CertificateAuthority

CONNECT = "zk1:2181,zk2:2181,zk3:2181/kbroker"
REFUSED = OSError(111, "Connection refused")
CONFIGS = {"default.replication.factor": "3", "min.insync.replicas": "2", "node.id": "1"}


def registered(node_id: int, rack: str | None = None) -> BrokerRegistration:
    host = f"host{node_id}"
    return BrokerRegistration(node_id, host, 9092, rack, inter_broker_host=host, inter_broker_port=9093)


BROKERS = {node_id: registered(node_id) for node_id in (1, 2, 3)}


class ClusterHost(Host):
    """`down`: the HOST:PORT that refuse connections. `configs`: by the address of a broker."""

    def __init__(
        self,
        cluster: StoredCluster | Exception,
        down: tuple[str, ...] = (),
        configs: dict[str, dict[str, str | None]] | None = None,
    ) -> None:
        self.cluster = cluster
        self.down = down
        self.configs = configs or {}

    def connect_error(self, host: str, port: int, tls: tuple[ssl.SSLContext, str] | None = None) -> OSError | None:
        if tls is not None:
            assert tls[1] == f"{host}.example"
            return ssl.SSLCertVerificationError(1, "certificate has expired")
        return REFUSED if f"{host}:{port}" in self.down else None

    def read_cluster(self, settings: Any) -> StoredCluster:
        assert (settings.hosts[0], settings.chroot) == ("zk1:2181", "/kbroker")
        if isinstance(self.cluster, Exception):
            raise self.cluster
        return self.cluster

    def broker_configs(self, address: str, node_id: int) -> dict[str, str | None] | None:
        return self.configs.get(address)


def results(data: Path, cluster: StoredCluster | Exception, running: bool = True, **fields: Any) -> list[CheckResult]:
    own = {"listeners": "PLAINTEXT://127.0.0.1:9092", "zookeeper.connect": CONNECT, "log.dirs": str(data)}
    config = BrokerConfig.load({**own, **CONFIGS, **fields.pop("set", {})})
    disk = RealDisk()
    lock = disk.lock(str(data / ".lock")) if running else None
    try:
        found = list(check_cluster(CheckContext(ClusterHost(cluster, **fields), disk, config)))
    finally:
        if lock is not None:
            lock.close()
    assert all(bool(result.advice) == (result.status != OK) for result in found)
    return found


def failures(data: Path, cluster: StoredCluster | Exception, **fields: Any) -> list[tuple[str, str, str]]:
    return [result[:3] for result in results(data, cluster, **fields) if result.status != OK]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The directory of broker 1 of the cluster "abc"."""
    properties = metadata_files.MetaProperties("abc", 1, "directory")
    metadata_files.write_meta_properties(RealDisk(), str(tmp_path), properties)
    return tmp_path


def test_a_healthy_cluster(data: Path) -> None:
    shared: dict[str, str | None] = {"min.insync.replicas": "2"}
    configs = {f"host{node_id}:9092": shared for node_id in BROKERS}
    found = results(data, StoredCluster("abc", BROKERS), configs=configs)
    assert {result.status for result in found} == {OK}
    assert [result.check for result in found] == ["ZooKeeper", "cluster", "other brokers", "replication", "configs"]
    assert found[1].message == "abc, with these brokers registered: 1, 2, 3"


def test_a_broker_without_a_cluster_is_not_checked(data: Path) -> None:
    config = BrokerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:9092", "log.dirs": str(data)})
    assert not list(check_cluster(CheckContext(Host(), RealDisk(), config)))


@pytest.mark.parametrize(("down", "status"), [(("zk1:2181",), WARNING), (("zk1:2181", "zk3:2181"), PROBLEM)])
def test_servers_that_are_down(data: Path, down: tuple[str, ...], status: str) -> None:
    (failure,) = failures(data, StoredCluster("abc", BROKERS), down=down)
    assert failure[:2] == ("ZooKeeper", status)
    assert failure[2].startswith(f"{len(down)} of 3 servers cannot be reached: zk1:2181: Connection refused")


def test_servers_without_a_port(data: Path) -> None:
    found = failures(
        data,
        StoredCluster("abc", BROKERS),
        down=("zk1:2181", "::1:2181"),
        set={"zookeeper.connect": "zk1,[::1]/kbroker"},
    )
    text = "2 of 2 servers cannot be reached: zk1:2181: Connection refused; [::1]:2181: Connection refused"
    assert ("ZooKeeper", PROBLEM, text) in found


def test_zookeeper_that_cannot_be_read(data: Path) -> None:
    error = ClusterUnreadable("AccessDenied /kbroker/cluster-id (see kbroker.zookeeper.digest)")
    assert failures(data, error) == [("ZooKeeper", PROBLEM, f"{CONNECT} cannot be read: {error}")]


def test_the_nodes_of_another_program(data: Path) -> None:
    error = ForeignNodes("ZooKeeper has the metadata of an Apache Kafka cluster")
    assert failures(data, error) == [("cluster", PROBLEM, str(error))]


@pytest.mark.parametrize(("stored", "text"), [("xyz", "cluster xyz is"), ("", "no cluster is")])
def test_the_directory_of_another_cluster(data: Path, stored: str, text: str) -> None:
    found = failures(data, StoredCluster(stored, BROKERS))
    assert ("cluster", PROBLEM, f"{data} belongs to cluster abc, but {text} at {CONNECT}") in found


def test_an_id_that_is_in_use(data: Path) -> None:
    message = "a broker with node.id=1 is registered, and serves [::1]:9092"
    brokers = {**BROKERS, 1: registered(1)._replace(host="::1")}
    assert failures(data, StoredCluster("abc", brokers), running=False) == [("cluster", PROBLEM, message)]


def test_a_broker_whose_certificate_has_expired(data: Path) -> None:
    authority = CertificateAuthority(data / "certificates")
    stores = {"keystore": authority.sign("broker"), "truststore": authority.ca}
    own = {f"ssl.{store}.location": str(file) for store, file in stores.items()}
    own |= {f"ssl.{store}.type": "PEM" for store in stores}
    endpoint = BrokerEndpoint("SSL", "host3.example", 9094, "SSL")
    brokers = {**BROKERS, 3: BROKERS[3]._replace(endpoints=(endpoint,), inter_broker_listener="SSL")}
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9094"}
    found = failures(data, StoredCluster("abc", brokers), set=own | listeners)
    message = "broker 3 cannot be reached at its listener for brokers at host3:9093: certificate has expired"
    assert ("other brokers", PROBLEM, message) in found


def test_a_broker_that_cannot_be_reached(data: Path) -> None:
    message = "broker 3 cannot be reached at its listener for brokers at host3:9093: Connection refused"
    found = failures(data, StoredCluster("abc", BROKERS), down=("host3:9093", "host1:9092"))
    assert found == [("other brokers", PROBLEM, message)]


@pytest.mark.parametrize(
    ("racks", "own", "message"),
    [(("a", None), "a", "brokers without broker.rack: 3"), (("a", "b"), "a", "a has 2 brokers, b has 1 broker")],
)
def test_racks_that_are_uneven(data: Path, racks: tuple[str | None, str | None], own: str, message: str) -> None:
    brokers = {2: registered(2, racks[0]), 3: registered(3, racks[1])}
    assert failures(data, StoredCluster("abc", brokers), set={"broker.rack": own}) == [("racks", WARNING, message)]


@pytest.mark.parametrize(
    ("factor", "min_isr", "brokers", "messages"),
    [
        (3, 2, 2, ["offsets.topic.replication.factor=3, transaction.state.log.replication.factor=3, but 2 brokers",
                   "default.replication.factor=3, min.insync.replicas=2, but 2 brokers registered"]),
        (1, 1, 3, ["default.replication.factor=1, min.insync.replicas=1"]),
        (3, 3, 3, ["default.replication.factor=3, min.insync.replicas=3"]),
        (3, 1, 3, ["default.replication.factor=3, min.insync.replicas=1"]),
        (2, 3, 3, ["default.replication.factor=2, min.insync.replicas=3"]),
    ],
)  # fmt: skip
def test_what_new_topics_get(data: Path, factor: int, min_isr: int, brokers: int, messages: list[str]) -> None:
    stored = StoredCluster("abc", {node_id: registered(node_id) for node_id in range(1, brokers + 1)})
    settings = {"default.replication.factor": str(factor), "min.insync.replicas": str(min_isr)}
    found = failures(data, stored, set=settings)
    assert [failure[:2] for failure in found] == [("replication", WARNING)] * len(messages)
    for failure, message in zip(found, messages, strict=True):
        assert failure[2].startswith(message)


def test_configs_that_differ_between_brokers(data: Path) -> None:
    """A broker that does not respond is not compared. Broker 2 has an IPv6 address."""
    configs: dict[str, dict[str, str | None]] = {
        "host1:9092": {"min.insync.replicas": "2", "num.partitions": "1"},
        "[::2]:9092": {"min.insync.replicas": "1", "num.partitions": "1"},
    }
    brokers = {**BROKERS, 2: registered(2)._replace(host="::2")}
    (failure,) = failures(data, StoredCluster("abc", brokers), configs=configs)
    assert failure == ("configs", WARNING, "min.insync.replicas differs: 2 on 1; 1 on 2")
