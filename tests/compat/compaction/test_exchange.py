"""A compacted partition's files change hands: Apache Kafka 4.3.1 serves what kbroker has compacted, and the reverse."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from scripts.benchmark.peers import Kafka
from tests.compat.compaction.bulk import Record
from tests.compat.compaction.conftest import PROMPT
from tests.compat.compaction.topic import HOUR_MS, CompactedTopic, now_ms
from tests.compat.support import need_own_broker, running_broker

pytestmark = [pytest.mark.feature("compaction"), pytest.mark.client("kafka_tools")]

# Nothing is compacted where the files come to.
AT_REST = {"min.compaction.lag.ms": str(HOUR_MS), "internal.segment.bytes": "100000"}
AT_WORK = {"internal.segment.bytes": "100000"}
CODECS = ("none", "lz4", "zstd")


@pytest.fixture
def kafka(tmp_path):
    need_own_broker()
    peer = Kafka(tmp_path / "kafka", heap="512m")
    peer.prepare()
    with (peer.directory / "server.properties").open("a") as properties:
        properties.writelines(f"{name}={value}\n" for name, value in PROMPT.items())
    peer.start()
    yield peer
    peer.remove()


def filled(topic: CompactedTopic) -> None:
    """Compacted, with a tail that is not; tombstones, several codecs, idempotent producers."""
    before = []
    for codec in CODECS:
        records = [Record(0, -1, now_ms(), b"key %d" % (n * n % 97), value(n)) for n in range(1_000)]
        before += topic.send(records, compression_type=codec, linger_ms=2, batch_size=5_000)
    topic.read_compacted(before)
    topic.alter(AT_REST)
    for codec in CODECS:
        records = [Record(0, -1, now_ms(), b"key %d" % (n % 60), value(n)) for n in range(300)]
        topic.send(records, compression_type=codec, linger_ms=2, batch_size=5_000)


def value(number: int) -> bytes | None:
    return None if number % 11 == 0 else b"value %d " % number * (number % 20)


def place(source: Path, target: Path) -> None:
    """The target keeps its own partition.metadata, which has the topic's id."""
    for path in target.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in source.iterdir():
        if path.name != "partition.metadata":
            shutil.copy(path, target)


def check_served(topic: CompactedTopic, records: Sequence[Record]) -> None:
    """They are read as they were, and what is written next comes after them."""
    assert topic.read() == records
    assert topic.ends() == [records[-1].offset + 1]
    [more] = topic.send([Record(0, -1, now_ms(), b"more", b"more")])
    assert more.offset == records[-1].offset + 1
    assert topic.read() == [*records, more]


def test_compacted_files_change_hands(kafka, clients, tmp_path):
    taken = tmp_path / "taken"
    with running_broker(tmp_path, PROMPT) as broker:
        ours, theirs = broker.bootstrap, kafka.bootstrap
        stopped, killed = (CompactedTopic.created(ours, clients, name, 1, AT_WORK) for name in ("stopped", "killed"))
        compacted = CompactedTopic.created(theirs, clients, "compacted", 1, AT_WORK)
        to_theirs = [CompactedTopic.created(theirs, clients, name, 1, AT_REST) for name in ("stopped", "killed")]
        to_ours = CompactedTopic.created(ours, clients, "compacted", 1, AT_REST)
        for topic in (stopped, killed, compacted):
            filled(topic)

        read = {stopped: stopped.rest(broker), compacted: compacted.read()}
        broker.stop()
        shutil.copytree(broker.partition_dir("stopped", 0), taken / "stopped")
        broker.start()
        killed.send([Record(0, -1, now_ms(), b"key 1", b"after the stop")])
        read[killed] = killed.read()
        broker.kill()
        kafka.stop()
        # One log is recovered by Kafka from its beginning; of the other its indexes are trusted, but for the last.
        data = kafka.directory / "data"
        (data / ".kafka_cleanshutdown").unlink()
        (data / "recovery-point-offset-checkpoint").write_text(f"0\n1\nstopped 0 {read[stopped][-1].offset + 1}\n")
        place(data / "compacted-0", broker.partition_dir("compacted", 0))
        place(taken / "stopped", data / "stopped-0")
        place(broker.partition_dir("killed", 0), data / "killed-0")

        kafka.start()
        for topic, source in zip(to_theirs, (stopped, killed), strict=True):
            check_served(topic, read[source])
        broker.start()
        check_served(to_ours, read[compacted])
        broker.stop()
