"""Maintenance: what is due, and that it deletes nothing that anybody needs."""

import os
from pathlib import Path

import pytest

from kbroker.archive.archive import Archive, ArchiveTable, ConflictError
from kbroker.archive.catalogs import create_archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.maintenance import maintain
from kbroker.archive.maintenance.snapshots import (
    KEEP_MS,
    SnapshotAge,
    delete_orphans,
    expire_snapshots,
    expired_snapshots,
    referenced_files,
    select_expired,
    stored_files,
)
from kbroker.archive.maintenance.upkeep import DAY_MS
from tests.unit.support.archive_tables import append_rows, make_rows


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return create_archive(str(tmp_path), {})


def now_ms(table: ArchiveTable) -> int:
    """Return the time of the table's last commit."""
    snapshot = table.iceberg.current_snapshot()
    assert snapshot is not None
    return snapshot.timestamp_ms


def append_many(table: ArchiveTable, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        append_rows(table, 0, number, 1)


def test_hundreds_of_commits_leave_few_files(archive: Archive) -> None:
    """The number of snapshots, manifests and data files does not grow with the number of commits."""
    table = archive.create_table("t")
    for number in range(80):
        append_rows(table, number % 3, number, 1)
        if number % 10 == 9:
            maintain(table, now_ms(table))
    snapshot = table.iceberg.current_snapshot()
    assert snapshot is not None
    assert len(table.iceberg.metadata.snapshots) < 50
    assert len(snapshot.manifests(table.iceberg.io)) < 50
    assert len(table.files()) < 50
    assert sorted(table.iceberg.scan().to_arrow()["offset"].to_pylist()) == list(range(80))
    later = maintain(table, now_ms(table) + KEEP_MS)
    assert later.expired > 0
    unreferenced = {file.path for file in stored_files(table)} - referenced_files(table)
    assert [path for path in unreferenced if not path.endswith(".metadata.json")] == []
    assert maintain(table, now_ms(table)).seconds < 1


def test_which_snapshots_expire() -> None:
    """Snapshots whose files were replaced expire by age, the others by number too; never those of branches."""
    appends = [SnapshotAge(number, 1000, False) for number in range(30)]
    assert select_expired(appends, (), 1000, 500) == list(range(20))
    assert select_expired(appends, {3}, 1000, 500) == [0, 1, 2, *range(4, 20)]
    assert select_expired(appends, (), 1500, 500) == list(range(30))
    replaced = [age._replace(is_last_with_files=age.id == 5) for age in appends]
    assert 5 not in select_expired(replaced, (), 1000, 500)
    assert 5 in select_expired(replaced, (), 1500, 500)


def test_readers_of_an_earlier_state_keep_its_files(archive: Archive) -> None:
    table = archive.create_table("t")
    append_many(table, 4)
    scan = table.iceberg.scan()  # of this snapshot
    maintain(table, now_ms(table))
    append_many(table, 20, 4)
    maintain(table, now_ms(table))
    assert scan.to_arrow().num_rows == 4
    maintain(table, now_ms(table) + DAY_MS)
    with pytest.raises((FileNotFoundError, ValueError)):
        scan.to_arrow()


def test_orphans_are_deleted_after_a_day(archive: Archive, tmp_path: Path) -> None:
    """Files of a writer that may still commit are kept, and so are files of others."""
    table = archive.create_table("t")
    append_rows(table)
    (orphan,) = write_rows(table.write_target(), [make_rows(0, 7, 3)])
    path = Path(orphan.path.removeprefix("file://"))
    foreign = path.with_name("notes.parquet")
    foreign.write_bytes(b"")
    assert maintain(table, now_ms(table)).deleted == 0
    for each in (path, foreign):
        os.utime(each, (1, 1))
    assert delete_orphans(table, 0) == 0
    assert maintain(table, now_ms(table) + DAY_MS).deleted >= 1
    assert (path.exists(), foreign.exists()) == (False, True)
    assert table.iceberg.scan().to_arrow().num_rows == 1


def test_past_days_are_merged_once_a_day(archive: Archive) -> None:
    table = archive.create_table("t")
    for number in range(4):
        append_rows(table, 0, number, 1, timestamp_ms=number // 2 * now_ms(table) if number else 0)
    first = maintain(table, now_ms(table))
    assert (first.merged, first.written) == (2, 1)
    append_rows(table, 0, 4, 1)
    assert maintain(table, now_ms(table) + 1).merged == 0
    assert maintain(table, now_ms(table) + DAY_MS).merged == 4


def test_branches_and_tags_are_kept(archive: Archive) -> None:
    """Also those that a user has created with another program."""
    table = archive.create_table("t")
    append_many(table, 2)
    snapshot = table.iceberg.current_snapshot()
    assert snapshot is not None
    table.iceberg.manage_snapshots().create_tag(snapshot.snapshot_id, "audit").commit()
    append_many(table, 12, 2)
    maintain(table, now_ms(table) + DAY_MS)
    assert table.iceberg.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == 2


def test_expiry_by_two_processes(archive: Archive) -> None:
    """The second finds another state, and leaves it for later."""
    table = archive.create_table("t")
    append_many(table, 4)
    other = archive.table("t")
    append_many(table, 1, 4)
    expired = expired_snapshots(other, now_ms(other), 0)
    with pytest.raises(ConflictError):
        expire_snapshots(other, expired)
    assert len(expired_snapshots(table, now_ms(table), 0)) == 4
    assert expire_snapshots(table, expired) == 3
    assert table.iceberg.scan().to_arrow().num_rows == 5
