"""A broker that must not join says why in one line, and changes nothing in ZooKeeper or in its data directory."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kbroker.cli.doctor.host import ForeignNodes, read_cluster
from kbroker.config import BrokerConfig
from kbroker.config.broker.zookeeper_settings import zookeeper_settings
from protocol.apis import ApiKey
from protocol.fast.replica_fetch import ReplicaFetchRequest, encode_replica_fetch_request
from protocol.framing import encode_request_header
from protocol.messages.k01_fetch import FetchRequest
from protocol.messages.k19_create_topics import CreatableTopic, CreateTopicsRequest
from protocol.schema.codec import encode
from scripts.ports import free_ports
from tests.compat.hostile.raw_client import CREATE_TOPICS_VERSION, RawClient, framed
from tests.compat.support import BrokerProcess, eventually, unique
from tests.compat.zookeeper.server import MIN_SESSION_S, ZooKeeperServer

SETTINGS = {"zookeeper.session.timeout.ms": str(round(MIN_SESSION_S * 1000))}
DIGEST = "kbroker:right"
Tree = dict[str, tuple[bytes, int]]


class Chroot:
    """A chroot of its own in ZooKeeper, below which a test may look."""

    def __init__(self, server: ZooKeeperServer, client: KazooClient) -> None:
        self.path = f"/{unique('refusals')}"
        self.connect = f"{server.address}{self.path}"
        self.client = client

    def tree(self, path: str = "") -> Tree:
        """Return the data and the version of a node and of all nodes below it."""
        path = path or self.path
        if self.client.exists(path) is None:
            return {}
        data, stat = self.client.get(path)
        nodes: Tree = {path: (data, stat.version)}
        for name in self.client.get_children(path):
            nodes |= self.tree(f"{path}/{name}")
        return nodes

    def broker(self, directory: Path, node_id: int = 1, **settings: str) -> BrokerProcess:
        directory.mkdir(exist_ok=True)
        own = {"node.id": str(node_id), "zookeeper.connect": self.connect}
        return BrokerProcess(directory, SETTINGS | own | with_dots(settings))


@pytest.fixture
def chroot(apache_zookeeper: ZooKeeperServer) -> Iterator[Chroot]:
    client = KazooClient(apache_zookeeper.address, auth_data=[("digest", DIGEST)])
    client.start()
    yield Chroot(apache_zookeeper, client)
    client.stop()


def with_dots(settings: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "."): value for name, value in settings.items()}


def create_topic(broker: BrokerProcess, partitions: int, replicas: int) -> None:
    topic = CreatableTopic(name="t", num_partitions=partitions, replication_factor=replicas)
    with RawClient(broker.bootstrap) as client:
        client.try_send(framed(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), CREATE_TOPICS_VERSION))
        assert client.try_receive() is not None


def files(directory: Path) -> set[str]:
    """Return the files of a data directory, without the lock, which only says that nobody uses it."""
    return {str(path.relative_to(directory)) for path in directory.rglob("*")} - {".lock"}


def contents(directory: Path) -> dict[Path, bytes]:
    """Return the bytes of all files of a data directory, without the lock: it names the last process that used it."""
    return {
        path.relative_to(directory): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def refusal(directory: Path, connect: str, node_id: int = 1, **settings: str) -> str:
    """Start a broker that must not run, and return the only line that it prints."""
    return refusal_of(refused_start(directory, connect, node_id, **settings))


def refused_start(directory: Path, connect: str, node_id: int, **settings: str) -> subprocess.Popen[str]:
    own = {"node.id": str(node_id), "zookeeper.connect": connect, "zookeeper.connection.timeout.ms": "5000"}
    command = [sys.executable, "-m", "kbroker", "start", "--log-level", "error", "--data-dir", str(directory)]
    command += ["--listen", f"127.0.0.1:{free_ports()}"]
    for name, value in (SETTINGS | own | with_dots(settings)).items():
        command += ["--set", f"{name}={value}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def refusal_of(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("kbroker: the broker cannot run: ")
    return line.removeprefix("kbroker: the broker cannot run: ")


def test_a_broker_that_must_not_join_a_cluster(chroot: Chroot, tmp_path: Path) -> None:
    connect = chroot.connect
    secured = {"kbroker_zookeeper_digest": DIGEST, "zookeeper_set_acl": "true"}
    # Its registration must not end while the machine is busy: the next broker would get its id.
    broker = chroot.broker(tmp_path / "first", **secured, zookeeper_session_timeout_ms="20000")
    try:
        broker.start()
        # A broker opens its logs before it registers.
        create_topic(broker, 1, 1)
        before, nothing = chroot.tree(), tmp_path / "new"
        # The id of a running broker. The directory can then be used with another id.
        line = refusal(nothing, connect, kbroker_zookeeper_digest=DIGEST)
        assert line == f"another broker of this cluster has node.id=1: it serves {broker.bootstrap}"
        assert files(nothing) == set()
        # The data directory of a running broker, and of another broker.
        line = refusal(broker.data_dir, connect, 2, kbroker_zookeeper_digest=DIGEST)
        assert line == f"{broker.data_dir} is in use by another broker"
        # Wrong credentials.
        for credentials in ({}, {"kbroker_zookeeper_digest": "kbroker:wrong"}):
            line = refusal(nothing, connect, 2, **credentials)
            assert line.startswith(f"cannot use ZooKeeper at {connect}: AccessDenied {chroot.path}/")
            assert line.endswith(" (see kbroker.zookeeper.digest)")
            assert files(nothing) == set()
        broker.stop()
        own_files = files(broker.data_dir)
        line = refusal(broker.data_dir, connect, 2, kbroker_zookeeper_digest=DIGEST)
        assert line == f"{broker.data_dir} belongs to node.id=1; this broker has node.id=2"
        # The directory of another cluster, and a chroot without a cluster.
        other = f"{connect}-other"
        second = chroot.broker(tmp_path / "second", zookeeper_connect=other)
        second.start()
        second.stop()
        other_before = chroot.tree(f"{chroot.path}-other")
        assert "; this broker is in " in refusal(broker.data_dir, other)
        assert chroot.tree(f"{chroot.path}-other") == other_before
        missing = f"{connect}-missing"
        line = refusal(broker.data_dir, missing)
        assert f"the metadata of its topics is missing from ZooKeeper at {missing}: restore it there" in line
        assert chroot.client.exists(f"{chroot.path}-missing") is None
        assert files(broker.data_dir) == own_files
        after = chroot.tree()
        ended = {f"{chroot.path}/kbroker/brokers/1", f"{chroot.path}/kbroker/controller"}
        assert after == {path: node for path, node in before.items() if path not in ended}
    finally:
        broker.end()


def test_two_brokers_with_each_others_directories(chroot: Chroot, tmp_path: Path) -> None:
    """They are started at the same time, so neither finds the other one in the cluster."""
    brokers = {
        node_id: chroot.broker(tmp_path / str(node_id), node_id, default_replication_factor="2") for node_id in (1, 2)
    }
    try:
        for broker in brokers.values():
            broker.launch()
        for broker in brokers.values():
            eventually(broker.ready, "a broker is ready")
        create_topic(brokers[1], 3, 2)
        for broker in brokers.values():
            broker.stop()
        before = chroot.tree()
        data = {node_id: contents(broker.data_dir) for node_id, broker in brokers.items()}
        assert all(any("t-" in path.parts[-2] for path in files if len(path.parts) > 1) for files in data.values())
        swapped = {1: brokers[2].data_dir, 2: brokers[1].data_dir}
        starts = {node_id: refused_start(directory, chroot.connect, node_id) for node_id, directory in swapped.items()}
        for node_id, start in starts.items():
            owner = 3 - node_id
            line = f"{swapped[node_id]} belongs to node.id={owner}; this broker has node.id={node_id}"
            assert refusal_of(start) == line
        assert chroot.tree() == before
        assert {node_id: contents(broker.data_dir) for node_id, broker in brokers.items()} == data
    finally:
        for broker in brokers.values():
            broker.end()


def test_an_ensemble_that_cannot_be_reached_is_one_error(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports()}"
    line = refusal(tmp_path / "data", address, zookeeper_connection_timeout_ms="300")
    assert line.startswith(f"cannot connect to ZooKeeper at {address} in 0.3 s: ")


FOREIGN = {
    "Kafka": ({"/brokers/ids": b"", "/cluster/id": b"{}", "/controller_epoch": b"7"}, "Apache Kafka cluster"),
    "another program": ({"/kbroker/state": b"x"}, "a node /kbroker of another program, without a kbroker cluster"),
}
GARBAGE = ("cluster-id", "changes", "partitions/new")


@pytest.mark.parametrize("program", FOREIGN)
def test_a_tree_of_another_program(chroot: Chroot, tmp_path: Path, program: str) -> None:
    nodes, message = FOREIGN[program]
    for path, data in nodes.items():
        chroot.client.create(chroot.path + path, data, makepath=True)
    before = chroot.tree()
    assert message in refusal(tmp_path, chroot.connect)
    with pytest.raises(ForeignNodes, match=message):  # what doctor reports
        read_cluster(zookeeper_settings(BrokerConfig.load({"zookeeper.connect": chroot.connect}).values))
    assert chroot.tree() == before
    assert files(tmp_path) == set()


@pytest.mark.parametrize("below", ["", "/topics/kbroker"])
def test_a_chroot_inside_the_metadata_of_a_cluster(chroot: Chroot, tmp_path: Path, below: str) -> None:
    """The cluster's own node is named like the usual chroot, so it is easily mistaken for one."""
    chroot.client.create(f"{chroot.path}/kbroker/cluster-id", makepath=True)
    before = chroot.tree()
    line = refusal(tmp_path, f"{chroot.connect}/kbroker{below}")
    assert (
        f"is inside the metadata of the kbroker cluster with zookeeper.connect={chroot.connect}: use that one" in line
    )
    assert chroot.tree() == before
    assert files(tmp_path) == set()


