"""The rows that a replay reads from tables: each value as it is, and damaged files as an error."""

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from kbroker.archive.catalogs import create_archive
from kbroker.archive.errors import ArchiveError
from kbroker.archive.topic_state import Gap
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.archived_rows import (
    COLUMNS,
    ROWS_SCHEMA,
    plan_storage,
    read_files,
    read_topics,
    require_files,
)
from tests.unit.support.archive_tables import append_rows


@pytest.fixture
def archive(tmp_path: Path):
    archive = create_archive(str(tmp_path), {})
    table = archive.create_table("t")
    for number in range(3):
        append_rows(table, 1, 10 * number, 10, 1000 * number - 20)
    return archive


def read(archive, columns=tuple(ROWS_SCHEMA)) -> pa.Table:
    topics = read_topics(archive, ["t"])
    paths = pa.RecordBatch.from_pylist([{"topic": "t", "path": file.path} for file in topics["t"].files])
    return pa.Table.from_batches(read_files([paths], {"t": topics["t"].io_properties}, columns))


def test_rows_have_the_types_of_spark(archive):
    rows = read(archive)
    assert rows.schema.field("key").type == pa.binary()
    assert sorted(rows.to_pylist(), key=lambda row: row["offset"])[11] == {
        "topic": "t",
        "partition": 1,
        "offset": 11,
        "timestamp": 981,
        "key": b"key-11",
        "value": b"value",
        "headers": [{"key": "h", "value": b"x"}],
    }
    assert min(rows["timestamp"].to_pylist()) == -20
    assert read(archive, ("topic", "offset")).column_names == ["topic", "offset"]


@pytest.mark.timeout(120)
def test_files_of_another_size_are_an_error(archive):
    topics = read_topics(archive, ["t"])
    files = {"t": topics["t"].files}
    require_files(topics, files)
    file = topics["t"].files[1]
    path = Path(file.path.removeprefix("file://"))
    for damage, message in (
        (lambda: path.write_bytes(b""), f"has 0 bytes instead of {file.size}; `kbroker archive verify` reports"),
        (lambda: (path.unlink(), os.mkfifo(path)), ""),
        (path.unlink, "is missing"),
    ):
        damage()
        with pytest.raises(PipelineError, match=f"{file.path}: {message}"):
            require_files(topics, files)


def test_a_damaged_page_is_an_error(archive):
    (path,) = [Path(file.path.removeprefix("file://")) for file in read_topics(archive, ["t"])["t"].files[:1]]
    data = bytearray(path.read_bytes())
    data[data.index(b"PAR1") + 60] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(PipelineError, match=r"parquet: .*`kbroker archive verify` reports what is damaged"):
        read(archive)


def test_topics_that_cannot_be_replayed(archive):
    with pytest.raises(ArchiveError, match="the archive has no topic u; it has t"):
        read_topics(archive, ["u"])
    with archive.table("t").iceberg.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("value")
    with pytest.raises(ArchiveError, match="topic t is archived without the columns value, so its records cannot be"):
        read_topics(archive, ["t"])


def test_offsets_that_were_deleted_since_a_plan(archive):
    table = archive.table("t")
    assert read_topics(archive, ["t"])["t"].missing_below({1: 30}) == 0
    table.commit("erase", replace(table.state, gaps=(Gap(1, 4, 5, "erased"), Gap(1, 29, 40, "retention"))))
    topic = read_topics(archive, ["t"])["t"]
    assert [topic.missing_below({1: end}) for end in (4, 5, 30, 50)] == [0, 1, 2, 12]
    assert topic.missing_below({}) == 0


def test_plans_are_in_the_archives_directory(archive, tmp_path):
    assert plan_storage(archive).root == str(tmp_path)
    archive.root = None  # as for one in a configured catalogue
    assert plan_storage(archive).root == str(tmp_path / "topics")
    assert set(COLUMNS) < set(ROWS_SCHEMA)
