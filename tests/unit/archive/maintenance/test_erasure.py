"""Erasure: exactly the records of the keys are gone, from all files and snapshots."""

from pathlib import Path

import pyarrow as pa
import pytest

from kbroker.archive.archive import Archive, ArchiveTable
from kbroker.archive.catalogs import create_archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.maintenance.compaction import MergeResult, compact_topic
from kbroker.archive.maintenance.compaction_plan import plan_merges
from kbroker.archive.maintenance.erasure import ErasureResult, erase_keys
from kbroker.archive.maintenance.upkeep import clean_up
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import Gap
from tests.unit.support.archive_tables import append_rows, make_rows

SECRET = b"customer-17 lives here"


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return create_archive(str(tmp_path), {})


def append_keys(table: ArchiveTable, first: int, keys: list[bytes | None]) -> None:
    """Commit a file with these keys; the values of the erased one can be found on disk."""
    rows = make_rows(0, first, len(keys))
    index = rows.schema.get_field_index("key")
    rows = rows.set_column(index, "key", pa.array(keys, pa.binary()))
    files = write_rows(table.write_target(), [rows])
    table.commit("append", table.state.with_covered([(0, OffsetRange(first, first + len(keys)))]), add=files)


def test_exactly_the_records_of_the_key(archive: Archive, tmp_path: Path) -> None:
    """Also from old snapshots, and a file that had nothing else is gone. The files without the key are not changed."""
    table = archive.create_table("t")
    append_keys(table, 0, [b"a", SECRET, None, SECRET, SECRET, b""])
    append_keys(table, 6, [SECRET, SECRET])
    append_keys(table, 8, [b"a", b"b"])
    before = table.iceberg.scan().to_arrow()
    untouched = max(table.files(), key=lambda file: file.first)
    result = ErasureResult()
    erase_keys(table, [SECRET, b"absent"], result)
    clean_up(table, 0, 0)  # also if the clock of this machine is far behind
    assert (result.records, result.files, result.searched, result.damaged) == (5, 2, 4, {})
    after = table.refresh()
    assert after.gaps == (Gap(0, 1, 2, "erased"), Gap(0, 3, 5, "erased"), Gap(0, 6, 8, "erased"))
    assert after.resume_offsets() == {0: 10}
    rows = table.iceberg.scan().to_arrow().sort_by("offset")
    kept = pa.compute.invert(pa.compute.fill_null(pa.compute.equal(before["key"], SECRET), False))
    assert rows.equals(before.filter(kept).sort_by("offset"))
    assert untouched.path in {file.path for file in table.files()}
    assert {f"file://{path}" for path in tmp_path.rglob("*.parquet")} == {file.path for file in table.files()}


def test_null_and_empty_keys_differ(archive: Archive) -> None:
    table = archive.create_table("t")
    append_keys(table, 0, [b"", None, b""])
    erase_keys(table, [b""], ErasureResult())
    assert table.iceberg.scan().to_arrow()["key"].to_pylist() == [None]


def test_files_that_others_replace_or_add_are_searched(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction and a run that commit between the search and the erasure's own commit."""
    table, other = archive.create_table("t"), archive.table("t")
    append_keys(table, 0, [SECRET, b"a"])
    append_keys(table, 2, [b"b", SECRET])
    others = [
        lambda: compact_topic(other, plan_merges(other.files()), MergeResult()),
        lambda: append_keys(other, 4, [SECRET]),
    ]
    commit = table.commit

    def commit_after_others(*arguments: object, **options: object) -> object:
        if others:
            other.refresh()
            others.pop(0)()
        return commit(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(table, "commit", commit_after_others)
    result = ErasureResult()
    erase_keys(table, [SECRET], result)
    assert result.records == 3
    assert sorted(table.iceberg.scan().to_arrow()["key"].to_pylist()) == [b"a", b"b"]


def test_damaged_files_and_branches_are_reported(archive: Archive) -> None:
    table = archive.create_table("t")
    append_keys(table, 0, [SECRET])
    snapshot = table.iceberg.current_snapshot()
    assert snapshot is not None
    table.iceberg.manage_snapshots().create_tag(snapshot.snapshot_id, "audit").commit()
    damaged = append_rows(table, 0, 1, 3)
    Path(damaged.path.removeprefix("file://")).write_bytes(b"")
    result = ErasureResult()
    erase_keys(table, [SECRET], result)
    assert (result.records, list(result.damaged), result.kept_by) == (1, [damaged.path], ["audit"])
