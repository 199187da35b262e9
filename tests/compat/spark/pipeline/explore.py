"""Random kills of an archiver, a compactor and the broker, while programs write with transactions and without.

    python -m tests.compat.spark.pipeline.explore --rounds 5 --seed 1

In the end the archive (--committed-only) has to hold exactly what a read_committed consumer sees, `archive verify` has
to find nothing, and pyarrow has to read it. While it runs, whatever is killed, the committed files have to be there,
and those that Spark's view names. One line for each round; the first difference ends it, its directory is kept.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.storage.location import open_storage
from tests.compat.spark.pipeline.processes import Command
from tests.compat.spark.pipeline.writers import Writers
from tests.compat.support import BrokerProcess, eventually, unique

TOPICS = [("orders", 3), ("notes", 2)]
LATE = ("orders-late", 1)
PATTERN = "orders.*|notes"
LONG_S = 300.0

# topic, partition, offset, timestamp in ms, key, value, headers
Row = tuple[str, int, int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


class Round:
    """One broker, one archive, and everything that is killed."""

    def __init__(self, directory: Path, seed: int, seconds: float) -> None:
        self.directory = directory
        self.dice = random.Random(seed)
        self.seconds = seconds
        self.archive = directory / "archive"
        self.told: Counter[str] = Counter()
        self.broker = BrokerProcess(directory)
        self.compact_at = 0.0
        self.up = True
        self.orphan = 0  # the start of the archiver that last saw the broker go
        self.writers = Writers(self.broker.bootstrap, TOPICS, seed)
        at = ("--bootstrap", self.broker.bootstrap)
        run = ("archive", "run", self.archive, "--pattern", PATTERN, "--committed-only", *at)
        self.archiver = Command(directory / "archiver", *run, "--every", "500ms")
        self.last = Command(directory / "last", *run, "--once")
        self.compactor = Command(directory / "compactor", "archive", "compact", self.archive)
        self.verifier = Command(directory / "verifier", "archive", "verify", self.archive, *at)

    def run(self) -> str:
        """Gives a line about what was done; AssertionError is a finding."""
        try:
            self.broker.start()
            self.create(TOPICS)
            self.writers.start()
            self.disturb()
            self.writers.stop()
            return self.settle()
        finally:
            for command in (self.archiver, self.compactor, self.last, self.verifier):
                command.kill()
            self.broker.end()

    def create(self, topics: list[tuple[str, int]]) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        # The records are of any day: none is to be too old.
        kept = {"retention.ms": "-1"}
        for made in admin.create_topics([NewTopic(*topic, config=kept) for topic in topics]).values():
            made.result(30)

    def disturb(self) -> None:
        end = time.monotonic() + self.seconds
        self.archiver.start()
        late = self.dice.random() * self.seconds / 2
        while (left := end - time.monotonic()) > 0:
            if late and self.seconds - left > late:
                late = 0
                self.grow()
            # Some die while they start; most have done something before.
            if self.dice.random() < 0.7:
                self.work()
            self.wait(self.dice.random() * self.dice.choice((0.5, 3.0, 6.0)))
            self.one_fault()
            self.whole()

    def grow(self) -> None:
        """A topic more that the pattern matches, and a partition more."""
        self.create([LATE])
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        admin.create_partitions([NewPartitions("notes", 3)])["notes"].result(30)
        self.writers.also(*LATE)
        self.writers.also("notes", 3)

    def wait(self, seconds: float) -> None:
        """Meanwhile what ended by itself is looked at: only a compactor may, having done its work."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.tend()
            time.sleep(0.1)

    def work(self) -> None:
        """Until a commit was made, for a minute at most: there may be nothing to commit behind an open transaction."""
        before, end = self.commits(), time.monotonic() + 60
        while self.commits() == before and time.monotonic() < end:
            self.wait(0.2)

    def commits(self) -> int:
        return len(list(self.archive.glob("_manifest/*[0-9].json")))

    def tend(self) -> None:
        code = self.archiver.ended()
        if code is not None:
            # One that starts without a broker says so and ends; one that is at work waits for it.
            excused = code == 1 and self.archiver.starts == self.orphan and "127.0.0.1" in self.archiver.errors
            assert excused, f"the archiver ended with {code}:\n{self.archiver.errors[-4000:]}"
            self.told["archiver found no broker"] += 1
            self.archiver.wait(LONG_S)
            if self.up:
                self.archiver.start()
        code = self.compactor.ended()
        if code is not None:
            assert code == 0, f"the compactor ended with {code}:\n{self.compactor.errors[-4000:]}"
            self.compactor.wait(LONG_S)
            self.told["compactions"] += 1
            self.compact_at = time.monotonic() + self.dice.random() * 10
        if not self.compactor.started and self.created() and time.monotonic() > self.compact_at:
            self.compactor.start()

    def created(self) -> bool:
        return self.commits() > 0

    def one_fault(self) -> None:
        which = self.dice.choices(
            ("archiver", "archiver's python", "archiver's jvm", "archiver stopped", "compactor", "broker", "both"),
            (4, 3, 1, 1, 4, 3, 1),
        )[0]
        self.told[which] += 1
        if which in ("archiver", "both"):
            self.archiver.kill()
        elif which == "archiver's python":
            self.archiver.kill(whole=False)
        elif which == "archiver's jvm":
            self.archiver.kill_jvm()
        elif which == "archiver stopped":
            code = self.archiver.stop(LONG_S)
            # Before its handler stands it ends as any program.
            assert code in (0, -15, 143), f"SIGTERM: {code}: {self.archiver.errors[-4000:]}"
        if which in ("compactor", "both"):
            self.compactor.kill(whole=self.dice.random() < 0.5)
        if which in ("broker", "both"):
            self.broker.kill()
            self.up, self.orphan = False, self.archiver.starts
            self.wait(self.dice.random() * 3)
            self.broker.start()
            self.up = True
        if not self.archiver.started:
            self.archiver.start()

    def whole(self) -> None:
        """What is committed is there, and what the view names too, whoever was killed."""
        if not self.created():
            return
        for _ in range(20):
            state = Archive.open(open_storage(str(self.archive))).state()
            viewed = view(self.archive)
            gone = [path for path in (*state.files, *viewed) if not (self.archive / path).exists()]
            if not gone:
                return
            time.sleep(0.1)
        raise AssertionError(f"committed or in the view, and not there: {gone[:5]} of {len(gone)}")

    def settle(self) -> str:
        self.archiver.stop(LONG_S)
        self.compactor.kill()
        self.succeeds(self.last)
        wanted = read_committed(self.broker.bootstrap)
        self.equal(wanted, "archived")
        self.succeeds(self.verifier)
        self.succeeds(self.compactor)
        self.equal(wanted, "compacted")
        self.succeeds(self.verifier)
        state = Archive.open(open_storage(str(self.archive))).state()
        assert not state.gaps, f"gaps: {state.gaps}"
        found = sorted(str(path.relative_to(self.archive)) for path in self.archive.glob("topic=*/*/*.parquet"))
        assert found == sorted(state.files), "other files lie in the archive than it has committed"
        spans = {len(spans) for spans in state.covered.values()}
        assert spans <= {1}, f"covered ranges have holes: {state.covered}"
        faults = ", ".join(f"{what} {count}" for what, count in sorted(self.told.items()))
        w = self.writers
        return (
            f"{len(wanted)} records of {w.committed} committed transactions, {w.plain} without; {w.aborted} aborted, "
            f"{w.failed} cut; {state.commit_number + 1} commits; {faults}"
        )

    def succeeds(self, command: Command) -> None:
        command.start()
        code = command.wait(LONG_S)
        assert code == 0, f"{code}:\n{command.output[-4000:]}\n{command.errors[-4000:]}"

    def equal(self, wanted: list[Row], what: str) -> None:
        found = archived(self.archive)
        if found != wanted:
            more, less = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
            twice = [row[:3] for row, count in Counter(found).items() if count > 1]
            raise AssertionError(
                f"{what}: {len(found)} rows for {len(wanted)} records; {len(twice)} twice: {twice[:3]}; "
                f"too many: {[row[:3] for row in more][:5]}; missing: {[row[:3] for row in less][:5]}"
            )


