"""`kbroker start --brokers 3`: one command, three broker processes, and no other service."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.crash.checks import read_topic
from tests.compat.local_cluster.local_cluster import LocalCluster
from tests.compat.support import DEADLINE_S, eventually, unique

ENDED = re.compile(r"a broker has ended broker=(\d+) status=(-?\d+) restart=\"kbroker (.*)\"$", re.MULTILINE)


def produce(addresses: list[str], topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": ",".join(addresses), "enable.idempotence": True, "log_level": 2})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(DEADLINE_S) == 0


def described(address: str, topic: str) -> dict[str, Any]:
    """Return what `kbroker topics describe --lag` says about the only partition of a topic."""
    command = ["topics", "describe", topic, "--lag", "--json", "--bootstrap", address]
    output = subprocess.check_output([sys.executable, "-m", "kbroker", *command])
    partition: dict[str, Any] = json.loads(output)[0]["partitions"][0]
    return partition


def test_a_cluster_survives_its_brokers_and_its_own_restart(cluster: LocalCluster) -> None:
    host, _, port = cluster.bootstrap.rpartition(":")
    assert cluster.addresses == [f"{host}:{int(port) + index}" for index in range(3)]
    topic = unique("local")
    admin = AdminClient({"bootstrap.servers": cluster.addresses[0]})
    # The default replication factor is three.
    admin.create_topics([NewTopic(topic, 1)])[topic].result(DEADLINE_S)
    produce(cluster.addresses, topic, 100)
    eventually(cluster.is_healthy, "all replicas in sync")

    # A broker is killed: the other two continue, nothing restarts it, and the log says how to.
    os.kill(cluster.broker_pids()[0], signal.SIGKILL)
    produce(cluster.addresses, topic, 100)
    ended = eventually(lambda: ENDED.search(cluster.errors), "the line about the broker that has ended")
    assert (ended[1], ended[2], len(cluster.broker_pids())) == ("1", "-9", 2)
    assert "a session ends with its process" in cluster.errors
    assert "a session has expired" not in cluster.errors
    assert {"broker": 1, "lag": None} in described(cluster.addresses[1], topic)["replica_lag"]
    restarted = subprocess.Popen(
        [sys.executable, "-m", "kbroker", *ended[3].split()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert restarted.stdout is not None
        assert restarted.stdout.readline().startswith(b"kbroker ready: ")
        eventually(cluster.is_healthy, "the broker is in sync again")
        assert [row["lag"] for row in described(cluster.addresses[0], topic)["replica_lag"]] == [0, 0, 0]
    finally:
        restarted.terminate()
        assert restarted.wait(DEADLINE_S) == 0

    # A clean stop of all, and a start that finds everything.
    os.kill(cluster.pid, signal.SIGTERM)
    assert cluster.wait() == 0
    assert "Traceback" not in cluster.errors
    cluster.start()
    eventually(cluster.is_healthy, "all replicas in sync after a restart")
    values = [value for _, _, value in read_topic(",".join(cluster.addresses), topic, 1)[0]]
    assert values == [b"%d" % number for number in range(100)] * 2


def test_every_broker_can_be_restarted_by_hand(cluster: LocalCluster) -> None:
    """The coordination service does not end with the last broker that its parent has started."""
    restarted = []
    try:
        for node_id, pid in enumerate(cluster.broker_pids(), 1):
            os.kill(pid, signal.SIGTERM)
            eventually(lambda node_id=node_id: f"ended broker={node_id}" in cluster.errors, "the end of a broker")
            command = [sys.executable, "-m", "kbroker", *ENDED.findall(cluster.errors)[-1][2].split()]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            restarted.append(process)
            assert process.stdout is not None
            assert process.stdout.readline().startswith(b"kbroker ready: ")
            eventually(cluster.is_healthy, f"broker {node_id} is in sync again")
        assert cluster.broker_pids() == []
    finally:
        for process in restarted:
            process.terminate()
            process.wait(DEADLINE_S)
    os.kill(cluster.pid, signal.SIGTERM)
    assert cluster.wait() == 0


def test_a_second_start_on_the_same_directory_changes_nothing(cluster: LocalCluster) -> None:
    """It must not write the files with which the brokers of the first one are started again."""
    files = {path: path.read_text() for path in cluster.data_dir.glob("*.properties")}
    assert len(files) == 3
    command = [sys.executable, "-m", "kbroker", "start", "--data-dir", str(cluster.data_dir), "--brokers", "3"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert {path: path.read_text() for path in cluster.data_dir.glob("*.properties")} == files
    assert (second.returncode, second.stderr) == (1, f"kbroker: {cluster.data_dir} is in use by another kbroker\n")


def test_doctor_compares_the_brokers(cluster: LocalCluster) -> None:
    """Each has an address of its own for the coordination service, which is no difference."""
    command = ["doctor", "--config", str(cluster.data_dir / "broker-1.properties"), "--json"]
    output = subprocess.run([sys.executable, "-m", "kbroker", *command], capture_output=True, timeout=DEADLINE_S).stdout
    messages = [check["found"] for check in json.loads(output) if check["check"] == "configs"]
    assert messages == ["the same on 3 brokers"]


def test_brokers_die_with_their_parent(cluster: LocalCluster) -> None:
    topic = unique("killed")
    admin = AdminClient({"bootstrap.servers": cluster.addresses[0]})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(DEADLINE_S)
    produce(cluster.addresses, topic, 100)
    pids = cluster.broker_pids()
    cluster.kill()
    eventually(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids), "the end of the brokers")
    cluster.start()
    eventually(cluster.is_healthy, "all replicas in sync after kill -9 of everything")
    assert len(read_topic(",".join(cluster.addresses), topic, 1)[0]) == 100


def test_a_new_parent_ends_the_brokers_of_an_earlier_one(cluster: LocalCluster) -> None:
    """One that was started again by hand, and one that was stopped when its parent was killed."""
    topic = unique("orphans")
    admin = AdminClient({"bootstrap.servers": cluster.addresses[0]})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(DEADLINE_S)
    produce(cluster.addresses, topic, 100)
    _, _, hanging = cluster.broker_pids()
    os.kill(cluster.broker_pids()[0], signal.SIGKILL)
    ended = eventually(lambda: ENDED.search(cluster.errors), "the line about the broker that has ended")
    restarted = subprocess.Popen(
        [sys.executable, "-m", "kbroker", *ended[3].split()], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert restarted.stdout is not None
        assert restarted.stdout.readline().startswith(b"kbroker ready: ")
        os.kill(hanging, signal.SIGSTOP)
        cluster.kill()
        assert restarted.poll() is None
        cluster.start()
        assert restarted.wait(DEADLINE_S) == 0
    finally:
        restarted.kill()
    assert not Path(f"/proc/{hanging}/exe").exists()
    assert cluster.errors.count("ending a broker of an earlier parent") == 2
    eventually(cluster.is_healthy, "all replicas in sync")
    assert len(read_topic(",".join(cluster.addresses), topic, 1)[0]) == 100


def test_a_process_that_is_not_certainly_a_broker_of_the_cluster_is_not_ended(cluster: LocalCluster) -> None:
    cluster.stop()
    lock = cluster.data_dir / "broker-2" / ".lock"
    content = lock.read_text()
    hold = "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, 2); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        # The second content is that of a process which has not locked the file: this one.
        ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
        for text in (content, f"{os.getpid()} {ticks}\n", "", "x"):
            lock.write_text(text)
            command = [sys.executable, "-m", "kbroker", "start", "--data-dir", str(cluster.data_dir), "--brokers", "3"]
            result = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
            assert result.returncode == 1
            assert "broker-2 is in use by a process that is not known to be a broker of this cluster" in result.stderr
            assert other.poll() is None
        assert other.stdin is not None
        other.stdin.close()
    cluster.start()


def test_brokers_do_not_start_without_their_metadata(cluster: LocalCluster) -> None:
    """They keep their logs, and no new cluster begins."""
    topic = unique("lost")
    admin = AdminClient({"bootstrap.servers": cluster.addresses[0]})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(DEADLINE_S)
    produce(cluster.addresses, topic, 100)
    eventually(cluster.is_healthy, "all replicas in sync")
    os.kill(cluster.pid, signal.SIGTERM)
    assert cluster.wait() == 0
    coordination, lost = cluster.data_dir / "coordination", cluster.data_dir / "lost"
    coordination.rename(lost)
    coordination.mkdir()
    cluster.launch()
    assert cluster.wait() == 1
    assert "the metadata of its topics is missing" in cluster.errors
    assert len(list(cluster.data_dir.glob(f"broker-*/{topic}-0/*.log"))) == 3
    shutil.rmtree(coordination)
    lost.rename(coordination)
    cluster.start()
    eventually(cluster.is_healthy, "all replicas in sync after a restart")
    assert len(read_topic(",".join(cluster.addresses), topic, 1)[0]) == 100
