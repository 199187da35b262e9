"""`kbroker archive run`: archives stay correct whatever happens to them, the broker and the checkpoint."""

import json
import os
import shutil
import subprocess
import threading
import time

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.ingest.options import StartPosition
from kbroker.pipeline.archive.layout import OffsetRange
from kbroker.pipeline.archive.manifest import Gap
from kbroker.pipeline.archive.staging import DataFileWriter
from kbroker.pipeline.errors import PipelineError
from tests.compat.spark.helpers import Topics, Writer, numbered
from tests.compat.spark.pipeline.archiver import Archiver, wait_for_rows
from tests.compat.spark.pipeline.processes import Command, quick_jvm
from tests.compat.support import DEADLINE_S, eventually, unique

pytestmark = [pytest.mark.spark, pytest.mark.feature("archive")]


@pytest.fixture
def archiver(spark, bootstrap, tmp_path):
    archiver = Archiver(spark, bootstrap, tmp_path / "archive")
    yield archiver
    archiver.close()


def test_once_archives_existing_records_and_continues_there(archiver, topics, spark):
    name = topics.create(partitions=2, configs={"retention.ms": "86400000000"})
    records = [
        {"key": b"k", "value": b"1", "headers": [("a", b"x"), ("a", None), ("b", b"")], "timestamp": 1_700_000_000_123},
        {"key": b"", "value": b"", "timestamp": 1_700_000_000_123},
        {"key": None, "value": None, "timestamp": 951_782_400_000},
    ]
    topics.fill(name, ({**record, "partition": 1} for record in records))
    group = unique("group")
    consumer = Consumer({"bootstrap.servers": topics.bootstrap, "group.id": group})
    consumer.commit(offsets=[ConfluentPartition(name, 1, 2)], asynchronous=False)
    consumer.close()

    summary = archiver.once(name)
    assert (summary.records, summary.batches, summary.gaps) == ({name: 3}, 1, [])
    rows = spark.read.parquet(str(archiver.directory)).orderBy("offset").collect()
    assert [(row.key, row.value) for row in rows] == [(b"k", b"1"), (b"", b""), (None, None)]
    assert [(header.key, header.value) for header in rows[0].headers] == [("a", b"x"), ("a", None), ("b", b"")]
    assert [str(row.date) for row in rows] == ["2023-11-14", "2023-11-14", "2000-02-29"]
    assert [(row.topic, row.partition, row.timestampType) for row in rows] == [(name, 1, 0)] * 3
    assert rows[0].timestamp.timestamp() == 1_700_000_000.123
    state = archiver.state()
    assert state.topics[name].configs == {"retention.ms": "86400000000"}
    assert state.groups[group] == {name: {1: 2}}
    assert state.covered == {TopicPartition(name, 1): (OffsetRange(0, 3),)}

    topics.fill(name, numbered(range(10), partitions=2))
    assert archiver.once(name).records == {name: 10}
    assert archiver.once(name).records == {}
    assert archiver.state().covered == {
        TopicPartition(name, 0): (OffsetRange(0, 5),),
        TopicPartition(name, 1): (OffsetRange(0, 8),),
    }
    assert archiver.state().commit_number == state.commit_number + 1, "a run without new records commits nothing"


def test_a_repeated_batch_is_archived_once(archiver, topics):
    name = topics.create(partitions=2)
    topics.fill(name, numbered(range(100), partitions=2))
    archiver.once(name, max_batch_records=40)
    checkpoint = archiver.directory / "_checkpoint" / "0"
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal())
    assert last >= 2

    # As after a kill between the archive's commit and Spark's.
    for path in (checkpoint / "commits").glob(f"*{last}*"):
        path.unlink()
    archiver.once(name)
    assert archiver.numbers(name) == list(range(100))
    # An old checkpoint.
    for directory in ("commits", "offsets"):
        for path in (checkpoint / directory).iterdir():
            if any(str(number) in path.name for number in range(1, last + 1)):
                path.unlink()
    topics.fill(name, numbered(range(100, 110), partitions=2))
    archiver.once(name)
    assert archiver.numbers(name) == list(range(110))
    # No checkpoint.
    shutil.rmtree(archiver.directory / "_checkpoint")
    topics.fill(name, numbered(range(110, 120), partitions=2))
    archiver.once(name)
    assert archiver.numbers(name) == list(range(120))


