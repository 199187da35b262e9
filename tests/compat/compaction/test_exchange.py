"""Apache Kafka 4.4.0 serves log files that kbroker has compacted, and the reverse."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.compat.compaction.bulk_clients import Record
from tests.compat.compaction.compacted_topic import HOUR_MS, CompactedTopic, now_ms
from tests.compat.compaction.conftest import PROMPT_CLEANING
from tests.compat.mirror.mirror_maker import QuickKafka
from tests.compat.support import need_own_broker, running_broker

pytestmark = [pytest.mark.feature("compaction"), pytest.mark.client("kafka_tools")]

# Of topics that receive files: nothing is compacted.
RESTING = {"min.compaction.lag.ms": str(HOUR_MS), "internal.segment.bytes": "100000"}
COMPACTED = {"internal.segment.bytes": "100000"}
CODECS = ("none", "lz4", "zstd")


@pytest.fixture
def kafka(tmp_path):
    need_own_broker()
    peer = QuickKafka(tmp_path / "kafka")
    peer.prepare()
    with (peer.directory / "server.properties").open("a") as properties:
        properties.writelines(f"{name}={value}\n" for name, value in PROMPT_CLEANING.items())
    peer.start()
    yield peer
    peer.remove()


def fill(topic: CompactedTopic) -> None:
    """Fill a topic: a compacted part, and a tail that is not compacted, with tombstones and several codecs."""
    before = []
    for codec in CODECS:
        records = [Record(0, -1, now_ms(), b"key %d" % (n * n % 97), value(n)) for n in range(1_000)]
        before += topic.send(records, compression_type=codec, linger_ms=2, batch_size=5_000)
    topic.read_compacted(before)
    topic.alter(RESTING)
    for codec in CODECS:
        records = [Record(0, -1, now_ms(), b"key %d" % (n % 60), value(n)) for n in range(300)]
        topic.send(records, compression_type=codec, linger_ms=2, batch_size=5_000)


def value(number: int) -> bytes | None:
    return None if number % 11 == 0 else b"value %d " % number * (number % 20)


def copy_log(source: Path, target: Path) -> None:
    """Replace all files but partition.metadata, which has the topic id."""
    for path in target.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in source.iterdir():
        if path.name != "partition.metadata":
            shutil.copy(path, target)


def check_served(topic: CompactedTopic, records: Sequence[Record]) -> None:
    """Check that the records are read as they were, and that the next one is appended after them."""
    assert topic.read() == records
    assert topic.ends() == [records[-1].offset + 1]
    [appended] = topic.send([Record(0, -1, now_ms(), b"more", b"more")])
    assert appended.offset == records[-1].offset + 1
    assert topic.read() == [*records, appended]


def test_compacted_log_files_are_exchanged(kafka, clients, tmp_path):
    copies = tmp_path / "copies"
    with running_broker(tmp_path, PROMPT_CLEANING) as broker:
        ours, kafkas = broker.bootstrap, kafka.bootstrap
        stopped, killed = (CompactedTopic.created(ours, clients, name, 1, COMPACTED) for name in ("stopped", "killed"))
        compacted = CompactedTopic.created(kafkas, clients, "compacted", 1, COMPACTED)
        to_theirs = [CompactedTopic.created(kafkas, clients, name, 1, RESTING) for name in ("stopped", "killed")]
        to_ours = CompactedTopic.created(ours, clients, "compacted", 1, RESTING)
        for topic in (stopped, killed, compacted):
            fill(topic)

        read = {stopped: stopped.stop_compaction(broker), compacted: compacted.read()}
        broker.stop()
        shutil.copytree(broker.partition_dir("stopped", 0), copies / "stopped")
        broker.start()
        killed.send([Record(0, -1, now_ms(), b"key 1", b"after the stop")])
        read[killed] = killed.read()
        broker.kill()
        kafka.stop()
        # Kafka recovers one log from its beginning; of the other it checks only the last segment.
        data = kafka.directory / "data"
        (data / ".kafka_cleanshutdown").unlink()
        (data / "recovery-point-offset-checkpoint").write_text(f"0\n1\nstopped 0 {read[stopped][-1].offset + 1}\n")
        copy_log(data / "compacted-0", broker.partition_dir("compacted", 0))
        copy_log(copies / "stopped", data / "stopped-0")
        copy_log(broker.partition_dir("killed", 0), data / "killed-0")

        kafka.start()
        for topic, source in zip(to_theirs, (stopped, killed), strict=True):
            check_served(topic, read[source])
        broker.start()
        check_served(to_ours, read[compacted])
        broker.stop()
