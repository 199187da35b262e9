"""Index files that are deleted while the broker is down, a common remedy: no aborted record becomes a committed one."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kbroker.common import TopicPartition as Partition
from kbroker.storage.checkpoint_files import decode_offsets
from tests.compat.compaction.compacted_topic import alter
from tests.compat.crash.conftest import create_topic
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually, need_own_broker, running_broker, unique

TRANSACTIONS = 4
# Each transaction is later than this, so that it begins a segment.
SEGMENT_MS = 1000
# Markers have the time of the broker, which must not begin one. So the transactions are of the next minute.
AHEAD_MS = 60_000

Loss = Callable[[Path], None]


SETTINGS = {"log.flush.offset.checkpoint.interval.ms": "200", "log.cleaner.backoff.ms": "200"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    need_own_broker()
    with running_broker(tmp_path, SETTINGS) as broker:
        yield broker


def remove(*suffixes: str) -> Loss:
    def lose(directory: Path) -> None:
        for path in [path for suffix in suffixes for path in directory.glob(f"*{suffix}")]:
            path.unlink()

    return lose


def empty(directory: Path) -> None:
    for path in directory.glob("*.txnindex"):
        path.write_bytes(b"")


LOSSES: dict[str, Loss] = {
    "all indexes": remove(".index", ".timeindex", ".txnindex"),
    "transaction indexes": remove(".txnindex"),
    "emptied": empty,
}


def transact(bootstrap: str, topic: str) -> int:
    """Write a committed and an aborted transaction to each of several segments. Returns the end of the partition."""
    producers = [
        Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{kind}"})
        for kind in ("plain", "aborted")
    ]
    for producer in producers:
        producer.init_transactions(DEADLINE_S)
    plain, aborted = producers
    start_ms = int(time.time() * 1000) + AHEAD_MS
    for number in range(TRANSACTIONS):
        timestamp = start_ms + 2 * SEGMENT_MS * number
        for producer, kind in ((aborted, "aborted"), (plain, "plain")):
            producer.begin_transaction()
            producer.produce(topic, f"{kind} {number}", f"{kind}-{number}", partition=0, timestamp=timestamp)
            producer.flush(DEADLINE_S)
        aborted.abort_transaction(DEADLINE_S)
        plain.commit_transaction(DEADLINE_S)
    return 4 * TRANSACTIONS


def read(bootstrap: str, topic: str, isolation: str) -> list[str]:
    """Return all values of the partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": isolation}
    consumer = Consumer({**settings, "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[str] = []

    def is_at_the_end() -> bool:
        message = consumer.poll(1.0)
        if message is None or message.error():
            return message is not None and message.error().name() == "_PARTITION_EOF"
        values.append(message.value().decode())
        return False

    try:
        eventually(is_at_the_end, f"the end of {topic}", interval=0, progress=lambda: len(values))
    finally:
        consumer.close()
    return values


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_aborted_records_stay_aborted(broker: BrokerProcess, loss: Loss, clean: bool) -> None:
    name = unique("aborted")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    create_topic(admin, name, 1, {"segment.ms": str(SEGMENT_MS), "retention.ms": "-1"})
    end = transact(broker.bootstrap, name)
    checkpoint = broker.data_dir / "recovery-point-offset-checkpoint"
    eventually(lambda: decode_offsets(checkpoint.read_bytes()).get(Partition(name, 0)) == end, "the checkpoint")
    directory = broker.partition_dir(name, 0)
    assert len(list(directory.glob("*.log"))) == TRANSACTIONS
    assert len(list(directory.glob("*.txnindex"))) == TRANSACTIONS
    (broker.stop if clean else broker.kill)()
    loss(directory)
    broker.start()
    plain = [f"plain {number}" for number in range(TRANSACTIONS)]
    assert read(broker.bootstrap, name, "read_committed") == plain
    assert len(read(broker.bootstrap, name, "read_uncommitted")) == 2 * TRANSACTIONS
    # Compaction removes them for good. It leaves the last segment alone, so a later record rolls it.
    alter(admin, "topic", name, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001"})
    later = Producer({"bootstrap.servers": broker.bootstrap})
    later.produce(name, "later", "later", partition=0, timestamp=int(time.time() * 1000) + 2 * AHEAD_MS)
    later.flush(DEADLINE_S)
    eventually(lambda: read(broker.bootstrap, name, "read_uncommitted") == [*plain, "later"], "the compaction")