def test_a_kill_before_the_commit_archives_nothing(archiver, topics, monkeypatch):
    name = topics.create()
    topics.fill(name, numbered(range(50)))

    class Killed(Exception):
        pass

    def kill(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Archive, "commit", kill)
        patched.setattr(DataFileWriter, "close", lambda _: None)
        with pytest.raises(Killed):
            archiver.once(name)
    assert archiver.rows(name) == []
    assert list(archiver.directory.rglob("*.parquet")), "the files were published already"
    monkeypatch.setattr("kbroker.pipeline.archive.staging.is_alive", lambda *_: False)
    archiver.once(name)
    assert archiver.numbers(name) == list(range(50))
    assert len(list(archiver.directory.rglob("*.parquet"))) == len(archiver.state().files)


def test_new_topics_and_partitions_are_archived_by_a_running_query(archiver, topics):
    prefix = unique("grows")
    run = archiver.start(pattern=f"{prefix}-[ab]+")
    first = topics.create(partitions=1, name=f"{prefix}-a")
    topics.create(partitions=1, name=f"{prefix}-c")
    topics.fill(first, numbered(range(10)))
    wait_for_rows(archiver, first, 10, run)
    topics.grow(first, 3)
    second = topics.create(partitions=2, name=f"{prefix}-b")
    topics.fill(first, numbered(range(10, 40), partitions=3))
    topics.fill(second, numbered(range(20), partitions=2))
    wait_for_rows(archiver, first, 40, run)
    wait_for_rows(archiver, second, 20, run)
    run.end()
    assert archiver.numbers(first) == list(range(40))
    assert archiver.numbers(second) == list(range(20))
    assert sorted(archiver.state().topics) == [first, second]
    assert archiver.state().topics[first].partitions == 3


def test_only_committed_records(archiver, topics):
    name = topics.create(partitions=2)
    committed, later_committed, later_aborted = Writer(topics), Writer(topics), Writer(topics)
    committed.write(name, range(10), 2, committed=True)
    committed.write(name, range(1000, 1010), 2, committed=False)
    later_committed.begin(name, range(10, 20), 2)
    topics.fill(name, numbered(range(20, 30), partitions=2))
    archiver.once(name, committed_only=True)
    assert archiver.numbers(name) == list(range(10)), "records after an open transaction are not stable yet"
    later_committed.end(committed=True)
    later_aborted.begin(name, range(2000, 2010), 2)
    archiver.once(name, committed_only=True)
    assert archiver.numbers(name) == list(range(30))
    later_aborted.end(committed=False)
    archiver.once(name, committed_only=True)
    assert archiver.numbers(name) == list(range(30))
    covered = archiver.state().covered
    # Each partition has 15 committed records, 10 aborted records and 4 markers.
    assert covered == {TopicPartition(name, 0): (OffsetRange(0, 29),), TopicPartition(name, 1): (OffsetRange(0, 29),)}
    with pytest.raises(PipelineError, match="was created with --committed-only: add this option"):
        archiver.once(name)


def test_a_start_after_an_open_transaction(archiver, topics):
    """Spark starts at the last stable offset, which is before the start of the archive."""
    name = topics.create()
    topics.fill(name, numbered(range(10)))
    writer = Writer(topics)
    writer.begin(name, range(100, 110))
    start_ms = round(time.time() * 1000) + 1_800_000
    topics.fill(name, ({**record, "timestamp": start_ms} for record in numbered(range(10, 20))))
    run = archiver.start(name, committed_only=True, start=StartPosition("time", start_ms))
    eventually(lambda: [*archiver.directory.glob("_checkpoint/*/offsets/0")], "the first batch")
    writer.end(committed=True)
    topics.fill(name, numbered(range(20, 30)))
    wait_for_rows(archiver, name, 20, run)
    run.end()
    assert archiver.numbers(name) == list(range(10, 30))


def test_offsets_that_retention_deleted_are_gaps(archiver, topics):
    name = topics.create(partitions=3)
    topics.fill(name, numbered(range(60), partitions=3))
    topics.delete_before(name, 0, 5)
    topics.delete_before(name, 2, 20)
    gaps = [Gap(name, 0, 0, 5, "retention"), Gap(name, 2, 0, 20, "retention")]
    assert archiver.once(name).gaps == gaps
    assert f"{name}-0: offsets 0 to 4 (5) were deleted" in archiver.warnings[0]
    assert [len([row for row in archiver.rows(name) if row[0] == p]) for p in range(3)] == [15, 20, 0]
    topics.fill(name, numbered(range(60, 120), partitions=3))
    topics.delete_before(name, 1, 30)
    topics.delete_before(name, 2, 40)
    gaps += [Gap(name, 1, 20, 30, "retention"), Gap(name, 2, 20, 40, "retention")]
    assert archiver.once(name).gaps == gaps[2:]
    assert archiver.once(name).gaps == []
    state = archiver.state()
    assert list(state.gaps) == gaps
    assert state.covered == {
        TopicPartition(name, 0): (OffsetRange(5, 40),),
        TopicPartition(name, 1): (OffsetRange(0, 20), OffsetRange(30, 40)),
    }