def test_nodes_with_data_of_another_program(chroot: Chroot, tmp_path: Path) -> None:
    broker = chroot.broker(tmp_path)
    broker.start()
    broker.stop()
    intact = chroot.tree()
    for name in GARBAGE:
        path = f"{chroot.path}/kbroker/{name}"
        if path in intact:
            chroot.client.set(path, b"\xff")
        else:
            chroot.client.create(path, b"\xff")
        before = chroot.tree()
        line = refusal(broker.data_dir, chroot.connect)
        assert line.startswith(f"/kbroker/{name} in the coordination service has data of another program (")
        # The session numbers of starts may have been counted, nothing else.
        changed = {node for node, content in chroot.tree().items() if before.get(node) != content}
        assert changed <= {f"{chroot.path}/kbroker/broker-epoch"}
        if path in intact:
            chroot.client.set(path, intact[path][0])
        else:
            chroot.client.delete(path)
    broker.start()
    broker.stop()


def test_strangers_at_the_listeners(chroot: Chroot, tmp_path: Path) -> None:
    """A client that poses as a replica, and requests for brokers' APIs."""
    port = free_ports()
    first = chroot.broker(tmp_path / "first", kbroker_inter_broker_listener=f"127.0.0.1:{port}")
    try:
        first.start()
        fetch = bytes(encode_replica_fetch_request(ReplicaFetchRequest(2, 1, 0, 1, 1 << 20, 0, 0)))
        strangers = [
            (first.bootstrap, ApiKey.FETCH, 17, fetch, "Fetch of a follower from another broker"),
            *(
                (first.bootstrap, ApiKey.FETCH, version, encode(FetchRequest(replica_id=2), version), "of a follower")
                for version in (4, 11, 14)  # before KIP-903
            ),
            (first.bootstrap, ApiKey.ALTER_PARTITION, 3, b"", 'reason="API not served" api=AlterPartition'),
            (first.bootstrap, ApiKey.BROKER_HEARTBEAT, 1, b"", 'reason="API not served" api=BrokerHeartbeat'),
            (first.bootstrap, ApiKey.ENVELOPE, 0, b"", 'reason="API not served" api=Envelope'),
            (f"127.0.0.1:{port}", ApiKey.METADATA, 12, b"", "request before the handshake"),
        ]
        for address, api, version, body, expected in strangers:
            with RawClient(address) as client:
                frame = encode_request_header(api, version, 1, "stranger") + body
                client.try_send(len(frame).to_bytes(4) + frame)
                # The listener for brokers says why, and then closes the connection, too.
                while client.try_receive() is not None:
                    pass
            eventually(lambda text=expected: text in first.errors, f"the log has {expected!r}")  # type: ignore[misc]
        assert "Traceback" not in first.errors
    finally:
        first.end()


def test_a_broker_with_another_secret_does_not_register(chroot: Chroot, tmp_path: Path) -> None:
    """The others would reject all its connections."""
    first = chroot.broker(tmp_path)
    try:
        first.start()
        path = f"{chroot.path}/kbroker/secret"
        secret = chroot.client.get(path)[0]
        chroot.client.set(path, secret.replace(b'"secret":"', b'"secret":"00'))
        refused = (
            "/kbroker/secret has another secret than the one with which the brokers of this cluster have registered"
        )
        assert refusal(tmp_path / "second", chroot.connect, 2).startswith(refused)
        # It is lost, and the second broker creates another one.
        chroot.client.delete(path)
        assert refusal(tmp_path / "second", chroot.connect, 2).startswith(refused)
        assert chroot.client.get_children(f"{chroot.path}/kbroker/registrations") == ["1"]
        assert chroot.client.get(f"{chroot.path}/kbroker/broker-epoch")[1].version == 1
    finally:
        first.end()
