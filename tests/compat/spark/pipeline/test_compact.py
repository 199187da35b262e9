"""Compaction: the same rows in fewer files, for every reader, whatever goes on or goes wrong meanwhile."""

import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset
import pyarrow.parquet
import pytest

from kbroker.cli import main
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.compaction.compaction import CompactionClock, CompactionOptions, clean_up, compact
from kbroker.pipeline.archive.compaction.plan import merged_stats, plan_merges
from kbroker.pipeline.archive.layout import STAGING
from kbroker.pipeline.archive.leftovers import remove_leftovers
from kbroker.pipeline.archive.manifest.model import CoveredRange, ManifestCommit
from kbroker.pipeline.archive.manifest.spark_metadata import SparkMetadataLog
from kbroker.pipeline.archive.staging import owner
from kbroker.pipeline.archive.staging.data_file_writer import data_file_writer
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.tasks import task_keys
from kbroker.pipeline.storage.local import LocalStorage

pytestmark = [pytest.mark.spark, pytest.mark.feature("archive compact")]

TOPICS, PARTITIONS, ROWS = ("orders", "__odd.name-1"), 3, 900
T0 = 1_760_000_000_000
COLUMNS = ["topic", "partition", "offset", "key", "value", "headers", "timestamp", "timestampType", "date"]
Row = tuple[Any, ...]


def rows_of(spark: Any, start: int = 0) -> Any:
    """Rows of two topics over three dates, with all that keys, values and headers can be, in no order."""
    return spark.range(start, start + ROWS).selectExpr(
        "CASE id % 4 WHEN 0 THEN NULL WHEN 1 THEN X'' ELSE CAST(concat('key-', id) AS BINARY) END AS key",
        "CASE id % 5 WHEN 0 THEN NULL WHEN 1 THEN X'' ELSE CAST(sha1(CAST(id AS STRING)) AS BINARY) END AS value",
        "CASE id % 3 WHEN 0 THEN array() WHEN 1 THEN NULL ELSE array(struct('h' AS key, X'00FF' AS value), "
        "struct('h' AS key, CAST(NULL AS BINARY) AS value)) END AS headers",
        f"IF(id % 2 = 0, '{TOPICS[0]}', '{TOPICS[1]}') AS topic",
        f"CAST(id DIV 2 % {PARTITIONS} AS INT) AS partition",
        f"id DIV {2 * PARTITIONS} AS offset",
        f"timestamp_millis({T0} + id * 200000) AS timestamp",
        "CAST(id % 2 AS INT) AS timestampType",
    )