def test_offsets_that_retention_deletes_during_a_batch_are_gaps(archiver, topics, monkeypatch):
    """The log start offset moves before Spark reads, and after it has read, which loses nothing."""
    name = topics.create(partitions=2)
    topics.fill(name, numbered(range(40), partitions=2))
    write = DataFileWriter.write

    def write_late(self, frame, sort=False):
        topics.delete_before(name, 0, 7)
        files = write(self, frame, sort)
        topics.delete_before(name, 1, 9)
        return files

    monkeypatch.setattr(DataFileWriter, "write", write_late)
    assert archiver.once(name).gaps == [Gap(name, 0, 0, 7, "retention")]
    assert [row[:2] for row in archiver.rows(name)] == [(0, n) for n in range(7, 20)] + [(1, n) for n in range(20)]


def test_other_topics_continue_at_the_archives_offsets(archiver, topics):
    first, second = topics.create(), topics.create()
    for name in (first, second):
        topics.fill(name, numbered(range(10)))
    archiver.once(first)
    topics.fill(first, numbered(range(10, 20)))
    archiver.once(first, second)
    topics.fill(first, numbered(range(20, 30)))
    topics.fill(second, numbered(range(10, 20)))
    archiver.once(second)
    assert (archiver.numbers(first), archiver.numbers(second)) == (list(range(20)), list(range(20)))
    archiver.once(pattern=f"{first}|{second}")
    assert archiver.numbers(first) == list(range(30))


def test_start_position_of_new_topics(archiver, topics):
    old, new, timed = topics.create(), topics.create(), topics.create()
    topics.fill(old, numbered(range(10)))
    archiver.once(old)
    topics.fill(old, numbered(range(10, 20)))
    topics.fill(new, numbered(range(10)))
    topics.fill(timed, ({**record, "timestamp": 1_700_000_000_000 + n} for n, record in enumerate(numbered(range(10)))))
    archiver.once(old, new, start=StartPosition("latest"))
    topics.fill(new, numbered(range(10, 15)))
    archiver.once(old, new)
    assert (archiver.numbers(old), archiver.numbers(new)) == (list(range(20)), list(range(10, 15)))
    archiver.once(timed, start=StartPosition("time", 1_700_000_000_006))
    assert archiver.numbers(timed) == list(range(6, 10))
    assert archiver.state().gaps == ()


def test_checkpoints_of_others_are_rejected(archiver, topics, spark, bootstrap, tmp_path):
    name = topics.create()
    topics.fill(name, numbered(range(10)))
    archiver.once(name, checkpoint=tmp_path / "mine")
    other = Archiver(spark, bootstrap, tmp_path / "other")
    with pytest.raises(PipelineError, match="is the checkpoint of another archive"):
        other.once(name, checkpoint=tmp_path / "mine")
    with pytest.raises(PipelineError, match="is the checkpoint of another Spark query"):
        other.once(name, checkpoint=tmp_path / "mine" / "0")
    other.once(name, checkpoint=tmp_path / "theirs")
    assert other.numbers(name) == list(range(10))


def test_two_archivers_duplicate_nothing(archiver, topics, tmp_path, monkeypatch):
    name = topics.create()
    topics.fill(name, numbered(range(10)))
    publish, other_run = DataFileWriter.publish, threading.Event()

    def publish_late(self):
        if not other_run.is_set():
            other_run.set()
            archiver.once(name, checkpoint=tmp_path / "second")
        publish(self)

    monkeypatch.setattr(DataFileWriter, "publish", publish_late)
    with pytest.raises(PipelineError, match=f"another `kbroker archive run` has archived {name}-0 at the same time"):
        archiver.once(name)
    assert archiver.numbers(name) == list(range(10))
    assert len(list(archiver.directory.rglob("*.parquet"))) == len(archiver.state().files)


def test_a_recreated_topic_is_rejected(archiver, topics):
    name = topics.create()
    topics.fill(name, numbered(range(10)))
    archiver.once(name)
    admin = AdminClient({"bootstrap.servers": topics.bootstrap})
    admin.delete_topics([name])[name].result(DEADLINE_S)
    eventually(lambda: name not in admin.list_topics(timeout=DEADLINE_S).topics, "the topic is gone")
    with pytest.raises(PipelineError, match=f"topic {name} does not exist"):
        archiver.once(name)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(DEADLINE_S)
    topics.fill(name, numbered(range(20)))
    with pytest.raises(PipelineError, match=f"topic {name} was deleted and created again"):
        archiver.once(name)
    assert archiver.numbers(name) == list(range(10))