def view(archive: Path) -> list[str]:
    """The files that Spark's own reader of the directory would read, relative to it."""
    logs = {path: int(path.name.removesuffix(".compact")) for path in (archive / "_spark_metadata").glob("[0-9]*")}
    whole = max((number for path, number in logs.items() if path.suffix), default=-1)
    paths = []
    for path, number in logs.items():
        if number >= whole:
            try:
                lines = path.read_text().splitlines()[1:]
            except FileNotFoundError:
                return []
            paths += [json.loads(line)["path"].partition(f"{archive.name}/")[2] for line in lines]
    return paths


def archived(archive: Path) -> list[Row]:
    """The committed rows, by pyarrow."""
    files = [str(archive / path) for path in Archive.open(open_storage(str(archive))).state().files]
    if not files:
        return []
    hive = pyarrow.dataset.partitioning(flavor="hive")
    table = pyarrow.dataset.dataset(files, partitioning=hive, partition_base_dir=str(archive)).to_table()
    return sorted((_row(row) for row in table.to_pylist()), key=lambda row: row[:3])


def _row(row: dict[str, Any]) -> Row:
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    when = round(row["timestamp"].timestamp() * 1000)
    return row["topic"], row["partition"], row["offset"], when, row["key"], row["value"], headers


def read_committed(bootstrap: str) -> list[Row]:
    """What a read_committed consumer sees of all topics, once no transaction is open any more."""
    names = [name for name, _ in (*TOPICS, LATE)]
    level = {"isolation.level": "read_committed", "enable.partition.eof": True, "group.id": unique("reader")}
    consumer = Consumer({"bootstrap.servers": bootstrap, **level})
    loose = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": unique("ends"), "isolation.level": "read_uncommitted"}
    )
    try:
        known = consumer.list_topics(timeout=30).topics
        places = [TopicPartition(name, p, 0) for name in names if name in known for p in known[name].partitions]
        eventually(
            lambda: all(_ends(consumer, place) == _ends(loose, place) for place in places),
            "the end of every transaction",
            120,
        )
        consumer.assign(places)
        rows: list[Row] = []
        ended: set[tuple[str, int]] = set()
        while len(ended) < len(places):
            for m in consumer.consume(5000, timeout=1.0):
                if m.error():
                    ended.add((m.topic(), m.partition()))
                    continue
                headers = tuple(m.headers() or ())
                rows.append((m.topic(), m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value(), headers))
    finally:
        consumer.close()
        loose.close()
    return sorted(rows, key=lambda row: row[:3])


def _ends(consumer: Consumer, place: TopicPartition) -> int:
    return int(consumer.get_watermark_offsets(place, timeout=30)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120, help="of kills in each round")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for seed in range(given.seed, given.seed + given.rounds):
        directory = Path(tempfile.mkdtemp(prefix=f"kbroker-archive-{seed}-"))
        begin = time.monotonic()
        try:
            line = Round(directory, seed, given.seconds).run()
        except AssertionError as finding:
            print(f"seed {seed}: {finding}\nkept: {directory}", file=sys.stderr)
            return 1
        print(f"seed {seed}, {time.monotonic() - begin:.0f} s: {line}", flush=True)
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
