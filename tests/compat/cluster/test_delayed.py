"""Delayed delivery and idempotency keys while the leader is paused, and the next one is killed (kill -9)."""

import json
import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer, Producer

from tests.compat.cluster.cluster import IS_KBROKER, Cluster
from tests.compat.cluster.work import create_topic
from tests.compat.support import DEADLINE_S, eventually, unique

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: another program's brokers")

RECORDS = 60
FIRST_MS, EVERY_MS = 2_000, 250
KEYS = 20


def kbroker(cluster: Cluster, *args: str) -> str:
    command = [sys.executable, "-m", "kbroker", "delayed", *args, "--bootstrap", cluster.bootstrap]
    return subprocess.check_output(command, text=True, timeout=DEADLINE_S)


def send(cluster: Cluster, topic: str, rows: list[tuple[bytes, tuple[str, bytes]]]) -> list[int]:
    """Produce values, each with a header, with acks=all. Returns their offsets. Each call is a new producer."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    offsets: dict[int, int] = {}
    for number, (value, header) in enumerate(rows):

        def on_delivery(error: object, message: object, number: int = number) -> None:
            assert error is None, error
            offsets[number] = message.offset()  # type: ignore[attr-defined]

        producer.produce(topic, value, key=b"k", headers=[header], on_delivery=on_delivery)
        # One record in each batch: for several the client computes the offsets of all but the first.
        producer.flush(DEADLINE_S)
    return [offsets[number] for number in range(len(rows))]


def test_each_is_delivered_once_and_each_key_is_stored_once(cluster: Cluster) -> None:
    controller = cluster.controller()
    paused, second = cluster.others(controller)
    replicas = [[paused, second, controller]]
    delayed = create_topic(cluster, replicas, {"kbroker.delay.enable": "true"})
    once = create_topic(cluster, replicas, {"kbroker.dedup.window.ms": "600000"})
    keyed = [(b"%d" % n, ("IDEMPOTENCY_KEY", b"%d" % n)) for n in range(KEYS)]
    stored = send(cluster, once, keyed)
    start_ms = round(time.time() * 1000)
    due = {b"%d" % n: start_ms + FIRST_MS + EVERY_MS * n for n in range(RECORDS)}
    rows = [(value, ("TIMER_DELIVER_MS", b"%d" % at)) for value, at in due.items()]
    hour = ("TIMER_DELAY_SEC", b"3600")
    *_, never, early = send(cluster, delayed, [*rows, (b"never", hour), (b"early", hour)])

    cluster.pause(paused)
    cluster.wait_until(
        lambda view: all(view.partitions[topic, 0].leader not in (-1, paused) for topic in (delayed, once)),
        "other leaders",
    )
    assert send(cluster, once, keyed) == stored
    cluster.resume(paused)
    cluster.wait_until_healthy()
    killed = cluster.leader(delayed)
    cluster.kill(killed)
    # The command waits for the next leader.
    kbroker(cluster, "cancel", delayed, "-p", "0", "-o", str(never))
    kbroker(cluster, "deliver-now", delayed, "-p", "0", "-o", str(early))
    assert send(cluster, once, keyed) == stored
    cluster.start(killed)
    cluster.wait_until_healthy()

    eventually(lambda: json.loads(kbroker(cluster, "count", delayed, "--json"))[0]["pending"] == 0, "all are delivered")
    found = read_all(cluster, delayed)
    assert sorted(value for value, _ in found) == sorted([*due, b"early"])
    assert all(timestamp_ms >= due.get(value, 0) for value, timestamp_ms in found)
    assert [value for value, _ in read_all(cluster, once)] == [value for value, _ in keyed]


def read_all(cluster: Cluster, topic: str) -> list[tuple[bytes, int]]:
    """Return the value and the timestamp of each record."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": unique("group"),
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    found: list[tuple[bytes, int]] = []
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error() is None:
                found.append((message.value(), message.timestamp()[1]))
            elif message.error().name() == "_PARTITION_EOF":
                return found
        raise AssertionError(f"no end after {len(found)} records")
    finally:
        consumer.close()
