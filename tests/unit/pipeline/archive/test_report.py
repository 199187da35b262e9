"""What is told of an archive: sums, offsets without a record, gaps, times; all from a State."""

import json
from pathlib import Path

import pytest

from kbroker.pipeline.archive import report
from kbroker.pipeline.archive.manifest.model import (
    ArchiveState,
    CoveredRange,
    DataFile,
    Gap,
    ManifestCommit,
    OffsetRange,
    PartitionStats,
    TopicInfo,
    apply_commit,
)
from kbroker.pipeline.errors import PipelineError

T0 = 1_760_000_000_000


def a_file(name: str, topic: str, *parts: PartitionStats, size: int = 1000, date: str = "2025-10-09") -> DataFile:
    return DataFile(f"topic={topic}/date={date}/{name}.parquet", topic, date, size, "0" * 64, parts)


def a_part(
    partition: int, first: int, last: int, rows: int, from_ms: int = T0, to_ms: int = T0 + 1000
) -> PartitionStats:
    return PartitionStats(partition, first, last, rows, rows * 10, from_ms, to_ms, 0)


def archive() -> ArchiveState:
    """orders: partition 0 with a gap of retention and a hole that nobody explains, 1 whole, 2 empty; audit: gone."""
    commits = [
        ManifestCommit("create", T0, settings={"id": "x"}),
        ManifestCommit(
            "append", T0 + 1,
            add=(
                a_file("a", "orders", a_part(0, 100, 199, 90)),
                a_file("b", "orders", a_part(1, 0, 49, 50, T0 - 5000, T0 - 4000), date="2025-10-08", size=500),
            ),
            covered=(CoveredRange("orders", 0, 100, 200), CoveredRange("orders", 1, 0, 50)),
            gaps=(Gap("orders", 0, 0, 100, "retention"), Gap("audit", 0, 0, 7, "retention")),
            topics={"orders": TopicInfo("id-of-orders", 3, {"retention.ms": "1"})},
        ),
        ManifestCommit("append", T0 + 2, add=(a_file("c", "orders", a_part(0, 300, 309, 10), a_part(1, 50, 50, 1)),),
               covered=(CoveredRange("orders", 0, 300, 310), CoveredRange("orders", 1, 50, 51))),
    ]  # fmt: skip
    state = ArchiveState()
    for number, commit in enumerate(commits):
        state = apply_commit(state, number, commit)
    return state


def test_a_partition_is_told_with_what_it_lacks() -> None:
    audit, orders = report.topics(archive())
    zero, one, two = orders.partitions
    assert zero.covered == (OffsetRange(100, 200), OffsetRange(300, 310))
    assert (zero.offsets, zero.rows, zero.without_record, zero.files, zero.bytes) == (110, 100, 10, 2, 1000)
    assert [(gap.start, gap.end, gap.reason) for gap in zero.gaps] == [(0, 100, "retention"), (200, 300, "unexplained")]
    assert zero.lost == 200
    assert (one.covered, one.rows, one.without_record, one.gaps) == ((OffsetRange(0, 51),), 51, 0, ())
    assert (one.from_ms, one.to_ms) == (T0 - 5000, T0 + 1000)
    assert (two.partition, two.covered, two.rows, two.from_ms, two.to_ms) == (2, (), 0, None, None)
    assert [(one.partition, one.rows, one.lost) for one in audit.partitions] == [(0, 0, 7)]


def test_a_gap_explains_its_part_of_a_hole() -> None:
    state = ArchiveState()
    commits = (
        ManifestCommit("append", T0, covered=(CoveredRange("t", 0, 5, 10), CoveredRange("t", 0, 20, 30))),
        ManifestCommit("append", T0, gaps=(Gap("t", 0, 12, 15, "retention"), Gap("t", 0, 12, 15, "retention"))),
    )
    for number, commit in enumerate(commits):
        state = apply_commit(state, number, commit)
    (only,) = report.topics(state)[0].partitions
    assert [gap[2:] for gap in only.gaps] == [(10, 12, "unexplained"), (12, 15, "retention"), (15, 20, "unexplained")]


def test_a_topic_sums_its_partitions_and_its_files() -> None:
    orders = report.topics(archive(), ["orders"])[0]
    assert (orders.rows, orders.bytes, orders.files, orders.size) == (151, 1510, 3, 2500)
    assert (orders.offsets, orders.without_record, len(orders.gaps)) == (161, 10, 2)
    assert (orders.from_ms, orders.to_ms, orders.dates) == (T0 - 5000, T0 + 1000, ("2025-10-08", "2025-10-09"))
    assert orders.info == TopicInfo("id-of-orders", 3, {"retention.ms": "1"})


def test_the_whole_in_one_line() -> None:
    assert report.summary(report.topics(archive())) == (2, 4, 151, 2500, 3, T0 - 5000, T0 + 1000)
    assert report.summary(()) == (0, 0, 0, 0, 0, None, None)


def test_a_topic_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(PipelineError, match=r"^topic order is not in the archive; there are audit, orders$"):
        report.topics(archive(), ["order"])
    with pytest.raises(PipelineError, match=r"which is empty$"):
        report.topics(ArchiveState(), ["order"])


def test_programs_read_the_same() -> None:
    told = json.loads(json.dumps([report.topic_json(one) for one in report.topics(archive())]))
    assert [one["topic"] for one in told] == ["audit", "orders"]
    assert told[0]["configs"] is None
    assert told[1]["partitions"][0]["covered"] == [[100, 200], [300, 310]]
    assert told[1]["offsets_without_record"] == 10
    assert told[1]["gaps"][1] == {"topic": "orders", "partition": 0, "start": 200, "end": 300, "reason": "unexplained"}
    assert report.topic_json(report.topics(archive())[1], with_partitions=False)["partitions"] == 3


def test_a_picture_is_drawn_of_what_has_a_time(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    report.draw(archive(), str(path), "orders")
    assert path.read_bytes().startswith(b"\x89PNG")
    timeless = apply_commit(
        ArchiveState(), 0, ManifestCommit("append", T0, add=(a_file("a", "t", a_part(0, 0, 1, 2, -1, -1)),))
    )
    with pytest.raises(PipelineError, match="no rows with a time"):
        report.draw(timeless, str(tmp_path / "q.png"), "t")
