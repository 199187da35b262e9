"""Compaction: every reader finds the same rows in fewer files, even with concurrent writers, damage and kills."""

import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest

from kbroker.cli import main
from kbroker.pipeline.archive import staging
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.compaction import CompactionOptions, clean_up, compact
from kbroker.pipeline.archive.compaction_plan import merged_stats, plan_merges
from kbroker.pipeline.archive.layout import STAGING
from kbroker.pipeline.archive.leftovers import remove_leftovers
from kbroker.pipeline.archive.manifest import CoveredRange, ManifestCommit
from kbroker.pipeline.archive.manifest_files import SparkMetadataLog
from kbroker.pipeline.archive.staging import data_file_writer
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.session import partition_keys
from kbroker.pipeline.storage.local import LocalStorage
from tests.compat.support import DEADLINE_S

pytestmark = [pytest.mark.spark, pytest.mark.feature("archive compact")]

TOPICS, PARTITIONS, ROWS = ("orders", "__odd.name-1"), 3, 900
T0 = 1_760_000_000_000
COLUMNS = ["topic", "partition", "offset", "key", "value", "headers", "timestamp", "timestampType", "date"]
Row = tuple[Any, ...]


def rows_of(spark: Any, start: int = 0) -> Any:
    """Return rows of two topics and three dates, with null and empty keys, values and headers, in no order."""
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
    """Commit `ROWS` rows in `files` files for each topic and date."""
    first, last = (id // (2 * PARTITIONS) for id in (start, start + ROWS))
    with data_file_writer(spark, archive) as writer:
        added = writer.write(rows_of(spark, start).repartition(files))
        writer.publish()
        covered = tuple(CoveredRange(topic, p, first, last) for topic in TOPICS for p in range(PARTITIONS))
        archive.commit(lambda _: ManifestCommit("append", T0, add=added, covered=covered))


class SmallFilesArchive:
    """An archive of small files, which is created once and restored for each test."""

    def __init__(self, spark: Any, directory: Path) -> None:
        self.spark = spark
        self.directory = directory / "archive"
        self._copy = directory / "copy"
        append(spark, Archive.open_or_create(LocalStorage(str(self.directory)), {"committed_only": False}))
        shutil.copytree(self.directory, self._copy)
        self.rows = by_arrow(self.directory)

    def restore(self) -> "SmallFilesArchive":
        shutil.rmtree(self.directory)
        shutil.copytree(self._copy, self.directory)
        return self

    def archive(self, storage: LocalStorage | None = None) -> Archive:
        return Archive.open(storage or LocalStorage(str(self.directory)))

    def data_files(self) -> set[str]:
        return {str(path.relative_to(self.directory)) for path in self.directory.rglob("*.parquet")}


@pytest.fixture(scope="module")
def small_archive_template(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> SmallFilesArchive:
    return SmallFilesArchive(spark, tmp_path_factory.mktemp("compact"))


@pytest.fixture
def small_archive(small_archive_template: SmallFilesArchive) -> SmallFilesArchive:
    return small_archive_template.restore()


def by_arrow(directory: Path) -> list[Row]:
    """Return all rows, sorted, read with pyarrow."""
    import pyarrow.dataset  # here, because it imports pandas

    table = pyarrow.dataset.dataset(str(directory), partitioning="hive").to_table(columns=COLUMNS)
    return normalize(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))


def by_spark(spark: Any, directory: Path) -> list[Row]:
    """Return all rows, sorted, read with Spark from the directory."""
    return normalize(spark.read.parquet(str(directory)).select(COLUMNS).collect())


def by_duckdb(pattern: str) -> list[Row]:
    # In UTC, without the time zone extension.
    columns = ", ".join(
        f'"{name}"' if name != "timestamp" else "make_timestamp(epoch_us(timestamp))" for name in COLUMNS
    )
    with duckdb.connect() as connection:
        query = f"SELECT {columns} FROM read_parquet('{pattern}', hive_partitioning=true)"
        return normalize(connection.execute(query).fetchall())


def normalize(rows: Any) -> list[Row]:
    """Return the same values for every reader: headers as pairs, timestamps without a time zone, dates as text."""
    result = []
    for topic, partition, offset, key, value, headers, timestamp, kind, date in rows:
        pairs = (
            None if headers is None else tuple(tuple(h.values()) if isinstance(h, dict) else tuple(h) for h in headers)
        )
        cells = (key and bytes(key), value and bytes(value), pairs, timestamp.replace(tzinfo=None), kind, str(date))
        result.append((topic, partition, offset, *cells))
    return sorted(result, key=lambda row: row[:3])


def test_every_reader_finds_the_same_rows_in_fewer_files(small_archive: SmallFilesArchive) -> None:
    before = small_archive.archive().state()
    assert len(small_archive.rows) == ROWS
    assert by_spark(small_archive.spark, small_archive.directory) == small_archive.rows
    progress: list[int] = []
    result = compact(small_archive.spark, small_archive.archive(), advance=progress.append)
    after = small_archive.archive().state()
    assert (result.merged, result.written, result.rows, result.damaged) == (24, 6, ROWS, {})
    assert sum(progress) == result.bytes_before == sum(file.size for file in before.files.values())
    assert merged_stats(after.files.values()) == merged_stats(before.files.values())
    assert (after.covered, after.commit_number) == (before.covered, before.commit_number + 1)
    # There are no other files, so readers without the manifest find the same rows.
    assert small_archive.data_files() == set(after.files)
    assert not list((small_archive.directory / "_staging").glob("*"))
    assert by_spark(small_archive.spark, small_archive.directory) == small_archive.rows
    assert by_arrow(small_archive.directory) == small_archive.rows
    assert by_duckdb(f"{small_archive.directory}/*/*/*.parquet") == small_archive.rows
    assert by_duckdb(f"{small_archive.directory}/**/*.parquet") == small_archive.rows
    for path in after.files:
        keys = pyarrow.parquet.ParquetFile(small_archive.directory / path).read(["partition", "offset"]).to_pylist()
        assert keys == sorted(keys, key=lambda row: (row["partition"], row["offset"]))
    assert compact(small_archive.spark, small_archive.archive()).merged == 0


def test_each_bin_becomes_one_file(small_archive: SmallFilesArchive) -> None:
    largest = max(file.size for file in small_archive.archive().state().files.values())
    options = CompactionOptions(target_bytes=largest * 2 + 2, topics=["orders"], round_bytes=largest * 5)
    bins = plan_merges(small_archive.archive().state(), options.target_bytes, options.topics)
    assert len({(merge_bin.topic, merge_bin.date) for merge_bin in bins}) < len(bins)
    others = {path for path in small_archive.archive().state().files if "orders" not in path}
    result = compact(small_archive.spark, small_archive.archive(), options)
    assert result.commits > 1
    assert result.written >= len(bins)
    assert others < set(small_archive.archive().state().files) == small_archive.data_files()
    assert by_spark(small_archive.spark, small_archive.directory) == small_archive.rows


def test_task_keys_assign_one_task_each(spark: Any) -> None:
    for count in (1, 40):
        keys = partition_keys(spark, count)
        frame = spark.createDataFrame([(key,) for key in keys], "key bigint").repartition(count, "key")
        tasks = frame.selectExpr("key", "spark_partition_id()").collect()
        assert sorted(task for _, task in tasks) == list(range(count))
        assert [key for key, _ in sorted(tasks, key=lambda row: row[1])] == keys


class InterceptedStorage(LocalStorage):
    """A storage that calls `before` with each operation and path, and runs one operation at a time."""

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
    """Copies of the directory as a kill -9 before each operation would leave it, with dead writers."""

    def __init__(self, small_archive: SmallFilesArchive, directory: Path) -> None:
        self._small_archive = small_archive
        self._directory = directory
        self.steps: list[tuple[str, Path]] = []

    def copy(self, operation: str, path: str) -> None:
        copy = self._directory / f"{len(self.steps)}"
        shutil.copytree(self._small_archive.directory, copy, copy_function=os.link)
        self.steps.append((f"{operation} {path.partition('/')[0].partition('=')[0]}", copy))
        dead = staging.encode_owner(staging.this_process()._replace(start="0"))
        for file in copy.glob(f"{STAGING}/*/owner.json"):
            file.unlink()  # the file is a hard link to that of the living writer
            file.write_bytes(dead)


def test_a_kill_at_any_step_leaves_a_consistent_archive(small_archive: SmallFilesArchive, tmp_path: Path) -> None:
    snapshots = Snapshots(small_archive, tmp_path)
    before = set(small_archive.archive().state().files)
    compact(
        small_archive.spark,
        small_archive.archive(InterceptedStorage(small_archive.directory, snapshots.copy)),
        CompactionOptions(topics=["orders"]),
    )
    after = set(small_archive.archive().state().files)
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
        # Spark's metadata lists the files at their original location: also either the old or the new ones.
        listed = {
            uri.partition(f"{small_archive.directory}/")[2]: size
            for uri, size in SparkMetadataLog(archive.storage).read().items()
        }
        assert set(listed) in (before, after), step
        assert all((copy / path).stat().st_size == size for path, size in listed.items()), step
        # The next run deletes the leftovers; then readers without the manifest find the same rows.
        clean_up(archive)
        assert {str(path.relative_to(copy)) for path in copy.rglob("*.parquet")} == set(state.files), step
        assert not list((copy / STAGING).glob("*")), step
        assert by_arrow(copy) == small_archive.rows, step
    for step in ("create _manifest", "create _spark_metadata"):
        copy = snapshots.steps[steps.index(step)][1]
        compact(small_archive.spark, Archive.open(LocalStorage(str(copy))))
        assert len(list(copy.rglob("*.parquet"))) == 6
        assert by_spark(small_archive.spark, copy) == small_archive.rows


def test_concurrent_readers_read_each_row_once_or_fail(small_archive: SmallFilesArchive) -> None:
    largest = max(file.size for file in small_archive.archive().state().files.values())
    results: list[int | str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                frame = small_archive.spark.read.parquet(str(small_archive.directory))
                results.append(frame.selectExpr("count(DISTINCT topic, partition, offset) + count(*)").collect()[0][0])
            except Exception as error:
                results.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        # Several commits.
        result = compact(small_archive.spark, small_archive.archive(), CompactionOptions(round_bytes=largest * 8))
    finally:
        stop.set()
        reader.join(DEADLINE_S)
    assert result.commits >= 3
    numbers = [result for result in results if isinstance(result, int)]
    assert len(numbers) > 2
    assert set(numbers) == {2 * ROWS}
    missing = re.compile(r"FILE_NOT_EXIST|FileNotFound|PATH_NOT_FOUND|does not exist")
    assert [result for result in results if isinstance(result, str) and not missing.search(result)] == []
    assert by_spark(small_archive.spark, small_archive.directory) == small_archive.rows


def damage(small_archive: SmallFilesArchive, path: str) -> None:
    data = bytearray((small_archive.directory / path).read_bytes())
    data[len(data) // 2] ^= 1
    (small_archive.directory / path).write_bytes(data)


def test_a_damaged_file_is_never_merged(small_archive: SmallFilesArchive, capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(small_archive.archive().state().files)
    changed, fifo, missing = files[0], files[1], files[-1]
    damage(small_archive, changed)
    data = (small_archive.directory / changed).read_bytes()
    (small_archive.directory / missing).unlink()
    (small_archive.directory / fifo).unlink()
    os.mkfifo(small_archive.directory / fifo)
    assert main(["archive", "compact", str(small_archive.directory)]) == 1
    output = capsys.readouterr()
    assert f"{changed}: its bytes are not those that were committed; it was not merged" in output.err
    assert f"{missing}: it is missing; it was not merged" in output.err
    assert f"{fifo}: it cannot be read (is a FIFO); it was not merged" in output.err
    assert output.out.startswith("merged 21 files")
    after = small_archive.archive().state().files
    assert (small_archive.directory / changed).read_bytes() == data
    assert {changed, fifo, missing} <= set(after)
    assert len(after) == 9


def test_rows_with_another_checksum_are_not_committed(small_archive: SmallFilesArchive) -> None:
    archive = small_archive.archive()
    file = next(iter(archive.state().files.values()))
    stats = file.partitions[0]
    changed = file._replace(partitions=(stats._replace(checksum=stats.checksum ^ 1), *file.partitions[1:]))
    archive.commit(lambda _: ManifestCommit("compact", T0, remove=(file.path,)))
    archive.commit(lambda _: ManifestCommit("append", T0, add=(changed,)))
    before = archive.state()
    with pytest.raises(PipelineError, match=rf"^{file.topic}-{stats.partition} of {file.date} would not be the same"):
        compact(small_archive.spark, archive)
    assert archive.state() == before
    assert small_archive.data_files() == set(before.files)
    assert by_spark(small_archive.spark, small_archive.directory) == small_archive.rows


def run_before_first(operation: str, action: Callable[[], None]) -> Callable[[str, str], None]:
    """Run an action before the first storage operation of a kind."""
    pending = [action]

    def before(current: str, path: str) -> None:
        if current == operation and pending:
            pending.pop()()

    return before


def test_concurrent_compactions_and_an_append(small_archive: SmallFilesArchive) -> None:
    def other() -> None:
        append(small_archive.spark, small_archive.archive(), start=ROWS, files=1)
        assert compact(small_archive.spark, small_archive.archive(), CompactionOptions(topics=["orders"])).merged > 0

    # The other one replaces the files of one topic before this one commits.
    storage = InterceptedStorage(small_archive.directory, run_before_first("rename", other))
    result = compact(small_archive.spark, small_archive.archive(storage))
    state = small_archive.archive().state()
    assert result.merged == 12
    assert sum(file.rows for file in state.files.values()) == 2 * ROWS
    assert small_archive.data_files() == set(state.files)
    rows = by_spark(small_archive.spark, small_archive.directory)
    assert rows == by_arrow(small_archive.directory)
    assert len({row[:3] for row in rows}) == len(rows) == 2 * ROWS


def test_replaced_files_are_kept_for_readers(small_archive: SmallFilesArchive) -> None:
    before = small_archive.archive().state().files
    now_ms = [T0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        # Other writers do not delete them as leftovers, and readers that started earlier can finish.
        remove_leftovers(small_archive.archive())
        assert set(before) < small_archive.data_files()
        assert sum(pyarrow.parquet.read_metadata(small_archive.directory / path).num_rows for path in before) == ROWS
        assert small_archive.spark.read.parquet(str(small_archive.directory)).count() == ROWS
        now_ms[0] += round(seconds * 1000)

    compact(
        small_archive.spark,
        small_archive.archive(),
        CompactionOptions(keep_replaced_s=30),
        now_ms=lambda: now_ms[0],
        sleep=sleep,
    )
    assert slept == [30]
    assert small_archive.data_files() == set(small_archive.archive().state().files)
    assert not list((small_archive.directory / "_staging").glob("*"))


def test_output_of_the_command(small_archive: SmallFilesArchive, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(small_archive.directory)
    before = small_archive.data_files()
    date = sorted(small_archive.archive().state().files.values())[0].date
    assert main(["archive", "compact", directory, "--dry-run", "--topic", "orders", "--date", date]) == 0
    planned = capsys.readouterr().out.splitlines()
    assert planned[0].split() == ["TOPIC", "DATE", "FILES", "BECOME", "SIZE"]
    assert planned[1].split()[:4] == ["orders", date, "4", "1"]
    assert len(planned) == 2
    assert small_archive.data_files() == before
    assert main(["archive", "compact", directory, "--topic", "orders", "--date", date]) == 0
    assert capsys.readouterr().out.startswith("merged 4 files of ")
    assert main(["archive", "compact", directory]) == 0
    assert capsys.readouterr().out.startswith("merged 20 files of ")
    assert main(["archive", "compact", directory]) == 0
    assert capsys.readouterr().out == "there is nothing to merge\n"
    assert by_spark(small_archive.spark, small_archive.directory) == small_archive.rows
