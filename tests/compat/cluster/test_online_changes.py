"""Changes that need no pause: partitions are added and configs of all brokers change while clients work."""

import subprocess
import sys

import pytest
from confluent_kafka import KafkaError, Producer

from tests.compat.cluster.cluster import IS_KBROKER, Cluster
from tests.compat.cluster.test_groups import PARTITIONS, members, values_of
from tests.compat.cluster.work import create_topic, working
from tests.compat.support import DEADLINE_S, eventually, unique

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: another program's brokers")

MORE_PARTITIONS = 6
# The new limit of a batch: above what the producers at work send, and below LARGE.
MAX_BYTES, LARGE = 100_000, bytes(200_000)


def kbroker(cluster: Cluster, *args: str) -> str:
    command = [sys.executable, "-m", "kbroker", *args, "--bootstrap", cluster.bootstrap]
    return subprocess.check_output(command, text=True, timeout=DEADLINE_S)


def test_partitions_are_added_while_producers_and_groups_work(cluster: Cluster) -> None:
    topic = create_topic(cluster, [[1, 2, 3], [2, 3, 1]])
    groups = (unique("group"), unique("group"))
    with working(cluster, topic, PARTITIONS) as work, members(cluster, topic, groups) as (confluent, python):
        eventually(lambda: confluent.poll() > 100 and len(python.records) > 100, "both groups read")
        added = kbroker(cluster, "topics", "alter", topic, "--partitions", str(MORE_PARTITIONS))
        assert added == f"{topic}: now has {MORE_PARTITIONS} partitions\n"
        work.grow(MORE_PARTITIONS)
        work.wait_for_more()
        eventually(
            lambda: confluent.poll() and len({record.partition for record in python.records}) == MORE_PARTITIONS,
            "kafka-python's member reads the new partitions",
            interval=0,
        )
        work.stop()
        total = sum(sum(producer.ledger.sent) for producer in work.producers)
        eventually(
            lambda: confluent.poll() >= total and len(values_of(python)) >= total,
            f"{total} records in both groups",
            interval=0,
            progress=lambda: (len(confluent.values), len(python.records)),
        )
        assert python.error is None
        assert confluent.values == values_of(python)


def errors_of_large_records(cluster: Cluster, topic: str) -> list[int | None]:
    """Send a large record to each partition, and return the error codes, None for a record that was accepted."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "message.max.bytes": 1_000_000, "log_level": 2})
    errors: dict[int, int | None] = {}
    for partition in range(3):
        producer.produce(
            topic,
            LARGE,
            partition=partition,
            on_delivery=lambda error, message: errors.update({message.partition(): error and error.code()}),
        )
    assert producer.flush(DEADLINE_S) == 0
    return [errors[partition] for partition in range(3)]


def test_configs_of_all_brokers_change_while_producers_work(cluster: Cluster) -> None:
    """Each broker uses the new value, also one that restarts afterwards, until it is unset."""
    topic = create_topic(cluster, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    # Large records do not belong to the producers whose records are checked.
    large = create_topic(cluster, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    refused = [KafkaError.MSG_SIZE_TOO_LARGE] * 3
    with working(cluster, topic, 3) as work:
        assert errors_of_large_records(cluster, large) == [None] * 3
        kbroker(cluster, "configs", "set", "broker", "--default", f"message.max.bytes={MAX_BYTES}")
        try:
            eventually(lambda: errors_of_large_records(cluster, large) == refused, "all brokers have the new limit")
            work.wait_for_more()
            restarted = cluster.others(cluster.controller())[0]
            cluster.stop(restarted)
            cluster.start(restarted)
            cluster.wait_until_healthy()
            assert errors_of_large_records(cluster, large) == refused
        finally:
            kbroker(cluster, "configs", "unset", "broker", "--default", "message.max.bytes")
        eventually(lambda: errors_of_large_records(cluster, large) == [None] * 3, "all brokers have the default")
        work.wait_for_more()
