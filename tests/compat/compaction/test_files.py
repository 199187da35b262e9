"""Compacted log files: read by Kafka's DumpLogSegments, and by a broker when it starts."""

import re

import pytest
from confluent_kafka import Producer

from tests.compat.compaction.bulk_clients import Record
from tests.compat.compaction.compacted_topic import HOUR_MS, ROLL_KEY, CompactedTopic, now_ms
from tests.compat.compaction.conftest import PROMPT_CLEANING
from tests.compat.compaction.expected import latest
from tests.compat.compaction.log_files import batches, check_files, dump, last_of_producers
from tests.compat.support import DEADLINE_S, need_own_broker, running_broker

pytestmark = [pytest.mark.feature("compaction"), pytest.mark.client("kafka_tools")]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def broker(tmp_path):
    """A broker for this test that cleans promptly."""
    need_own_broker()
    with running_broker(tmp_path, PROMPT_CLEANING) as own:
        yield own


def send(producer, topic, count):
    """Send records with five keys, and return their offsets."""
    offsets = []

    def delivered(error, message):
        assert error is None, error
        offsets.append(message.offset())

    for number in range(count):
        producer.produce(topic, b"value %d" % number, b"key %d" % (number % 5), partition=0, on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    return offsets


def test_batches_keep_their_offsets_and_sequences(jvm, clients, broker, name):
    """Remaining batches keep their offsets and sequences. A producer whose batches are empty can continue, whether the
    broker reads its state from a snapshot or from the log."""
    configs = {"min.compaction.lag.ms": str(HOUR_MS), "internal.segment.bytes": "60000"}
    topic = CompactedTopic.created(broker.bootstrap, clients, name, 1, configs)
    directory = broker.partition_dir(name, 0)
    lasting = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "log_level": 2})
    send(lasting, name, 100)
    before = topic.read()
    for codec in (*CODECS, *CODECS):
        records = [Record(0, -1, now_ms(), b"key %d" % (n % 70), b"%d " % n * 30) for n in range(700)]
        before += topic.send(records, compression_type=codec, linger_ms=2, batch_size=4_000)
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 5
    dumped = dump(jvm, logs)

    topic.alter({"min.compaction.lag.ms": None})
    now = topic.read_compacted(before)
    assert [record for record in now if record.key != ROLL_KEY] == latest(before)
    now = topic.stop_compaction(broker)
    assert [record for record in now if record.key != ROLL_KEY] == latest(before)
    broker.stop()
    after = check_files(jvm, directory, now)
    ranges = [batch[:2] for batch in batches(dumped)]
    kept = [batch[:2] for batch in batches(after) if batch[1] <= ranges[-1][1]]
    assert set(kept) <= set(ranges)
    assert len(kept) < len(ranges) / 2
    producers = last_of_producers(dumped)
    assert len(producers) == 1 + 2 * len(CODECS)
    assert producers.items() <= last_of_producers(after).items(), "each producer's last batch, with its sequences"
    assert re.search(r" count: 0 ", after), "some are empty"

    broker.start()
    assert topic.read() == now
    assert send(lasting, name, 10) == list(range(now[-1].offset + 1, now[-1].offset + 11))
    broker.kill()
    for snapshot in directory.glob("*.snapshot"):
        snapshot.unlink()
    (broker.data_dir / "recovery-point-offset-checkpoint").unlink()
    broker.start()
    assert topic.read()[: len(now)] == now
    assert send(lasting, name, 10) == list(range(now[-1].offset + 11, now[-1].offset + 21))
    broker.stop()
