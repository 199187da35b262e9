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


@pytest.fixture
def zookeeper_client(apache_zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(apache_zookeeper.address, auth_data=[("digest", DIGEST)])
    client.start()
    yield client
    client.stop()


@pytest.fixture
def chroot(apache_zookeeper: ZooKeeperServer) -> str:
    return f"/{unique('refusals')}"


def tree(client: KazooClient, path: str) -> Tree:
    """Return the data and the version of a node and of all nodes below it."""
    if client.exists(path) is None:
        return {}
    data, stat = client.get(path)
    nodes: Tree = {path: (data, stat.version)}
    for name in client.get_children(path):
        nodes |= tree(client, f"{path}/{name}")
    return nodes


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
    process = refused_start(directory, connect, node_id, **settings)
    return refusal_of(process)


def refused_start(directory: Path, connect: str, node_id: int, **settings: str) -> subprocess.Popen[str]:
    own = {"node.id": str(node_id), "zookeeper.connect": connect, "zookeeper.connection.timeout.ms": "5000"}
    command = [sys.executable, "-m", "kbroker", "start", "--log-level", "error", "--data-dir", str(directory)]
    command += ["--listen", f"127.0.0.1:{free_ports()}"]
    for name, value in {
        **SETTINGS,
        **own,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }.items():
        command += ["--set", f"{name}={value}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def refusal_of(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("kbroker: the broker cannot run: ")
    return line.removeprefix("kbroker: the broker cannot run: ")


def test_a_broker_that_must_not_join_a_cluster(
    apache_zookeeper: ZooKeeperServer, zookeeper_client: KazooClient, chroot: str, tmp_path: Path
) -> None:
    connect = f"{apache_zookeeper.address}{chroot}"
    secured = {"kbroker.zookeeper.digest": DIGEST, "zookeeper.set.acl": "true"}
    (tmp_path / "first").mkdir()
    # Its registration must not end while the machine is busy: the next broker would get its id.
    own = {"node.id": "1", "zookeeper.connect": connect, "zookeeper.session.timeout.ms": "20000"}
    broker = BrokerProcess(tmp_path / "first", {**SETTINGS, **secured, **own})
    try:
        broker.start()
        # A broker opens its logs before it registers.
        with RawClient(broker.bootstrap) as client:
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            client.try_send(framed(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), CREATE_TOPICS_VERSION))
            assert client.try_receive() is not None
        before, nothing = tree(zookeeper_client, chroot), tmp_path / "new"
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
            assert line.startswith(f"cannot use ZooKeeper at {connect}: AccessDenied {chroot}/")
            assert line.endswith(" (see kbroker.zookeeper.digest)")
            assert files(nothing) == set()
        broker.stop()
        own_files = files(broker.data_dir)
        line = refusal(broker.data_dir, connect, 2, kbroker_zookeeper_digest=DIGEST)
        assert line == f"{broker.data_dir} belongs to node.id=1; this broker has node.id=2"
        # The directory of another cluster, and a chroot without a cluster.
        other = f"{apache_zookeeper.address}{chroot}-other"
        (tmp_path / "second").mkdir()
        second = BrokerProcess(tmp_path / "second", {**SETTINGS, "node.id": "1", "zookeeper.connect": other})
        second.start()
        second.stop()
        other_before = tree(zookeeper_client, f"{chroot}-other")
        assert "; this broker is in " in refusal(broker.data_dir, other)
        assert tree(zookeeper_client, f"{chroot}-other") == other_before
        missing = f"{apache_zookeeper.address}{chroot}-missing"
        line = refusal(broker.data_dir, missing)
        assert f"the metadata of its topics is missing from ZooKeeper at {missing}: restore it there" in line
        assert zookeeper_client.exists(f"{chroot}-missing") is None
        assert files(broker.data_dir) == own_files
        after = tree(zookeeper_client, chroot)
        ended = {f"{chroot}/kbroker/brokers/1", f"{chroot}/kbroker/controller"}
        assert after == {path: node for path, node in before.items() if path not in ended}
    finally:
        broker.end()


def test_two_brokers_with_each_others_directories(
    apache_zookeeper: ZooKeeperServer, zookeeper_client: KazooClient, chroot: str, tmp_path: Path
) -> None:
    """They are started at the same time, so neither finds the other one in the cluster."""
    connect = f"{apache_zookeeper.address}{chroot}"
    brokers = {}
    for node_id in (1, 2):
        (tmp_path / str(node_id)).mkdir()
        own = {"node.id": str(node_id), "zookeeper.connect": connect, "default.replication.factor": "2"}
        brokers[node_id] = BrokerProcess(tmp_path / str(node_id), {**SETTINGS, **own})
    try:
        for broker in brokers.values():
            broker.launch()
        for broker in brokers.values():
            eventually(broker.ready, "a broker is ready")
        with RawClient(brokers[1].bootstrap) as client:
            topic = CreatableTopic(name="t", num_partitions=3, replication_factor=2)
            client.try_send(framed(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), CREATE_TOPICS_VERSION))
            assert client.try_receive() is not None
        for broker in brokers.values():
            broker.stop()
        before = tree(zookeeper_client, chroot)
        data = {node_id: contents(broker.data_dir) for node_id, broker in brokers.items()}
        assert all(any("t-" in path.parts[-2] for path in files if len(path.parts) > 1) for files in data.values())
        swapped = {1: brokers[2].data_dir, 2: brokers[1].data_dir}
        starts = {node_id: refused_start(directory, connect, node_id) for node_id, directory in swapped.items()}
        for node_id, start in starts.items():
            owner = 3 - node_id
            line = f"{swapped[node_id]} belongs to node.id={owner}; this broker has node.id={node_id}"
            assert refusal_of(start) == line
        assert tree(zookeeper_client, chroot) == before
        assert {node_id: contents(broker.data_dir) for node_id, broker in brokers.items()} == data
    finally:
        for broker in brokers.values():
            broker.end()


