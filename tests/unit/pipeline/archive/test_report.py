"""Reports and plots of archives."""

from pathlib import Path

import pytest

from kbroker.pipeline.archive.layout import OffsetRange
from kbroker.pipeline.archive.manifest import (
    ArchiveState,
    CoveredRange,
    DataFile,
    Gap,
    ManifestCommit,
    PartitionStats,
    TopicInfo,
    apply_commit,
)
from kbroker.pipeline.archive.report import archive_totals, report_topics
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.plot import plot_archive
from tests.unit.support import archives

T0 = 1_760_000_000_000


def make_file(
    name: str, topic: str, *partitions: PartitionStats, size: int = 1000, date: str = "2025-10-09"
) -> DataFile:
    return DataFile(f"topic={topic}/date={date}/{name}.parquet", topic, date, size, "0" * 64, partitions)


def make_stats(
    partition: int, first: int, last: int, rows: int, from_ms: int = T0, to_ms: int = T0 + 1000
) -> PartitionStats:
    return PartitionStats(partition, first, last, rows, rows * 10, from_ms, to_ms, 0)


def make_state() -> ArchiveState:
    """orders: partition 0 with a retention gap and an unexplained hole, 1 complete, 2 empty; audit: only a gap."""
    commits = [
        ManifestCommit("create", T0, settings={"id": "x"}),
        ManifestCommit(
            "append", T0 + 1,
            add=(
                make_file("a", "orders", make_stats(0, 100, 199, 90)),
                make_file("b", "orders", make_stats(1, 0, 49, 50, T0 - 5000, T0 - 4000), date="2025-10-08", size=500),
            ),
            covered=(CoveredRange("orders", 0, 100, 200), CoveredRange("orders", 1, 0, 50)),
            gaps=(Gap("orders", 0, 0, 100, "retention"), Gap("audit", 0, 0, 7, "retention")),
            topics={"orders": TopicInfo("id-of-orders", 3, {"retention.ms": "1"})},
        ),
        ManifestCommit(
            "append", T0 + 2,
            add=(make_file("c", "orders", make_stats(0, 300, 309, 10), make_stats(1, 50, 50, 1)),),
            covered=(CoveredRange("orders", 0, 300, 310), CoveredRange("orders", 1, 50, 51)),
        ),
    ]  # fmt: skip
    state = ArchiveState()
    for number, commit in enumerate(commits):
        state = apply_commit(state, number, commit)
    return state


def test_reports_of_partitions_with_gaps_and_missing_records() -> None:
    audit, orders = report_topics(make_state())
    zero, one, two = orders.partitions
    assert zero.covered == (OffsetRange(100, 200), OffsetRange(300, 310))
    assert (zero.offsets, zero.rows, zero.without_record, zero.files, zero.bytes) == (110, 100, 10, 2, 1000)
    assert [(gap.start, gap.end, gap.reason) for gap in zero.gaps] == [(0, 100, "retention"), (200, 300, "unexplained")]
    assert zero.lost == 200
    assert (one.covered, one.rows, one.without_record, one.gaps) == ((OffsetRange(0, 51),), 51, 0, ())
    assert (one.from_ms, one.to_ms) == (T0 - 5000, T0 + 1000)
    assert (two.partition, two.covered, two.rows, two.from_ms, two.to_ms) == (2, (), 0, None, None)
    assert [(report.partition, report.rows, report.lost) for report in audit.partitions] == [(0, 0, 7)]


def test_a_hole_is_unexplained_where_no_gap_covers_it() -> None:
    state = ArchiveState()
    commits = (
        ManifestCommit("append", T0, covered=(CoveredRange("t", 0, 5, 10), CoveredRange("t", 0, 20, 30))),
        ManifestCommit("append", T0, gaps=(Gap("t", 0, 12, 15, "retention"), Gap("t", 0, 12, 15, "retention"))),
    )
    for number, commit in enumerate(commits):
        state = apply_commit(state, number, commit)
    (partition,) = report_topics(state)[0].partitions
    assert [gap[2:] for gap in partition.gaps] == [
        (10, 12, "unexplained"),
        (12, 15, "retention"),
        (15, 20, "unexplained"),
    ]


def test_a_topic_sums_its_partitions_and_its_files() -> None:
    orders = report_topics(make_state(), ["orders"])[0]
    assert (orders.rows, orders.bytes, orders.files, orders.file_bytes) == (151, 1510, 3, 2500)
    assert (orders.offsets, orders.without_record, len(orders.gaps)) == (161, 10, 2)
    assert (orders.from_ms, orders.to_ms, orders.dates) == (T0 - 5000, T0 + 1000, ("2025-10-08", "2025-10-09"))
    assert orders.info == TopicInfo("id-of-orders", 3, {"retention.ms": "1"})


def test_totals_of_an_archive() -> None:
    assert archive_totals(report_topics(make_state())) == (2, 151, 3, 2500)
    assert archive_totals(()) == (0, 0, 0, 0)


def test_an_unknown_topic_is_rejected_with_the_known_ones() -> None:
    with pytest.raises(PipelineError, match=r"^topic order is not in the archive; it has audit, orders$"):
        report_topics(make_state(), ["order"])
    with pytest.raises(PipelineError, match=r"which is empty$"):
        report_topics(ArchiveState(), ["order"])


def test_only_rows_with_a_timestamp_are_plotted(tmp_path: Path) -> None:
    dated = archives.make_file(archives.new_data_path(), rows=90, partitions=2)
    undated = dated._replace(
        path=archives.new_data_path(),
        partitions=tuple(stats._replace(from_ms=-1, to_ms=-1) for stats in dated.partitions),
    )
    path = tmp_path / "p.png"
    plot_archive(ArchiveState(files={file.path: file for file in (dated, undated)}), str(path), "title")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(PipelineError, match="no row has a timestamp"):
        plot_archive(ArchiveState(files={undated.path: undated}), str(tmp_path / "q.png"), "title")
