"""Reports of archives."""

from dataclasses import replace
from pathlib import Path

import pytest

from kbroker.archive.archive import Archive
from kbroker.archive.catalogs import create_archive
from kbroker.archive.errors import ArchiveError
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.report import archive_totals, report_topic, report_topics
from kbroker.archive.topic_state import Gap, TopicInfo, TopicState
from tests.unit.support.archive_tables import DAY_MS, append_rows, remove_as_another_program

T0 = 1_760_000_000_000


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """orders: partition 0 with a retention gap and an unexplained hole, 1 complete, 2 empty; audit: only a gap."""
    archive = create_archive(str(tmp_path), {})
    orders, audit = archive.create_table("orders"), archive.create_table("audit")
    append_rows(orders, 0, 100, 100, T0)
    append_rows(orders, 1, 0, 50, T0 - DAY_MS)
    append_rows(orders, 0, 300, 10, T0)
    info = TopicInfo("id-of-orders", 3, {"retention.ms": "1"})
    covered = {**orders.state.covered, 1: (OffsetRange(0, 55),)}
    state = replace(orders.state, topic=info, covered=covered, gaps=(Gap(0, 0, 100, "retention"),))
    orders.commit("observe", state)
    audit.commit("observe", replace(audit.state, gaps=(Gap(0, 0, 7, "retention"),)))
    return archive


def test_reports_of_partitions_with_gaps_and_missing_records(archive: Archive) -> None:
    audit, orders = report_topics(archive)
    zero, one, two = orders.partitions
    assert zero.covered == (OffsetRange(100, 200), OffsetRange(300, 310))
    assert (zero.offsets, zero.rows, zero.without_record, zero.files) == (110, 110, 0, 2)
    assert [gap[1:] for gap in zero.gaps] == [(0, 100, "retention"), (200, 300, "unexplained")]
    assert zero.missing == 200
    assert (one.covered, one.rows, one.without_record, one.gaps) == ((OffsetRange(0, 55),), 50, 5, ())
    assert (one.from_ms, one.to_ms) == (T0 - DAY_MS, T0 - DAY_MS + 49)
    assert (two.partition, two.covered, two.rows, two.from_ms, two.to_ms) == (2, (), 0, None, None)
    assert [(report.partition, report.rows, report.missing) for report in audit.partitions] == [(0, 0, 7)]


def test_a_hole_is_unexplained_where_no_gap_covers_it() -> None:
    gap = Gap(0, 12, 15, "retention")
    state = TopicState(covered={0: (OffsetRange(5, 10), OffsetRange(20, 30))}, gaps=(gap, gap))
    (partition,) = report_topic("t", state, ()).partitions
    assert [gap[1:] for gap in partition.gaps] == [
        (10, 12, "unexplained"),
        (12, 15, "retention"),
        (15, 20, "unexplained"),
    ]


def test_deleted_records_are_missing_though_they_were_covered() -> None:
    state = TopicState(covered={0: (OffsetRange(0, 30),)}, gaps=(Gap(0, 0, 10, "expired"), Gap(0, 12, 13, "erased")))
    (partition,) = report_topic("t", state, ()).partitions
    assert (partition.offsets, partition.missing, partition.without_record) == (30, 11, 19)
    assert [gap.reason for gap in partition.gaps] == ["expired", "erased"]


def test_a_topic_sums_its_partitions_and_its_files(archive: Archive) -> None:
    (orders,) = report_topics(archive, ["orders"])
    assert (orders.rows, orders.files, orders.file_bytes) == (160, 3, sum(file.size for file in orders.data_files))
    assert (orders.offsets, orders.without_record, len(orders.gaps)) == (165, 5, 2)
    assert (orders.from_ms, orders.to_ms, orders.dates) == (T0 - DAY_MS, T0 + 99, ("2025-10-08", "2025-10-09"))
    assert [(file.partition, file.first) for file in orders.data_files] == [(0, 100), (0, 300), (1, 0)]
    assert archive_totals(report_topics(archive))[:3] == (2, 160, 3)
    assert archive_totals(()) == (0, 0, 0, 0)


def test_changes_by_another_program_are_reported(archive: Archive) -> None:
    table = archive.table("orders")
    remove_as_another_program(table, table.files()[0])
    (orders,) = report_topics(archive, ["orders"])
    assert orders.foreign_change is not None
    assert orders.foreign_change.endswith("(overwrite)")


def test_an_unknown_topic_is_rejected_with_the_known_ones(archive: Archive, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"the archive has no topic order; it has audit, orders$"):
        report_topics(archive, ["order"])
    with pytest.raises(ArchiveError, match=r"it is empty$"):
        report_topics(create_archive(str(tmp_path / "empty"), {}), ["order"])
