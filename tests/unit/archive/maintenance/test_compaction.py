"""Compaction: the same rows in fewer files, with concurrent writers, damage and later schemas."""

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kbroker.archive.archive import Archive, ArchiveTable, ConflictError
from kbroker.archive.catalogs import create_archive, open_archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.errors import ArchiveError
from kbroker.archive.maintenance import rewriting
from kbroker.archive.maintenance.compaction import MergeResult, compact_topic
from kbroker.archive.maintenance.compaction_plan import plan_merges
from kbroker.archive.maintenance.snapshots import stored_files
from kbroker.archive.maintenance.upkeep import clean_up
from kbroker.archive.offset_ranges import OffsetRange
from tests.unit.support.archive_tables import DAY_MS, append_rows, make_rows


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return create_archive(str(tmp_path), {})


def rows_of(table: ArchiveTable) -> list[dict[str, Any]]:
    """Return all rows, read by pyiceberg, by partition and offset."""
    rows = ArchiveTable(table.iceberg.refresh(), table.topic).iceberg.scan().to_arrow()
    result: list[dict[str, Any]] = rows.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    return result


def compact(table: ArchiveTable) -> MergeResult:
    result = MergeResult()
    compact_topic(table, plan_merges(table.files()), result)
    return result


def test_the_same_rows_in_one_file_for_each_partition_and_day(archive: Archive) -> None:
    table = archive.create_table("t")
    for number in range(6):
        append_rows(table, number % 2, 10 * number, 10, timestamp_ms=DAY_MS * (number // 4))
    before, covered = rows_of(table), table.state.covered
    result = compact(table)
    assert (result.merged, result.written, result.rows, result.commits, result.damaged) == (4, 2, 40, 1, {})
    assert rows_of(table) == before
    other = open_archive(archive.location).table("t")
    assert (other.state.covered, other.foreign_change()) == (covered, None)
    assert sorted((file.partition, file.period, file.first, file.last) for file in other.files()) == [
        (0, 0, 0, 29),
        (0, 1, 40, 49),
        (1, 0, 10, 39),
        (1, 1, 50, 59),
    ]
    assert compact(table).commits == 0


def test_rows_are_sorted_and_pieces_are_small(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offset ranges that overlap, and a file whose rows are not in order; pieces of a few rows."""
    monkeypatch.setattr(rewriting, "_BATCH_BYTES", 500)
    monkeypatch.setattr(rewriting, "_GROUP_BYTES", 3000)
    table = archive.create_table("t")
    rows = pa.Table.from_batches([make_rows(0, 0, 300)])
    shuffled = rows.take([*range(50, 100), *range(50)])
    for part in (rows.filter(pa.compute.field("offset") >= 100)[::2], rows[101::2], shuffled):
        added = write_rows(table.write_target(), part.to_batches())
        table.commit("append", table.state, add=added)
    before = rows_of(table)
    assert compact(table).written == 1
    assert rows_of(table) == before
    (file,) = table.files()
    pieces = list(rewriting.read_rows(table, file))
    assert len(pieces) > 10
    offsets = [offset for piece in pieces for offset in piece["offset"].to_pylist()]
    assert all(low <= high for low, high in pairwise(offsets))


def test_other_writers_may_commit_meanwhile(archive: Archive) -> None:
    """Appends stay; files that another compaction has replaced are left alone."""
    table, other = archive.create_table("t"), archive.table("t")
    for number in range(4):
        append_rows(table, 0, number, 1)
    bins = plan_merges(table.files())
    other.refresh()
    append_rows(other, 0, 4, 1)
    result = MergeResult()
    compact_topic(table, bins, result)
    assert (result.merged, len(table.files())) == (4, 2)
    other.refresh()
    other.commit("observe", other.state)
    compact_topic(table, bins, result)
    assert (result.merged, result.commits) == (4, 1)
    assert table.refresh().covered == {0: (OffsetRange(0, 5),)}
    assert [row["offset"] for row in rows_of(table)] == [0, 1, 2, 3, 4]


def test_damaged_files_are_reported_and_left(archive: Archive) -> None:
    table = archive.create_table("t")
    files = [append_rows(table, 0, 10 * number, 10) for number in range(5)]
    paths = [Path(file.path.removeprefix("file://")) for file in files]
    data = bytearray(paths[1].read_bytes())
    data[len(data) // 2] ^= 1
    paths[1].write_bytes(data)
    paths[3].unlink()
    result = compact(table)
    assert (result.merged, result.written) == (3, 1)
    assert result.damaged == {
        files[1].path: "its bytes are not those that were committed",
        files[3].path: "it is missing",
    }
    assert {files[1].path, files[3].path} < {file.path for file in table.files()}


def test_columns_that_were_added_later(archive: Archive) -> None:
    """Rows of earlier files have null in them."""
    from pyiceberg.types import StringType

    table = archive.create_table("t")
    append_rows(table, 0, 0, 10)
    with table.iceberg.update_schema() as update:
        update.add_column("shop", StringType())
    table.refresh()
    rows = make_rows(0, 10, 10).append_column("shop", pa.array(["north"] * 10, pa.large_string()))
    table.commit("append", table.state, add=write_rows(table.write_target(), [rows]))
    before = rows_of(table)
    assert compact(table).written == 1
    assert rows_of(table) == before
    assert [row["shop"] for row in before] == [None] * 10 + ["north"] * 10


def test_tables_that_another_program_has_changed_are_refused(archive: Archive) -> None:
    table = archive.create_table("t")
    append_rows(table)
    append_rows(table, first=1)
    with table.iceberg.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(write_rows(table.write_target(), [make_rows(0, 7)])[0].entry)
    table.refresh()
    with pytest.raises(ArchiveError, match=r"another program has changed the table: snapshot \d+ \(append\)"):
        compact(table)


def test_a_compaction_that_is_killed_leaves_orphans(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its commit nothing has changed."""
    table = archive.create_table("t")
    for number in range(3):
        append_rows(table, 0, number, 1)
    files = {file.path for file in table.files()}

    def kill(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(table, "commit", kill)
        with pytest.raises(KeyboardInterrupt):
            compact(table)
    table.refresh()
    assert {file.path for file in table.files()} == files
    assert len([file for file in stored_files(table) if file.path.endswith(".parquet")]) == 4
    assert compact(table).written == 1


def test_a_run_commits_while_its_archive_is_compacted(archive: Archive) -> None:
    """Every record is there once, in each state that a reader sees."""
    table, other, reader = archive.create_table("t"), archive.table("t"), archive.table("t")
    commits, failures = 25, []

    def run() -> None:
        try:
            for number in range(commits):
                while True:
                    try:
                        append_rows(table, 0, number, 1)
                        break
                    except ConflictError:
                        table.refresh()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        other.refresh()
        compact(other)
        clean_up(other, other.state.time_ms)
        ends = reader.refresh().resume_offsets()
        offsets = sorted(reader.iceberg.scan().to_arrow()["offset"].to_pylist())
        assert offsets == list(range(ends.get(0, 0)))
    thread.join()
    assert failures == []
    assert [row["offset"] for row in rows_of(table)] == list(range(commits))