FOREIGN = {
    "Kafka": ({"/brokers/ids": b"", "/cluster/id": b"{}", "/controller_epoch": b"7"}, "Apache Kafka cluster"),
    "another program": ({"/kbroker/state": b"x"}, "a node /kbroker of another program, without a kbroker cluster"),
}
GARBAGE = ("cluster-id", "changes", "partitions/new")


@pytest.mark.parametrize("program", FOREIGN)
def test_a_tree_of_another_program(
    apache_zookeeper: ZooKeeperServer, zookeeper_client: KazooClient, chroot: str, tmp_path: Path, program: str
) -> None:
    nodes, message = FOREIGN[program]
    for path, data in nodes.items():
        zookeeper_client.create(chroot + path, data, makepath=True)
    before = tree(zookeeper_client, chroot)
    connect = f"{apache_zookeeper.address}{chroot}"
    assert message in refusal(tmp_path, connect)
    with pytest.raises(ForeignNodes, match=message):  # what doctor reports
        read_cluster(zookeeper_settings(BrokerConfig.load({"zookeeper.connect": connect}).values))
    assert tree(zookeeper_client, chroot) == before
    assert files(tmp_path) == set()


@pytest.mark.parametrize("below", ["", "/topics/kbroker"])
def test_a_chroot_inside_the_metadata_of_a_cluster(
    apache_zookeeper: ZooKeeperServer, zookeeper_client: KazooClient, chroot: str, tmp_path: Path, below: str
) -> None:
    """The cluster's own node is named like the usual chroot, so it is easily mistaken for one."""
    zookeeper_client.create(f"{chroot}/kbroker/cluster-id", makepath=True)
    before = tree(zookeeper_client, chroot)
    line = refusal(tmp_path, f"{apache_zookeeper.address}{chroot}/kbroker{below}")
    assert f"is inside the metadata of the kbroker cluster with zookeeper.connect={apache_zookeeper.address}" in line
    assert f"{chroot}: use that one" in line
    assert tree(zookeeper_client, chroot) == before
    assert files(tmp_path) == set()


def test_nodes_with_data_of_another_program(
    apache_zookeeper: ZooKeeperServer, zookeeper_client: KazooClient, chroot: str, tmp_path: Path
) -> None:
    connect = f"{apache_zookeeper.address}{chroot}"
    broker = BrokerProcess(tmp_path, {**SETTINGS, "node.id": "1", "zookeeper.connect": connect})
    broker.start()
    broker.stop()
    intact = tree(zookeeper_client, chroot)
    for name in GARBAGE:
        path = f"{chroot}/kbroker/{name}"
        if path in intact:
            zookeeper_client.set(path, b"\xff")
        else:
            zookeeper_client.create(path, b"\xff")
        before = tree(zookeeper_client, chroot)
        line = refusal(broker.data_dir, connect)
        assert line.startswith(f"/kbroker/{name} in the coordination service has data of another program (")
        # The session numbers of starts may have been counted, nothing else.
        changed = {node for node, content in tree(zookeeper_client, chroot).items() if before.get(node) != content}
        assert changed <= {f"{chroot}/kbroker/broker-epoch"}
        if path in intact:
            zookeeper_client.set(path, intact[path][0])
        else:
            zookeeper_client.delete(path)
    broker.start()
    broker.stop()


def test_strangers_at_the_listeners(
    apache_zookeeper: ZooKeeperServer, zookeeper_client: KazooClient, chroot: str, tmp_path: Path
) -> None:
    """A client that poses as a replica, and requests for brokers' APIs."""
    connect = f"{apache_zookeeper.address}{chroot}"
    (tmp_path / "first").mkdir()
    port = free_ports()
    listener = {"kbroker.inter.broker.listener": f"127.0.0.1:{port}"}
    first = BrokerProcess(tmp_path / "first", {**SETTINGS, **listener, "node.id": "1", "zookeeper.connect": connect})
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


def test_a_broker_with_another_secret_does_not_register(
    apache_zookeeper: ZooKeeperServer, zookeeper_client: KazooClient, chroot: str, tmp_path: Path
) -> None:
    """The others would reject all its connections."""
    connect = f"{apache_zookeeper.address}{chroot}"
    first = BrokerProcess(tmp_path, {**SETTINGS, "node.id": "1", "zookeeper.connect": connect})
    try:
        first.start()
        path = f"{chroot}/kbroker/secret"
        secret = zookeeper_client.get(path)[0]
        zookeeper_client.set(path, secret.replace(b'"secret":"', b'"secret":"00'))
        refused = (
            "/kbroker/secret has another secret than the one with which the brokers of this cluster have registered"
        )
        assert refusal(tmp_path / "second", connect, node_id=2).startswith(refused)
        # It is lost, and the second broker creates another one.
        zookeeper_client.delete(path)
        assert refusal(tmp_path / "second", connect, node_id=2).startswith(refused)
        assert zookeeper_client.get_children(f"{chroot}/kbroker/registrations") == ["1"]
        assert zookeeper_client.get(f"{chroot}/kbroker/broker-epoch")[1].version == 1
    finally:
        first.end()
