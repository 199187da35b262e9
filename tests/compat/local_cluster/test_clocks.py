"""A broker process whose wall clock is five hours ahead, or behind, of the other two."""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.local_cluster.local_cluster import LocalCluster
from tests.compat.support import DEADLINE_S, eventually, unique

# Python imports this module at its start.
SITECUSTOMIZE = """
import time
shift_s, read_ns, read_s = {hours} * 3600, time.time_ns, time.time
time.time_ns = lambda: read_ns() + shift_s * 10**9
time.time = lambda: read_s() + shift_s
"""
TRANSACTION_MS = 120_000
RECORDS = 30


def start_with_clock(cluster: LocalCluster, node_id: int, hours: int, directory: Path) -> subprocess.Popen[bytes]:
    (directory / "sitecustomize.py").write_text(SITECUSTOMIZE.format(hours=hours))
    config = cluster.data_dir / f"broker-{node_id}.properties"
    with (directory / "shifted.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "kbroker", "start", "--config", str(config)],
            env={**os.environ, "PYTHONPATH": str(directory)}, stdout=subprocess.DEVNULL, stderr=log,
        )  # fmt: skip


@pytest.mark.parametrize("hours", [5, -5])
def test_nothing_depends_on_the_clock_of_another_broker(cluster: LocalCluster, tmp_path: Path, hours: int) -> None:
    """An open transaction goes on, and ends as a whole, while a broker is killed."""
    os.kill(cluster.broker_pids()[1], signal.SIGKILL)
    eventually(lambda: "a broker has ended broker=2" in cluster.errors, "the end of broker 2")
    shifted = start_with_clock(cluster, 2, hours, tmp_path)
    try:
        log = tmp_path / "shifted.log"
        eventually(lambda: "kbroker: serving" in log.read_text(), "the broker with another clock serves")
        logged = datetime.strptime(log.read_text().split()[0], "%Y-%m-%dT%H:%M:%S.%f%z")
        assert abs((logged - datetime.now(UTC)).total_seconds() - hours * 3600) < 1800
        eventually(cluster.is_healthy, "all replicas in sync")
        topic, bootstrap = unique("clocks"), ",".join(cluster.addresses)
        # Records have the time of the clients, which the broker would refuse with a clock that is behind.
        settings = {"message.timestamp.type": "LogAppendTime", "retention.ms": "86400000"}
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic, 3, 3, config=settings)])[topic].result(DEADLINE_S)
        producer = Producer({
            "bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0,
            "transaction.timeout.ms": TRANSACTION_MS,
        })  # fmt: skip
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        send(producer, topic, "before")
        # Half of the time, the next coordinator has another clock than this one.
        os.kill(cluster.broker_pids()[0], signal.SIGKILL)
        eventually(lambda: len(cluster.broker_pids()) == 1, "the end of broker 1")
        send(producer, topic, "after")
        producer.commit_transaction(DEADLINE_S)
        assert read(bootstrap, topic) == sorted(f"{when} {n}" for when in ("before", "after") for n in range(RECORDS))
    finally:
        shifted.kill()
        shifted.wait()


def send(producer: Producer, topic: str, when: str) -> None:
    for number in range(RECORDS):
        producer.produce(topic, f"{when} {number}".encode(), partition=number % 3)
    assert producer.flush(DEADLINE_S) == 0


def read(bootstrap: str, topic: str) -> list[str]:
    """Return the committed records, in the order of their values."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest", "log_level": 0,
        "isolation.level": "read_committed",
    })  # fmt: skip
    consumer.subscribe([topic])
    found: list[str] = []

    def has_all() -> bool:
        found.extend(message.value().decode() for message in consumer.consume(100, timeout=0.2) if not message.error())
        return len(found) >= 2 * RECORDS

    eventually(has_all, "all records")
    consumer.close()
    return sorted(found)
