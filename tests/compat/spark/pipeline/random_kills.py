"""Kills an archiver, a compactor and the broker at random, while programs write with and without transactions.

    python -m tests.compat.spark.pipeline.random_kills --rounds 5 --seed 1

At the end of a round the archive (--committed-only) must contain exactly what a read_committed consumer reads, as
pyarrow reads its files, and `archive verify` must find no difference. Throughout a round, the files of the tables must
exist. Prints one line per round. The first failure ends the program, and the directory of its round is kept.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.catalogs import DATABASE, open_archive
from tests.compat.spark.pipeline.processes import Command
from tests.compat.spark.pipeline.random_writers import RandomWriters
from tests.compat.support import BrokerProcess, eventually, unique

TOPICS = [("orders", 3), ("notes", 2)]
LATE_TOPIC = ("orders-late", 1)
PATTERN = "orders.*|notes"
TIMEOUT_S = 300.0

# topic, partition, offset, timestamp in ms, key, value, headers
Row = tuple[str, int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


class Round:
    """One broker and one archive, with everything that is killed."""

    def __init__(self, directory: Path, seed: int, seconds: float) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        self.seconds = seconds
        self.archive = directory / "archive"
        self.events: Counter[str] = Counter()
        self.broker = BrokerProcess(directory)
        self.is_broker_up = True
        self.start_without_broker = 0  # the last start of the archiver that may fail because the broker was killed
        self.next_compaction_s = 0.0
        self.writers = RandomWriters(self.broker.bootstrap, TOPICS, seed)
        bootstrap = ("--bootstrap", self.broker.bootstrap)
        run = ("archive", "run", self.archive, "--pattern", PATTERN, "--committed-only", *bootstrap)
        self.archiver = Command(directory / "archiver", *run, "--every", "500ms")
        self.last_run = Command(directory / "last", *run, "--once")
        self.compactor = Command(directory / "compactor", "archive", "compact", self.archive)
        self.verifier = Command(directory / "verifier", "archive", "verify", self.archive, *bootstrap)

    def run(self) -> str:
        """Run one round, and return a line about it. Raises AssertionError for a failure."""
        try:
            self.broker.start()
            self.create_topics(TOPICS)
            self.writers.start()
            self.inject_faults()
            self.writers.stop()
            return self.check_result()
        finally:
            for command in (self.archiver, self.compactor, self.last_run, self.verifier):
                command.kill()
            self.broker.end()

    def create_topics(self, topics: list[tuple[str, int]]) -> None:
        """Create topics without retention, because the records have random dates."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        configs = {"retention.ms": "-1"}
        for created in admin.create_topics([NewTopic(*topic, config=configs) for topic in topics]).values():
            created.result(30)

    def inject_faults(self) -> None:
        end_s = time.monotonic() + self.seconds
        self.archiver.start()
        grow_after_s = self.rng.random() * self.seconds / 2
        while (remaining_s := end_s - time.monotonic()) > 0:
            if grow_after_s and self.seconds - remaining_s > grow_after_s:
                grow_after_s = 0
                self.add_topic_and_partition()
            # Most processes are killed after they have committed something, some while they start.
            if self.rng.random() < 0.7:
                self.wait_for_commit()
            self.wait(self.rng.random() * self.rng.choice((0.5, 3.0, 6.0)))
            self.inject_fault()
            self.check_files_exist()

    def add_topic_and_partition(self) -> None:
        """Create another topic that the pattern matches, and another partition."""
        self.create_topics([LATE_TOPIC])
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        admin.create_partitions([NewPartitions("notes", 3)])["notes"].result(30)
        self.writers.add_topic(*LATE_TOPIC)
        self.writers.add_topic("notes", 3)

    def wait(self, seconds: float) -> None:
        """Wait, while restarting processes that exit by themselves."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.check_processes()
            time.sleep(0.1)

    def wait_for_commit(self) -> None:
        """Wait for at most a minute: after an open transaction there may be nothing to commit."""
        before, end_s = self.count_commits(), time.monotonic() + 60
        while self.count_commits() == before and time.monotonic() < end_s:
            self.wait(0.2)

    def count_commits(self) -> int:
        return sum(table.state.commit for table in self.tables())

    def tables(self) -> list[ArchiveTable]:
        """Return the tables of the archive; none before its first commit."""
        return open_archive(str(self.archive)).tables() if (self.archive / DATABASE).exists() else []

    def check_processes(self) -> None:
        """Restart an archiver that started without a broker, and a compactor that has finished."""
        status = self.archiver.exit_status()
        if status is not None:
            # An archiver that starts without a broker exits with an error; a running one waits for it.
            is_expected = (
                status == 1
                and self.archiver.starts == self.start_without_broker
                and "127.0.0.1" in self.archiver.errors
            )
            assert is_expected, f"the archiver exited with {status}:\n{self.archiver.errors[-4000:]}"
            self.events["archiver found no broker"] += 1
            self.archiver.wait(TIMEOUT_S)
            if self.is_broker_up:
                self.archiver.start()
        status = self.compactor.exit_status()
        if status is not None:
            assert status == 0, f"the compactor exited with {status}:\n{self.compactor.errors[-4000:]}"
            self.compactor.wait(TIMEOUT_S)
            self.events["compactions"] += 1
            self.next_compaction_s = time.monotonic() + self.rng.random() * 10
        if not self.compactor.started and self.count_commits() and time.monotonic() > self.next_compaction_s:
            self.compactor.start()

    def inject_fault(self) -> None:
        fault = self.rng.choices(
            ("archiver", "archiver's python", "archiver's jvm", "archiver stopped", "compactor", "broker", "both"),
            (4, 3, 1, 1, 4, 3, 1),
        )[0]
        self.events[fault] += 1
        if fault in ("archiver", "both"):
            self.archiver.kill()
        elif fault == "archiver's python":
            self.archiver.kill(with_jvm=False)
        elif fault == "archiver's jvm":
            self.archiver.kill_jvm()
        elif fault == "archiver stopped":
            status = self.archiver.stop(TIMEOUT_S)
            # Before it has installed its signal handler, SIGTERM kills it.
            assert status in (0, -15, 143), f"SIGTERM: {status}: {self.archiver.errors[-4000:]}"
        if fault in ("compactor", "both"):
            self.compactor.kill(with_jvm=self.rng.random() < 0.5)
        if fault in ("broker", "both"):
            self.broker.kill()
            self.is_broker_up, self.start_without_broker = False, self.archiver.starts
            self.wait(self.rng.random() * 3)
            self.broker.start()
            self.is_broker_up = True
        if not self.archiver.started:
            self.archiver.start()

    def check_files_exist(self) -> None:
        """Check that the files of the tables exist. A compaction may replace and delete some meanwhile."""
        for _ in range(20):
            paths = [local_path(file.path) for table in self.tables() for file in table.files()]
            missing = [path for path in paths if not path.exists()]
            if not missing:
                return
            time.sleep(0.1)
        raise AssertionError(f"committed and missing: {missing[:5]} of {len(missing)}")

    def check_result(self) -> str:
        """Archive the remaining records, compact and verify the archive, and compare it with the broker."""
        self.archiver.stop(TIMEOUT_S)
        self.compactor.kill()
        self.require_success(self.last_run)
        expected = read_committed(self.broker.bootstrap)
        self.require_rows(expected, "archived")
        self.require_success(self.verifier)
        self.require_success(self.compactor)
        self.require_rows(expected, "compacted")
        self.require_success(self.verifier)
        tables = self.tables()
        for state in (table.state for table in tables):
            assert not state.gaps, f"gaps: {state.gaps}"
            assert {len(each) for each in state.covered.values()} <= {1}, f"covered ranges have holes: {state.covered}"
        events = ", ".join(f"{event} {count}" for event, count in sorted(self.events.items()))
        writers = self.writers
        return (
            f"{len(expected)} records of {writers.committed} committed transactions, {writers.plain} without; "
            f"{writers.aborted} aborted, {writers.failed} failed; {self.count_commits()} commits; {events}"
        )

    def require_success(self, command: Command) -> None:
        command.start()
        status = command.wait(TIMEOUT_S)
        assert status == 0, f"{status}:\n{command.output[-4000:]}\n{command.errors[-4000:]}"

    def require_rows(self, expected: list[Row], step: str) -> None:
        rows = read_archive(self.archive)
        if rows != expected:
            additional, missing = Counter(rows) - Counter(expected), Counter(expected) - Counter(rows)
            duplicates = [row[:3] for row, count in Counter(rows).items() if count > 1]
            raise AssertionError(
                f"{step}: {len(rows)} rows for {len(expected)} records; {len(duplicates)} twice: {duplicates[:3]}; "
                f"too many: {[row[:3] for row in additional][:5]}; missing: {[row[:3] for row in missing][:5]}"
            )


def local_path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def read_archive(archive: Path) -> list[Row]:
    """Return the committed rows, sorted by topic, partition and offset."""
    rows = [
        _to_row(table.topic, row)
        for table in open_archive(str(archive)).tables()
        for file in table.files()
        for row in pq.ParquetFile(local_path(file.path)).read().to_pylist()
    ]
    return sorted(rows, key=lambda row: row[:3])


def _to_row(topic: str, row: dict[str, Any]) -> Row:
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    timestamp_ms = round(row["timestamp"].timestamp() * 1000)
    return topic, row["partition"], row["offset"], timestamp_ms, row["key"], row["value"], headers


def read_committed(bootstrap: str) -> list[Row]:
    """Return the records that a read_committed consumer reads of all topics, when no transaction is open anymore."""
    names = [name for name, _ in (*TOPICS, LATE_TOPIC)]
    settings = {"isolation.level": "read_committed", "enable.partition.eof": True, "group.id": unique("reader")}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    uncommitted = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": unique("ends"), "isolation.level": "read_uncommitted"}
    )
    try:
        topics = consumer.list_topics(timeout=30).topics
        partitions = [TopicPartition(name, p, 0) for name in names if name in topics for p in topics[name].partitions]
        eventually(
            lambda: all(_end_offset(consumer, tp) == _end_offset(uncommitted, tp) for tp in partitions),
            "the end of every transaction",
            120,
        )
        consumer.assign(partitions)
        rows: list[Row] = []
        finished: set[tuple[str, int]] = set()
        while len(finished) < len(partitions):
            for m in consumer.consume(5000, timeout=1.0):
                if m.error():
                    finished.add((m.topic(), m.partition()))
                    continue
                headers = tuple(m.headers() or ())
                rows.append((m.topic(), m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value(), headers))
    finally:
        consumer.close()
        uncommitted.close()
    return sorted(rows, key=lambda row: row[:3])


def _end_offset(consumer: Consumer, tp: TopicPartition) -> int:
    return int(consumer.get_watermark_offsets(tp, timeout=30)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120, help="duration of the kills in each round")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for seed in range(arguments.seed, arguments.seed + arguments.rounds):
        directory = Path(tempfile.mkdtemp(prefix=f"kbroker-archive-{seed}-"))
        start_s = time.monotonic()
        try:
            line = Round(directory, seed, arguments.seconds).run()
        except AssertionError as failure:
            print(f"seed {seed}: {failure}\nkept: {directory}", file=sys.stderr)
            return 1
        print(f"seed {seed}, {time.monotonic() - start_s:.0f} s: {line}", flush=True)
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
