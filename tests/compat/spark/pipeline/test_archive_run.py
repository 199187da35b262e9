"""`kbroker archive run`: archives stay correct whatever happens to them and the broker."""

import json
import os
import subprocess
import threading
import time

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.catalogs import open_archive
from kbroker.archive.decoding.dead_letters import find_dead_letters
from kbroker.archive.errors import ArchiveError
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import Gap, LeaderEpoch
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ingest.options import StartPosition
from kbroker.pipeline.ingest.spark_job import BatchJobs
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
    assert (summary.records, summary.batches, summary.gaps) == ({name: 3}, 1, {})
    rows = spark.read.parquet(*(file.path for file in archiver.files(name))).orderBy("offset").collect()
    assert [(row.key, row.value) for row in rows] == [(b"k", b"1"), (b"", b""), (None, None)]
    assert [(header.key, header.value) for header in rows[0].headers] == [("a", b"x"), ("a", None), ("b", b"")]
    assert [(row.partition, row.timestampType) for row in rows] == [(1, 0)] * 3
    assert {file.path.split("/")[-3] for file in archiver.files(name)} == {
        "timestamp_day=2023-11-14",
        "timestamp_day=2000-02-29",
    }
    assert rows[0].timestamp.timestamp() == 1_700_000_000.123
    state = archiver.state(name)
    assert state.topic.configs == {"retention.ms": "86400000000"}
    assert state.groups[group] == {1: 2}
    assert state.covered == {1: (OffsetRange(0, 3),)}
    assert state.leader_epochs == {1: (LeaderEpoch(0, 0),)}

    topics.fill(name, numbered(range(10), partitions=2))
    assert archiver.once(name).records == {name: 10}
    state = archiver.state(name)
    assert archiver.once(name).records == {}
    assert archiver.state(name) == state, "a run without new records commits nothing"
    assert state.covered == {0: (OffsetRange(0, 5),), 1: (OffsetRange(0, 8),)}


class Killed(Exception):
    pass


