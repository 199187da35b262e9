"""Data files written and read with Spark: every reader sees exactly the committed rows, with and without kbroker."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.archive import Archive, archive_dataframe
from kbroker.pipeline.archive.leftovers import find_foreign_files, find_leftovers, remove_leftovers
from kbroker.pipeline.archive.manifest import DataFile, ManifestCommit
from kbroker.pipeline.archive.manifest_files import SparkMetadataLog
from kbroker.pipeline.archive.staging import data_file_writer
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage import open_storage
from kbroker.pipeline.storage.hadoop import HadoopStorage
from kbroker.pipeline.storage.local import LocalStorage
from kbroker.pipeline.storage.storage import walk

pytestmark = [pytest.mark.spark, pytest.mark.feature("archive files")]

DAY_MS = 24 * 3600 * 1000
NOON_MS = 1_709_208_000_000  # 2024-02-29T12:00:00Z


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive.open_or_create(LocalStorage(str(tmp_path / "an archive")), {})


def rows(spark, numbers, topic="t.b-c_1", partitions=2):
    """Return one row per number; the timestamps of each hundred are a day after those of the previous one."""
    frame = spark.range(numbers.start, numbers.stop).selectExpr(
        "CAST(concat('k', id) AS BINARY) AS key",
        "CAST(concat('v', id) AS BINARY) AS value",
        "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
        f"'{topic}' AS topic",
        f"CAST(id % {partitions} AS INT) AS partition",
        f"id DIV {partitions} AS offset",
        f"timestamp_millis({NOON_MS} + (id DIV 100) * {DAY_MS}) AS timestamp",
        "0 AS timestampType",
    )
    return frame.coalesce(1)


def append(spark, archive: Archive, frame, sort: bool = False) -> tuple[DataFile, ...]:
    with data_file_writer(spark, archive) as writer:
        written = writer.write(frame, sort)
        writer.publish()
        archive.commit(lambda state: ManifestCommit("append", 1, add=written))
    return written


def values(frame) -> list[str]:
    return sorted(row[0] for row in frame.selectExpr("CAST(value AS STRING)").collect())


def values_by_spark(spark, archive: Archive) -> list[str]:
    """Return the values that Spark reads from the directory."""
    return values(spark.read.parquet(archive.storage.root))


def expected(*ranges: range) -> list[str]:
    return sorted(f"v{n}" for numbers in ranges for n in numbers)


@contextmanager
def session_setting(spark, name: str, value: str) -> Iterator[None]:
    previous = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if previous is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, previous)


def test_rows_are_read_as_they_were_written(spark, archive):
    """They have nulls, empty bytes, headers, times before 1970, topics like numbers and nulls, another time zone."""
    header = [("a", b"1"), ("a", None), ("é", b"")]
    cases = [
        (b"k", b"v", header, "123", 0, 5, NOON_MS, 0),
        (None, b"", [], "null", 1, 6, NOON_MS + DAY_MS // 2 - 1, 1),
        (b"", None, None, "true", 2, 7, NOON_MS + DAY_MS // 2, 0),
        (b"\x00\xff", b"x" * 10_000, None, "2024-01-01", 0, 2**62, -1, 0),
        (b"k", b"v", None, "__consumer_offsets", 0, 8, 0, 0),
        (b"k", b"v", None, "0x1.e5_-", 0, 9, 1_709_208_000_001, 0),
    ]
    columns = "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int, "
    frame = spark.createDataFrame(cases, columns + "offset bigint, ms bigint, timestampType int")
    frame = frame.selectExpr("*", "timestamp_millis(ms) AS timestamp")
    with session_setting(spark, "spark.sql.session.timeZone", "Pacific/Auckland"):
        written = append(spark, archive, frame)
    dates = {file.topic: file.date for file in written}
    assert dates == {
        "123": "2024-02-29",
        "null": "2024-02-29",
        "true": "2024-03-01",
        "2024-01-01": "1969-12-31",
        "__consumer_offsets": "1970-01-01",
        "0x1.e5_-": "2024-02-29",
    }
    read = archive_dataframe(spark, archive, archive.state())
    assert read.columns == list(schema.NAMES)
    assert read.schema.simpleString() == spark.createDataFrame([], schema.COLUMNS).schema.simpleString()
    actual = {
        row.topic: (*row[:8], str(row.date), row.ms)
        for row in read.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    }
    for key, value, headers, topic, partition, offset, ms, kind in cases:
        row = actual[topic]
        assert (row[0], row[1], row[3:6], row[7:]) == (key, value, (topic, partition, offset), (kind, dates[topic], ms))
        assert [tuple(header) for header in row[2] or []] == (headers or [])
        assert (row[2] is None) == (headers is None)


def test_timestamps_beyond_the_year_9999_are_archived(spark, archive):
    """A producer may write microseconds instead of milliseconds."""
    time_ms = 1_709_208_000_000_123
    frame = rows(spark, range(2)).drop("timestamp").selectExpr("*", f"timestamp_millis({time_ms}) AS timestamp")
    (file,) = append(spark, archive, frame)
    assert (file.date, file.partitions[0].from_ms) == ("+56132-08-24", time_ms)
    read = archive_dataframe(spark, archive, archive.state()).where("date > '9999-12-31'")
    assert read.selectExpr("count(*)", "max(unix_millis(timestamp))").first() == (2, time_ms)
    assert spark.read.parquet(archive.storage.root).count() == 2


def test_statistics_of_written_files(spark, archive):
    frame = rows(spark, range(250)).selectExpr("*", "date'1999-01-01' AS date", "1 AS other")
    # Collected, so that the topic is not a constant of the query, as in a real archive.
    shuffled = spark.createDataFrame(frame.orderBy("value").collect(), frame.schema).coalesce(1)
    written = append(spark, archive, shuffled, sort=True)
    assert [(file.topic, file.date, file.rows) for file in sorted(written, key=lambda file: file.date)] == [
        ("t.b-c_1", "2024-02-29", 100),
        ("t.b-c_1", "2024-03-01", 100),
        ("t.b-c_1", "2024-03-02", 50),
    ]
    file = min(written, key=lambda file: file.date)
    size = sum(len(f"k{n}v{n}") for n in range(0, 100, 2))
    assert file.partitions[0][:-1] == (0, 0, 49, 50, size, NOON_MS, NOON_MS)
    assert [stats.partition for stats in file.partitions] == [0, 1]
    state = archive.state()
    computed = schema.partition_stats(archive_dataframe(spark, archive, state, [file]))
    assert sorted(stats for _, stats, _ in computed) == list(file.partitions)
    storage = archive.storage
    assert (storage.size(file.path), storage.sha256(file.path)) == (file.size, file.sha256)
    offsets = [
        tuple(row) for row in archive_dataframe(spark, archive, state, [file]).select("partition", "offset").collect()
    ]
    assert offsets == [(p, offset) for p in (0, 1) for offset in range(50)]
    # Without sort, the rows keep their order.
    (other,) = append(spark, archive, rows(spark, range(100), topic="u").orderBy("offset", "partition").coalesce(1))
    offsets = [
        tuple(row) for row in archive_dataframe(spark, archive, state, [other]).select("partition", "offset").collect()
    ]
    assert offsets == [(p, offset) for offset in range(50) for p in (0, 1)]
    state = archive.state()
    # There are no checksum files of Hadoop and no staged files.
    paths = [entry.name for entry in walk(storage) if not entry.name.startswith(("_manifest", "_spark_metadata"))]
    assert sorted(paths) == sorted(state.files)


def test_different_rows_have_different_checksums(spark):
    """Each row differs from the first, except the last: null headers equal an empty list of headers."""
    headers = (
        "array(struct('a' AS key, CAST('b' AS BINARY) AS value), struct('c' AS key, CAST(NULL AS BINARY) AS value))"
    )
    shifted = (
        "array(struct('a' AS key, CAST(NULL AS BINARY) AS value), struct('b' AS key, CAST('c' AS BINARY) AS value))"
    )
    base = {
        "key": "CAST('k' AS BINARY)",
        "value": "CAST('' AS BINARY)",
        "headers": headers,
        "partition": "0",
        "offset": "1L",
        "timestamp": "timestamp_millis(5)",
        "timestampType": "0",
    }
    changes = [
        {},
        {"key": "CAST('' AS BINARY)"},
        {"key": "CAST(NULL AS BINARY)"},
        {"value": "CAST(NULL AS BINARY)"},
        {"key": base["value"], "value": base["key"]},
        {"key": "CAST(NULL AS BINARY)", "value": base["key"]},
        {"value": "CAST(NULL AS BINARY)", "key": "CAST('k' AS BINARY)", "offset": "2L"},
        {"headers": shifted},
        {"headers": f"slice({headers}, 1, 1)"},
        {"headers": f"slice({headers}, 1, 0)"},
        {"partition": "1"},
        {"offset": "2L"},
        {"timestamp": "timestamp_millis(6)"},
        {"timestampType": "1"},
        {"headers": f"IF(offset = 1, NULL, {headers})"},
    ]
    single = spark.range(1).selectExpr("1L AS offset")
    frames = [
        single.selectExpr(*(f"{text} AS `{name}`" for name, text in (base | change).items())) for change in changes
    ]
    union = frames[0]
    for other in frames[1:]:
        union = union.unionByName(other)
    checksums = [row[0] for row in union.selectExpr(schema.ROW_CHECKSUM).collect()]
    assert len(set(checksums)) == len(changes) - 1
    assert checksums[-1] == checksums[9]


def test_spark_reads_exactly_the_committed_rows(spark, archive, monkeypatch):
    """Spark reads during appends, a replacement, a crash between commit and metadata update, leftovers and a move."""
    first = append(spark, archive, rows(spark, range(100)))
    append(spark, archive, rows(spark, range(100, 300)))
    assert values_by_spark(spark, archive) == expected(range(300))

    with data_file_writer(spark, archive) as writer:
        writer.write(rows(spark, range(300, 400)))
        writer.publish()
        assert values_by_spark(spark, archive) == expected(range(300))
        leftover = next(entry.name for entry in walk(archive.storage) if f"{writer.writer_id}-" in entry.name)
        shutil.copy(f"{archive.storage.root}/{leftover}", f"{archive.storage.root}/{leftover}.copy.parquet")
    assert not archive.storage.exists(leftover)
    assert find_foreign_files(archive) == [f"{leftover}.copy.parquet"]

    with data_file_writer(spark, archive) as writer:
        replacement = writer.write(archive_dataframe(spark, archive, archive.state(), first), sort=True)
        writer.publish()
        with monkeypatch.context() as patched:
            patched.setattr(SparkMetadataLog, "update", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                archive.commit(
                    lambda _: ManifestCommit("compact", 1, add=replacement, remove=tuple(f.path for f in first))
                )
    assert [file.partitions for file in replacement] == [file.partitions for file in first]
    # The metadata still lists the old files, which exist: the same rows.
    assert values_by_spark(spark, archive) == expected(range(300))
    reopened = Archive.open_or_create(LocalStorage(archive.storage.root), {})
    assert remove_leftovers(archive) == [file.path for file in first]
    for interval in ("10", "3", "17"):
        with session_setting(spark, "spark.sql.streaming.fileSink.log.compactInterval", interval):
            assert values_by_spark(spark, reopened) == expected(range(300))
    assert values(archive_dataframe(spark, reopened, reopened.state())) == expected(range(300))

    moved = f"{archive.storage.root}-moved"
    os.rename(archive.storage.root, moved)
    moved_archive = Archive.open_or_create(open_storage(f"file://{moved}"), {})
    assert values_by_spark(spark, moved_archive) == expected(range(300))
    assert spark.read.parquet(moved).where("date = '2024-03-01'").count() == 100


def test_spark_reads_every_one_of_many_commits(spark, archive):
    """The metadata has more than two compact files; the data files are links to one file."""
    archive = Archive.open_or_create(LocalStorage(f"{archive.storage.root} of 100% [x]"), {})
    (one,) = append(spark, archive, rows(spark, range(10)))
    for number in range(1, 34):
        path = one.path.replace("-00000", f"-{number:05d}")
        os.link(f"{archive.storage.root}/{one.path}", f"{archive.storage.root}/{path}")
        archive.commit(lambda state, path=path: ManifestCommit("append", 1, add=(one._replace(path=path),)))
        if number % 4 == 1:
            with session_setting(spark, "spark.sql.streaming.fileSink.log.compactInterval", str(number)):
                options = spark.read.option("__globPaths__", "false")
                assert options.parquet(archive.storage.root).count() == 10 * (number + 1)
    # With this many files, Spark does not list them.
    state = archive.state()
    assert len(state.files) == 34
    frame = archive_dataframe(spark, archive, state)
    names = frame.select("*", "_metadata.file_name").groupBy("topic", "partition", "date", "file_name").count()
    assert {(row.topic, row.partition, str(row.date), row["count"]) for row in names.collect()} == {
        ("t.b-c_1", 0, "2024-02-29", 5),
        ("t.b-c_1", 1, "2024-02-29", 5),
    }
    assert names.count() == 2 * 34
    with session_setting(spark, "spark.sql.streaming.fileStreamSink.ignoreMetadata", "true"):
        assert archive_dataframe(spark, archive, state).count() == frame.count() == 340


def test_empty_and_invalid_rows_are_not_written(spark, archive):
    with data_file_writer(spark, archive) as writer:
        assert writer.write(rows(spark, range(5)).where("partition > 5")) == ()
        with pytest.raises(PipelineError, match="rows for an archive need the column timestamp"):
            writer.write(rows(spark, range(5)).drop("timestamp"))
        with pytest.raises(PipelineError, match="rows without a topic"):
            writer.write(rows(spark, range(5), topic=""))
    assert archive_dataframe(spark, archive, archive.state()).count() == 0
    assert find_leftovers(archive) == find_foreign_files(archive) == []


def test_an_archive_through_hadoop(spark, tmp_path):
    """HadoopStorage is tested with the local file system."""
    location = f"file://{tmp_path}/by hadoop"
    with pytest.raises(PipelineError, match="no archive found"):
        Archive.open(HadoopStorage(location, spark))
    archive = Archive.open_or_create(HadoopStorage(location, spark), {})
    append(spark, archive, rows(spark, range(100)))
    append(spark, archive, rows(spark, range(100, 150)))
    assert values(archive_dataframe(spark, archive, archive.state())) == expected(range(150))
    assert values_by_spark(spark, archive) == expected(range(150))
    local = Archive.open(open_storage(location))
    assert local.state() == archive.state()
    assert sorted(SparkMetadataLog(local.storage).read()) == sorted(SparkMetadataLog(archive.storage).read())
    assert find_leftovers(local) == find_foreign_files(local) == []