def append(spark: Any, archive: Archive, start: int = 0, files: int = 4) -> None:
    """Commits `ROWS` rows, so many files for each topic and date."""
    first, last = (id // (2 * PARTITIONS) for id in (start, start + ROWS))
    with data_file_writer(spark, archive) as writer:
        added = writer.write(rows_of(spark, start).repartition(files))
        writer.publish()
        covered = tuple(CoveredRange(topic, p, first, last) for topic in TOPICS for p in range(PARTITIONS))
        archive.commit(lambda _: ManifestCommit("append", T0, add=added, covered=covered))


class Place:
    """One archive of small files, which is made once and put back for each test at the same place."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.spark = spark
        self.directory = directory / "archive"
        self._kept = directory / "kept"
        append(spark, Archive.open_or_create(LocalStorage(str(self.directory)), {"committed_only": False}))
        shutil.copytree(self.directory, self._kept)
        self.rows = by_arrow(self.directory)

    def again(self) -> "Place":
        shutil.rmtree(self.directory)
        shutil.copytree(self._kept, self.directory)
        return self

    def archive(self, storage: LocalStorage | None = None) -> Archive:
        return Archive.open(storage or LocalStorage(str(self.directory)))

    def data_files(self) -> set[str]:
        return {str(path.relative_to(self.directory)) for path in self.directory.rglob("*.parquet")}


@pytest.fixture(scope="module")
def made(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(spark, tmp_path_factory.mktemp("compact"))


@pytest.fixture
def place(made: Place) -> Place:
    return made.again()


def by_arrow(directory: Path) -> list[Row]:
    """All rows, sorted, as pyarrow finds them."""
    table = pyarrow.dataset.dataset(str(directory), partitioning="hive").to_table(columns=COLUMNS)
    return plain(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))


def by_spark(spark: Any, directory: Path) -> list[Row]:
    """All rows, sorted, as Spark finds them without being told more than the directory."""
    return plain(spark.read.parquet(str(directory)).select(COLUMNS).collect())


def by_duckdb(pattern: str) -> list[Row]:
    # in UTC, without the extension that knows time zones
    columns = ", ".join(
        f'"{name}"' if name != "timestamp" else "make_timestamp(epoch_us(timestamp))" for name in COLUMNS
    )
    with duckdb.connect() as connection:
        query = f"SELECT {columns} FROM read_parquet('{pattern}', hive_partitioning=true)"
        return plain(connection.execute(query).fetchall())


def plain(rows: Any) -> list[Row]:
    """Values that every reader has alike: headers as pairs, times without a zone's name, dates as text."""
    result = []
    for topic, partition, offset, key, value, headers, timestamp, kind, date in rows:
        pairs = (
            None if headers is None else tuple(tuple(h.values()) if isinstance(h, dict) else tuple(h) for h in headers)
        )
        cells = (key and bytes(key), value and bytes(value), pairs, timestamp.replace(tzinfo=None), kind, str(date))
        result.append((topic, partition, offset, *cells))
    return sorted(result, key=lambda row: row[:3])


def test_every_reader_finds_the_same_rows_in_fewer_files(place: Place) -> None:
    before = place.archive().state()
    assert len(place.rows) == ROWS
    assert by_spark(place.spark, place.directory) == place.rows
    told: list[int] = []
    outcome = compact(place.spark, place.archive(), advance=told.append)
    after = place.archive().state()
    assert (outcome.merged, outcome.written, outcome.rows, outcome.damaged) == (24, 6, ROWS, {})
    assert sum(told) == outcome.bytes_before == sum(file.size for file in before.files.values())
    assert merged_stats(after.files.values()) == merged_stats(before.files.values())
    assert (after.covered, after.commit_number) == (before.covered, before.commit_number + 1)
    # nothing else is there: readers that know no manifest find the archive too
    assert place.data_files() == set(after.files)
    assert not list((place.directory / "_staging").glob("*"))
    assert by_spark(place.spark, place.directory) == place.rows
    assert by_arrow(place.directory) == place.rows
    assert by_duckdb(f"{place.directory}/*/*/*.parquet") == place.rows
    assert by_duckdb(f"{place.directory}/**/*.parquet") == place.rows
    for path in after.files:
        found = pyarrow.parquet.ParquetFile(place.directory / path).read(["partition", "offset"]).to_pylist()
        assert found == sorted(found, key=lambda row: (row["partition"], row["offset"]))
    assert compact(place.spark, place.archive()).merged == 0


def test_a_bin_is_one_file_however_many_there_are(place: Place) -> None:
    largest = max(file.size for file in place.archive().state().files.values())
    wanted = CompactionOptions(target_bytes=largest * 2 + 2, topics=["orders"], round_bytes=largest * 5)
    bins = plan_merges(place.archive().state(), wanted.target_bytes, wanted.topics)
    assert len({(one.topic, one.date) for one in bins}) < len(bins)
    others = {path for path in place.archive().state().files if "orders" not in path}
    outcome = compact(place.spark, place.archive(), wanted)
    assert outcome.commits > 1
    assert outcome.written >= len(bins)
    assert others < set(place.archive().state().files) == place.data_files()
    assert by_spark(place.spark, place.directory) == place.rows


def test_each_task_gets_what_is_meant_for_it(spark: Any) -> None:
    for count in (1, 40):
        keys = task_keys(spark, count)
        frame = spark.createDataFrame([(key,) for key in keys], "key bigint").repartition(count, "key")
        tasks = frame.selectExpr("key", "spark_partition_id()").collect()
        assert sorted(task for _, task in tasks) == list(range(count))
        assert [key for key, _ in sorted(tasks, key=lambda row: row[1])] == keys


class Watched(LocalStorage):
    """A storage that tells of every step before it is made, and makes one at a time."""

    def __init__(self, directory: Path, before: Callable[[str, str], None]) -> None:
        super().__init__(str(directory))
        self._before = before
        self._lock = threading.RLock()

    def create(self, path: str, data: bytes) -> bool:
        with self._lock:
            self._before("create", path)
            return super().create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        with self._lock:
            self._before("replace", path)
            super().replace(path, data)

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            self._before("rename", target)
            super().rename(source, target)

    def delete(self, path: str, recursive: bool = False) -> None:
        with self._lock:
            self._before("delete", path)
            super().delete(path, recursive)

    def sha256(self, path: str) -> str:
        with self._lock:
            self._before("sha256", path)
            return super().sha256(path)


class Snapshots:
    """What a kill -9 before each step would leave: the directory as it is then, its writers dead."""

    def __init__(self, place: Place, directory: Path) -> None:
        self._place = place
        self._directory = directory
        self.steps: list[tuple[str, Path]] = []

    def take(self, step: str, path: str) -> None:
        copy = self._directory / f"{len(self.steps)}"
        shutil.copytree(self._place.directory, copy, copy_function=os.link)
        self.steps.append((f"{step} {path.partition('/')[0].partition('=')[0]}", copy))
        dead = owner.encode(owner.this_process()._replace(start="0"))
        for file in copy.glob(f"{STAGING}/*/owner.json"):
            file.unlink()  # the one of the living has another name
            file.write_bytes(dead)


def test_a_kill_at_any_step_leaves_a_right_archive(place: Place, tmp_path: Path) -> None:
    snapshots = Snapshots(place, tmp_path)
    before = set(place.archive().state().files)
    compact(place.spark, place.archive(Watched(place.directory, snapshots.take)), CompactionOptions(topics=["orders"]))
    after = set(place.archive().state().files)
    steps = [step for step, _ in snapshots.steps]
    for step in (
        "create _staging", "sha256 topic", "sha256 _staging", "rename topic", "replace _staging", "create _manifest",
        "create _spark_metadata", "delete topic", "delete _staging",
    ):  # fmt: skip
        assert step in steps, (step, steps)
    for step, copy in snapshots.steps:
        archive = Archive.open(LocalStorage(str(copy)))
        state = archive.state()
        assert set(state.files) in (before, after), step
        # Spark's view is of the place where the archive was: it lists one of the two as well, whole
        listed = {
            uri.partition(f"{place.directory}/")[2]: size
            for uri, size in SparkMetadataLog(archive.storage).read().items()
        }
        assert set(listed) in (before, after), step
        assert all((copy / path).stat().st_size == size for path, size in listed.items()), step
        # the next run removes what is left over, and then all readers find the archive
        clean_up(archive)
        assert {str(path.relative_to(copy)) for path in copy.rglob("*.parquet")} == set(state.files), step
        assert not list((copy / STAGING).glob("*")), step
        assert by_arrow(copy) == place.rows, step
    for step in ("create _manifest", "create _spark_metadata"):
        copy = snapshots.steps[steps.index(step)][1]
        compact(place.spark, Archive.open(LocalStorage(str(copy))))
        assert len(list(copy.rglob("*.parquet"))) == 6
        assert by_spark(place.spark, copy) == place.rows


def test_readers_see_the_rows_once_or_fail_cleanly(place: Place) -> None:
    largest = max(file.size for file in place.archive().state().files.values())
    seen: list[int | str] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                frame = place.spark.read.parquet(str(place.directory))
                seen.append(frame.selectExpr("count(DISTINCT topic, partition, offset) + count(*)").collect()[0][0])
            except Exception as error:
                seen.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        # many commits, one after the other
        outcome = compact(place.spark, place.archive(), CompactionOptions(round_bytes=largest * 8))
    finally:
        over.set()
        reader.join(60)
    assert outcome.commits >= 3
    numbers = [one for one in seen if isinstance(one, int)]
    assert len(numbers) > 2
    assert set(numbers) == {2 * ROWS}
    gone = re.compile(r"FILE_NOT_EXIST|FileNotFound|PATH_NOT_FOUND|does not exist")
    assert [one for one in seen if isinstance(one, str) and not gone.search(one)] == []
    assert by_spark(place.spark, place.directory) == place.rows


def damage(place: Place, path: str) -> None:
    whole = bytearray((place.directory / path).read_bytes())
    whole[len(whole) // 2] ^= 1
    (place.directory / path).write_bytes(whole)


def test_a_damaged_file_is_never_merged(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(place.archive().state().files)
    changed, odd, missing = files[0], files[1], files[-1]
    damage(place, changed)
    kept = (place.directory / changed).read_bytes()
    (place.directory / missing).unlink()
    (place.directory / odd).unlink()
    os.mkfifo(place.directory / odd)
    assert main(["archive", "compact", str(place.directory)]) == 1
    shown = capsys.readouterr()
    assert f"{changed}: its bytes are not those that were committed; it was not merged" in shown.err
    assert f"{missing}: it is missing; it was not merged" in shown.err
    assert f"{odd}: it cannot be read (is a FIFO); it was not merged" in shown.err
    assert shown.out.startswith("merged 21 files")
    after = place.archive().state().files
    assert (place.directory / changed).read_bytes() == kept
    assert {changed, odd, missing} <= set(after)
    assert len(after) == 9


def test_rows_that_are_not_those_of_the_manifest_are_not_committed(place: Place) -> None:
    archive = place.archive()
    liar = next(iter(archive.state().files.values()))
    part = liar.partitions[0]
    lie = liar._replace(partitions=(part._replace(checksum=part.checksum ^ 1), *liar.partitions[1:]))
    archive.commit(lambda _: ManifestCommit("compact", T0, remove=(liar.path,)))
    archive.commit(lambda _: ManifestCommit("append", T0, add=(lie,)))
    before = archive.state()
    with pytest.raises(PipelineError, match=rf"^{liar.topic}-{part.partition} of {liar.date} would not be the same"):
        compact(place.spark, archive)
    assert archive.state() == before
    assert place.data_files() == set(before.files)
    assert by_spark(place.spark, place.directory) == place.rows


def once(action: Callable[[], None], wanted: str) -> Callable[[str, str], None]:
    """Does something before the first step of that name."""
    left = [action]

    def before(step: str, path: str) -> None:
        if step == wanted and left:
            left.pop()()

    return before


def test_two_compactions_at_once_and_an_append(place: Place) -> None:
    def other() -> None:
        append(place.spark, place.archive(), start=ROWS, files=1)
        assert compact(place.spark, place.archive(), CompactionOptions(topics=["orders"])).merged > 0

    # the other one is quicker: it has the files of one topic away before this one commits
    storage = Watched(place.directory, once(other, "rename"))
    outcome = compact(place.spark, place.archive(storage))
    state = place.archive().state()
    assert outcome.merged == 12
    assert sum(file.rows for file in state.files.values()) == 2 * ROWS
    assert place.data_files() == set(state.files)
    found = by_spark(place.spark, place.directory)
    assert found == by_arrow(place.directory)
    assert found[: len(place.rows)] != found
    assert len({row[:3] for row in found}) == len(found) == 2 * ROWS


def test_replaced_files_stay_for_their_readers(place: Place) -> None:
    before = place.archive().state().files
    now = [T0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        # nobody else takes them for leftovers, and who began before can finish
        remove_leftovers(place.archive())
        assert set(before) < place.data_files()
        assert sum(pyarrow.parquet.read_metadata(place.directory / path).num_rows for path in before) == ROWS
        assert place.spark.read.parquet(str(place.directory)).count() == ROWS
        now[0] += round(seconds * 1000)

    compact(
        place.spark,
        place.archive(),
        CompactionOptions(keep_replaced_s=30),
        clock=CompactionClock(lambda: now[0], sleep),
    )
    assert slept == [30]
    assert place.data_files() == set(place.archive().state().files)
    assert not list((place.directory / "_staging").glob("*"))


def test_the_command_says_what_it_does(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(place.directory)
    before = place.data_files()
    date = sorted(place.archive().state().files.values())[0].date
    assert main(["archive", "compact", directory, "--dry-run", "--topic", "orders", "--date", date]) == 0
    planned = capsys.readouterr().out.splitlines()
    assert planned[0].split() == ["TOPIC", "DATE", "FILES", "BECOME", "SIZE"]
    assert planned[1].split()[:4] == ["orders", date, "4", "1"]
    assert len(planned) == 2
    assert place.data_files() == before
    assert main(["archive", "compact", directory, "--topic", "orders", "--date", date]) == 0
    assert capsys.readouterr().out.startswith("merged 4 files of ")
    assert main(["archive", "compact", directory]) == 0
    assert capsys.readouterr().out.startswith("merged 20 files of ")
    assert main(["archive", "compact", directory]) == 0
    assert capsys.readouterr().out == "there is nothing to merge\n"
    assert by_spark(place.spark, place.directory) == place.rows