def test_a_kill_before_the_commit_archives_nothing(archiver, topics, monkeypatch):
    name = topics.create()
    topics.fill(name, numbered(range(50)))
    commit = ArchiveTable.commit

    def kill(self, kind, *arguments):
        if kind == "append":
            raise Killed
        commit(self, kind, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(ArchiveTable, "commit", kill)
        with pytest.raises(Killed):
            archiver.once(name)
    assert archiver.rows(name) == []
    assert len(archiver.data_files()) == 1
    archiver.once(name)
    assert archiver.numbers(name) == list(range(50))


def test_a_batch_that_was_committed_for_some_topics_continues_with_the_others(archiver, topics, monkeypatch):
    first, second = sorted([topics.create(), topics.create()])
    for name in (first, second):
        topics.fill(name, numbered(range(50)))
    commit = ArchiveTable.commit

    def kill(self, kind, *arguments):
        if kind == "append" and self.topic == second:
            raise Killed
        commit(self, kind, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(ArchiveTable, "commit", kill)
        with pytest.raises(Killed):
            archiver.once(first, second)
    assert (archiver.numbers(first), archiver.numbers(second)) == (list(range(50)), [])
    assert archiver.once(first, second).records == {second: 50}
    assert (archiver.numbers(first), archiver.numbers(second)) == (list(range(50)), list(range(50)))


def test_a_commit_that_succeeds_and_then_fails_is_not_repeated(archiver, topics, monkeypatch):
    name = topics.create(partitions=2)
    topics.fill(name, numbered(range(100), partitions=2))
    commit = ArchiveTable.commit

    def fail_after(self, *arguments):
        commit(self, *arguments)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(ArchiveTable, "commit", fail_after)
        for _ in range(2):  # the first commit is that of the new table
            with pytest.raises(Killed):
                archiver.once(name, max_batch_records=40)
    archiver.once(name)
    assert archiver.numbers(name) == list(range(100))


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
    assert open_archive(str(archiver.directory)).topics() == [first, second]
    assert archiver.state(first).topic.partitions == 3


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
    # Each partition has 15 committed records, 10 aborted records and 4 markers.
    assert archiver.state(name).covered == {0: (OffsetRange(0, 29),), 1: (OffsetRange(0, 29),)}
    with pytest.raises(PipelineError, match="was created with --committed-only: add this option"):
        archiver.once(name)


def test_a_start_after_an_open_transaction(archiver, topics):
    """The last stable offset is before the start of the archive, which does not read records below its start."""
    name = topics.create()
    topics.fill(name, numbered(range(10)))
    writer = Writer(topics)
    writer.begin(name, range(100, 110))
    start_ms = round(time.time() * 1000) + 1_800_000
    topics.fill(name, ({**record, "timestamp": start_ms} for record in numbered(range(10, 20))))
    run = archiver.start(name, committed_only=True, start=StartPosition("time", start_ms))
    eventually(lambda: archiver.covered(name), "the start of the archive")
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
    gaps = [Gap(0, 0, 5, "retention"), Gap(2, 0, 20, "retention")]
    assert archiver.once(name).gaps == {name: gaps}
    assert f"{name}-0: offsets 0 to 4 (5) were deleted" in archiver.warnings[0]
    assert [len([row for row in archiver.rows(name) if row[0] == p]) for p in range(3)] == [15, 20, 0]
    topics.fill(name, numbered(range(60, 120), partitions=3))
    topics.delete_before(name, 1, 30)
    topics.delete_before(name, 2, 40)
    gaps += [Gap(1, 20, 30, "retention"), Gap(2, 20, 40, "retention")]
    assert archiver.once(name).gaps == {name: gaps[2:]}
    assert archiver.once(name).gaps == {}
    state = archiver.state(name)
    assert list(state.gaps) == gaps
    assert state.covered == {0: (OffsetRange(5, 40),), 1: (OffsetRange(0, 20), OffsetRange(30, 40))}


def test_offsets_that_retention_deletes_during_a_batch_are_gaps(archiver, topics, monkeypatch):
    """The log start offset moves before Spark reads, and after it has read, which loses nothing."""
    name = topics.create(partitions=2)
    topics.fill(name, numbered(range(40), partitions=2))
    write = BatchJobs.write

    def write_late(self, *arguments):
        topics.delete_before(name, 0, 7)
        written = write(self, *arguments)
        topics.delete_before(name, 0, 9)
        topics.delete_before(name, 1, 9)
        return written

    monkeypatch.setattr(BatchJobs, "write", write_late)
    assert archiver.once(name).gaps == {name: [Gap(0, 0, 7, "retention")]}
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
    assert archiver.state(new).covered == {0: (OffsetRange(10, 10),)}
    topics.fill(new, numbered(range(10, 15)))
    archiver.once(old, new)
    assert (archiver.numbers(old), archiver.numbers(new)) == (list(range(20)), list(range(10, 15)))
    archiver.once(timed, start=StartPosition("time", 1_700_000_000_006))
    assert archiver.numbers(timed) == list(range(6, 10))
    assert archiver.state(timed).gaps == ()


def test_two_archivers_duplicate_nothing(archiver, topics, monkeypatch):
    name = topics.create()
    topics.fill(name, numbered(range(10)))
    write, other_run = BatchJobs.write, threading.Event()

    def write_late(self, *arguments):
        written = write(self, *arguments)
        if not other_run.is_set():
            other_run.set()
            archiver.once(name)
        return written

    monkeypatch.setattr(BatchJobs, "write", write_late)
    with pytest.raises(PipelineError, match=f"another `kbroker archive run` has archived {name}-0 at the same time"):
        archiver.once(name)
    assert archiver.numbers(name) == list(range(10))


def test_a_table_that_another_program_has_changed_is_rejected(archiver, topics):
    name = topics.create()
    topics.fill(name, numbered(range(10)))
    archiver.once(name)
    table = open_archive(str(archiver.directory)).table(name)
    with table.iceberg.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(table.files()[0].entry)
    topics.fill(name, numbered(range(10, 20)))
    with pytest.raises(PipelineError, match=r"was changed by another program \(snapshot \d+ \(append\)\)"):
        archiver.once(name)


def test_timestamps_that_tables_cannot_hold_are_dead_letters(archiver, topics):
    name = topics.create(partitions=2, configs={"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)})
    poison = {3: 2**63 - 1, 5: 253_402_300_800_000, 8: -62_135_596_800_001}
    exact = {4: 253_402_300_799_999, 6: -62_135_596_800_000, 7: -30_000_000_000_000, 9: -1}
    timestamps = {n: 1_700_000_000_000 + n for n in range(10)} | poison | exact
    topics.fill(name, ({**record, "timestamp": timestamps[int(record["value"])]} for record in numbered(range(10), 2)))
    for _ in range(2):
        assert archiver.once(name).gaps == {}
        assert archiver.numbers(name) == [n for n in range(10) if n not in poison]
        assert archiver.state(name).covered == {0: (OffsetRange(0, 5),), 1: (OffsetRange(0, 5),)}
        archived = {}
        for file in archiver.files(name):
            rows = pq.read_table(file.path.removeprefix("file://"))
            micros = rows["timestamp"].cast("int64").to_pylist()
            archived |= {
                int(value): time // 1000 for value, time in zip(rows["value"].to_pylist(), micros, strict=True)
            }
        assert archived == {n: ms for n, ms in timestamps.items() if n not in poison}
        dead = find_dead_letters(open_archive(str(archiver.directory)), name).iceberg.scan().to_arrow().to_pylist()
        assert {int(row["value"]): row["reason"] for row in dead} == {
            n: f"the timestamp of {ms} ms is outside the years 1 to 9999" for n, ms in poison.items()
        }
        assert len(dead) == len(poison)


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
    assert "batch 1: " in command.errors
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
        with pytest.raises(ArchiveError, match=r"(?i)no space left on device"):
            archiver.once(name)
        assert archiver.numbers(name) == list(range(100))
        subprocess.run(["mount", "-o", "remount,size=64m", str(archiver.directory)], check=True)
        archiver.once(name)
        assert sum(file.rows for file in archiver.files(name)) == 120
    finally:
        # Lazily, because Spark may have left a file open.
        subprocess.run(["umount", "--lazy", str(archiver.directory)], check=True)
