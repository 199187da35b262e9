"""What compaction leaves on disk, read by Kafka's DumpLogSegments; and what a broker makes of it when it starts."""

import re

import pytest
from confluent_kafka import Producer

from tests.compat.compaction.bulk import Record
from tests.compat.compaction.conftest import PROMPT
from tests.compat.compaction.expected import latest
from tests.compat.compaction.files import batches, check_files, dump, last_of_producers
from tests.compat.compaction.topic import HOUR_MS, NUDGE, CompactedTopic, now_ms
from tests.compat.support import DEADLINE_S, need_own_broker, running_broker

pytestmark = [pytest.mark.feature("compaction"), pytest.mark.client("kafka_tools")]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def cleaner(tmp_path):
    """A broker of this test alone that cleans promptly."""
    need_own_broker()
    with running_broker(tmp_path, PROMPT) as own:
        yield own


def send(producer, topic, count):
    """The offsets of records with keys that are used again and again."""
    offsets = []

    def delivered(error, message):
        assert error is None, error
        offsets.append(message.offset())

    for number in range(count):
        producer.produce(topic, b"value %d" % number, b"key %d" % (number % 5), partition=0, on_delivery=delivered)
    assert producer.flush(DEADLINE_S) == 0
    return offsets


def test_batches_keep_their_ranges_and_producers_their_last(jvm, clients, cleaner, name):
    """Every batch that is left has the offsets and sequences that it had; a producer goes on after its batches have
    been emptied, whether the broker remembers it from a snapshot or has to find it in the log."""
    configs = {"min.compaction.lag.ms": str(HOUR_MS), "internal.segment.bytes": "60000"}
    topic = CompactedTopic.created(cleaner.bootstrap, clients, name, 1, configs)
    directory = cleaner.partition_dir(name, 0)
    lasting = Producer({"bootstrap.servers": cleaner.bootstrap, "enable.idempotence": True, "log_level": 2})
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
    assert [record for record in now if record.key != NUDGE] == latest(before)
    now = topic.rest(cleaner)
    assert [record for record in now if record.key != NUDGE] == latest(before)
    cleaner.stop()
    after = check_files(jvm, directory, now)
    ranges = [one[:2] for one in batches(dumped)]
    kept = [one[:2] for one in batches(after) if one[1] <= ranges[-1][1]]
    assert set(kept) <= set(ranges)
    assert len(kept) < len(ranges) / 2
    producers = last_of_producers(dumped)
    assert len(producers) == 1 + 2 * len(CODECS)
    assert producers.items() <= last_of_producers(after).items(), "each producer's last batch, with its sequences"
    assert re.search(r" count: 0 ", after), "some of them are empty"

    cleaner.start()
    assert topic.read() == now
    assert send(lasting, name, 10) == list(range(now[-1].offset + 1, now[-1].offset + 11))
    cleaner.kill()
    for snapshot in directory.glob("*.snapshot"):
        snapshot.unlink()
    (cleaner.data_dir / "recovery-point-offset-checkpoint").unlink()
    cleaner.start()
    assert topic.read()[: len(now)] == now
    assert send(lasting, name, 10) == list(range(now[-1].offset + 11, now[-1].offset + 21))
    cleaner.stop()
