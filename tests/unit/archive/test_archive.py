"""An archive: its settings, tables, commits and files, as two processes see them."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from kbroker.archive.archive import ArchiveTable, ConflictError
from kbroker.archive.catalogs import create_archive, open_archive
from kbroker.archive.data_files import DataFile, write_rows
from kbroker.archive.errors import ArchiveError
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import Gap
from tests.unit.support.archive_tables import DAY_MS, append_rows, make_rows


def test_commits_are_read_by_other_processes(tmp_path: Path) -> None:
    """Files and what they cover arrive together."""
    table = create_archive(str(tmp_path), {}).create_table("a.b-c")
    append_rows(table, partition=3, first=5, count=10)
    other = open_archive(str(tmp_path)).table("a.b-c")
    assert other.state.covered == {3: (OffsetRange(5, 15),)}
    assert other.state.resume_offsets() == {3: 15}
    (file,) = other.files()
    assert (file.partition, file.first, file.last, file.rows) == (3, 5, 14, 10)
    assert file.sha256 is not None
    assert other.foreign_change() is None


def test_the_second_of_two_writers_fails(tmp_path: Path) -> None:
    """Nothing is archived twice."""
    archive = create_archive(str(tmp_path), {})
    first, second = archive.create_table("t"), archive.table("t")
    append_rows(first, count=10)
    with pytest.raises(ConflictError, match="another process has changed the table"):
        append_rows(second, count=10)
    second.refresh()
    assert len(second.files()) == 1
    with pytest.raises(ArchiveError, match="archived already"):
        append_rows(second, count=10)
    second.commit("observe", replace(second.state, gaps=(Gap(0, 10, 12, "retention"),)))
    with pytest.raises(ConflictError):
        first.commit("observe", first.state)


def test_a_file_has_one_partition_and_one_day(tmp_path: Path) -> None:
    """Rows before 1970 too, whose days are negative numbers."""
    table = create_archive(str(tmp_path), {}).create_table("t")
    rows = pa.Table.from_batches(
        [make_rows(0, 0, 4, timestamp_ms=DAY_MS - 2), make_rows(1, 7, 2), make_rows(1, 9, 2, timestamp_ms=-1)]
    )
    files = write_rows(table.write_target(), rows.to_batches())
    found = sorted((file.partition, file.period, file.first, file.last) for file in files)
    assert found == [(0, 0, 0, 1), (0, 1, 2, 3), (1, -1, 9, 9), (1, 0, 7, 10)]
    assert "timestamp_day=1969-12-31/partition=1" in next(file.path for file in files if file.period == -1)


def test_files_can_be_replaced(tmp_path: Path) -> None:
    """A commit can remove files and add others."""
    table = create_archive(str(tmp_path), {"period": "hour"}).create_table("t")
    files: list[DataFile] = [append_rows(table, first=10 * number, count=10) for number in range(3)]
    merged = write_rows(table.write_target(), [make_rows(0, 0, 20)])
    table.commit("compact", table.state, add=merged, remove=files[:2])
    other = ArchiveTable(open_archive(str(tmp_path)).table("t").iceberg, "t")
    assert sorted((file.first, file.last) for file in other.files()) == [(0, 19), (20, 29)]


def test_no_archive(tmp_path: Path) -> None:
    """The message says how to create one."""
    with pytest.raises(ArchiveError, match="no archive found; create one with: kbroker archive run"):
        open_archive(str(tmp_path / "absent"))
    archive = create_archive(str(tmp_path), {})
    with pytest.raises(ArchiveError, match="has no topic t"):
        archive.table("t")
