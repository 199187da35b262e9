"""Retention of the archive: old days go, the rest stays, and the state says what is missing."""

from pathlib import Path

import pytest

from kbroker.archive.archive import Archive
from kbroker.archive.catalogs import create_archive
from kbroker.archive.errors import ArchiveError
from kbroker.archive.maintenance.expiry import ExpiryResult, expire_topic
from kbroker.archive.maintenance.gaps import with_gaps
from kbroker.archive.maintenance.upkeep import clean_up
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import Gap, TopicState
from tests.unit.support.archive_tables import DAY_MS, append_rows


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return create_archive(str(tmp_path), {})


def test_days_before_a_time(archive: Archive) -> None:
    """A file of a day that has not ended yet stays; the offsets between files are in the gap."""
    table = archive.create_table("t")
    for number, day in enumerate((0, 0, 1, 2)):
        append_rows(table, 0, 20 * number, 10, timestamp_ms=day * DAY_MS)
    append_rows(table, 1, 0, 5)
    result = ExpiryResult()
    expire_topic(table, 2 * DAY_MS - 1, result)
    assert (result.topics, result.files, result.rows) == (1, 3, 25)
    assert table.refresh().gaps == (Gap(0, 0, 30, "expired"), Gap(1, 0, 5, "expired"))
    assert table.state.resume_offsets() == {0: 70, 1: 5}
    expire_topic(table, 2 * DAY_MS, result)
    assert table.refresh().gaps == (Gap(0, 0, 30, "expired"), Gap(0, 40, 50, "expired"), Gap(1, 0, 5, "expired"))
    assert sorted(table.iceberg.scan().to_arrow()["offset"].to_pylist()) == list(range(60, 70))
    expire_topic(table, 2 * DAY_MS, result)
    assert result.files == 4


def test_files_are_deleted_when_their_readers_have_had_time(archive: Archive) -> None:
    table = archive.create_table("t")
    file = append_rows(table, 0, 0, 10)
    append_rows(table, 0, 10, 10, timestamp_ms=DAY_MS)
    expire_topic(table, DAY_MS, ExpiryResult())
    path = Path(file.path.removeprefix("file://"))
    now_ms = table.state.time_ms
    assert clean_up(table, now_ms) == 0
    assert path.exists()
    assert clean_up(table, now_ms, 0) > 0
    assert not path.exists()
    assert table.iceberg.scan().to_arrow().num_rows == 10


def test_gaps_have_one_reason_each() -> None:
    state = TopicState(gaps=(Gap(0, 0, 10, "retention"), Gap(0, 20, 25, "erased"), Gap(1, 0, 9, "erased")))
    assert with_gaps(state, "expired", {0: [OffsetRange(5, 22), OffsetRange(30, 40)]}) == [
        Gap(0, 0, 10, "retention"),
        Gap(0, 10, 22, "expired"),
        Gap(0, 22, 25, "erased"),
        Gap(0, 30, 40, "expired"),
        Gap(1, 0, 9, "erased"),
    ]


def test_topics_that_the_archive_does_not_have(archive: Archive) -> None:
    with pytest.raises(ArchiveError, match="has no topic u"):
        archive.tables(["u"])