def test_errors_are_one_sentence(archiver, topics, tmp_path, spark):
    name = topics.create()
    with pytest.raises(PipelineError, match="topics do not exist: absent-1, absent-2"):
        archiver.once(name, "absent-1", "absent-2")
    with pytest.raises(PipelineError, match="no topic matches --pattern absent-"):
        archiver.once(pattern="absent-")
    with pytest.raises(PipelineError, match=r"--pattern a\(b is not a regular expression: Unclosed group"):
        archiver.once(pattern="a(b")
    assert not archiver.directory.exists(), "no directory was created"
    archiver.directory.mkdir()
    (archiver.directory / "notes.txt").write_text("mine")
    with pytest.raises(PipelineError, match="is not an archive and not empty"):
        archiver.once(name)
    unreachable = Archiver(spark, "127.0.0.1:1", tmp_path / "unreachable")
    with pytest.raises(PipelineError, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused"):
        unreachable.once(name)


def test_the_rate_is_limited(archiver, topics):
    name = topics.create()
    topics.fill(name, numbered(range(30)))
    start_s = time.monotonic()
    summary = archiver.once(name, rate=20, interval_s=0.5)
    assert summary.records == {name: 30}
    assert summary.batches == 3
    assert time.monotonic() - start_s >= 1.0


def test_a_run_waits_for_a_killed_broker(spark, broker, tmp_path):
    topics = Topics(broker.bootstrap, "killed")
    name = topics.create(partitions=2)
    archiver = Archiver(spark, broker.bootstrap, tmp_path / "archive")
    try:
        topics.fill(name, numbered(range(1000), partitions=2))
        run = archiver.start(name, max_batch_records=300)
        for number in (1, 2):
            wait_for_rows(archiver, name, number * 300, run)
            broker.restart()
            topics.fill(name, numbered(range(number * 1000, number * 1000 + 1000), partitions=2))
        wait_for_rows(archiver, name, 3000, run)
        run.end()
        assert archiver.numbers(name) == list(range(3000))
        broker.stop()
        run = archiver.start(name, broker_wait_s=1)
        error = run.wait_for_failure()
        assert isinstance(error, PipelineError), error
    finally:
        archiver.close()


def test_sigterm_stops_the_command_after_its_batch(topics, tmp_path):
    name = topics.create(partitions=2)
    topics.fill(name, numbered(range(1000), partitions=2))
    command = Command(
        tmp_path / "command", "archive", "run", tmp_path / "archive", name, "--json", "--every", "200ms", "--verbose",
        "--bootstrap", topics.bootstrap, "--master", "local[2]", "--conf", quick_jvm(),
    )  # fmt: skip
    archiver = Archiver(None, topics.bootstrap, tmp_path / "archive")
    command.start()
    try:
        eventually(lambda: command.running() and len(archiver.rows(name)) == 1000, "the archive", 2 * DEADLINE_S)
        assert command.stop() == 0, command.errors
    finally:
        command.kill()
    summary = json.loads(command.output)
    assert (summary["records"], summary["topics"], summary["gaps"]) == (1000, [{"topic": name, "records": 1000}], [])
    assert "batch 0: " in command.errors
    assert archiver.numbers(name) == list(range(1000))


@pytest.mark.skipif(os.geteuid() != 0, reason="not run: needs root to mount a small file system")
def test_a_full_disk_is_reported_and_archived_records_remain(archiver, topics):
    name = topics.create()
    topics.fill(name, numbered(range(100)))
    archiver.directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(archiver.directory)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("not run: mounting a file system is not permitted")
    try:
        archiver.once(name)
        topics.fill(
            name, ({"value": str(n).encode() + b" " + os.urandom(60_000).hex().encode()} for n in range(100, 120))
        )
        with pytest.raises(PipelineError, match="no space left on device"):
            archiver.once(name)
        assert archiver.numbers(name) == list(range(100))
        subprocess.run(["mount", "-o", "remount,size=64m", str(archiver.directory)], check=True)
        archiver.once(name)
        assert sum(file.rows for file in archiver.state().files.values()) == 120
    finally:
        # Lazily, because Spark may have left a file open.
        subprocess.run(["umount", "--lazy", str(archiver.directory)], check=True)
