"""What a verification covers and finds, and its checks of statistics."""

from collections.abc import Iterable

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import OffsetRange
from kbroker.pipeline.archive.manifest import ArchiveState, DataFile, Gap, PartitionStats
from kbroker.pipeline.archive.verification.findings import (
    CountedRows,
    Finding,
    PartitionComparison,
    VerificationReport,
    VerificationScope,
    check_dates,
    check_manifest,
    check_rows,
    difference,
    format_finding,
    format_offsets,
    lost_offsets,
    may_be_uncovered,
    note,
)

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([], ""),
        ([OffsetRange(17, 18)], "offset 17"),
        ([OffsetRange(3, 4), OffsetRange(10, 20)], "offsets 3, 10 to 19"),
        (
            [OffsetRange(n * 2, n * 2 + 1) for n in range(13)],
            "offsets 0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 3 more ranges",
        ),
    ],
)
def test_text_of_offsets(ranges: list[OffsetRange], text: str) -> None:
    assert format_offsets(ranges) == text


def test_text_of_findings() -> None:
    finding = difference("rows", "few", TP, "a.parquet", [OffsetRange(1, 2)])
    assert format_finding(finding) == "rows: a.parquet (t-0): few: offset 1"
    assert format_finding(difference("columns", "odd", file="a.parquet")) == "columns: a.parquet: odd"
    assert format_finding(difference("hole", "odd", TP)) == "hole: t-0: odd"
    assert format_finding(note("retention", "gone", topic="t")) == "retention: t: gone"
    assert format_finding(note("more", "there is more")) == "more: there is more"


def test_fields_of_the_json_report() -> None:
    report = VerificationReport("/a", "", commit_number=3, started_ms=5, seconds=0.12345, files=1, bytes=2, rows=3)
    report.compared = [PartitionComparison("t", 0, (OffsetRange(0, 9),), 9, 8, False)]
    report.findings = [difference("rows", "few", TP, "f", [OffsetRange(1, 2)]), note("more", "text")]
    assert report.as_json() == {
        "archive": "/a",
        "bootstrap": None,
        "equal": False,
        "commit": 3,
        "started_ms": 5,
        "seconds": 0.123,
        "files": 1,
        "bytes": 2,
        "rows": 3,
        "differences": {"rows": 1},
        "compared": [
            {"topic": "t", "partition": 0, "spans": ((0, 9),), "archive_rows": 9, "broker_rows": 8, "equal": False}
        ],
        "findings": [
            {
                "kind": "rows",
                "what": "few",
                "topic": "t",
                "partition": 0,
                "file": "f",
                "offsets": ((1, 2),),
                "is_difference": True,
            },
            {
                "kind": "more",
                "what": "text",
                "topic": "",
                "partition": None,
                "file": "",
                "offsets": (),
                "is_difference": False,
            },
        ],
    }


# Offsets 10 to 19 of partition 0 and 50 to 59 of partition 1, with timestamps from 1000 to 2000.
FILE = DataFile(
    "topic=t/date=2026-01-01/a.parquet",
    "t",
    "2026-01-01",
    100,
    "0" * 64,
    (PartitionStats(0, 10, 19, 10, 10, 1000, 2000, 7), PartitionStats(1, 50, 59, 10, 10, 1000, 2000, 7)),
)


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (VerificationScope(), True),
        (VerificationScope(topics=frozenset({"u"})), False),
        (VerificationScope(dates=frozenset({"2026-01-02"})), False),
        (VerificationScope(offsets=OffsetRange(0, 10)), False),
        (VerificationScope(offsets=OffsetRange(0, 11)), True),
        (VerificationScope(offsets=OffsetRange(20, 50)), False),
        (VerificationScope(offsets=OffsetRange(59, 99)), True),
        (VerificationScope(times_ms=(0, 1000)), False),
        (VerificationScope(times_ms=(2000, 2001)), True),
        (VerificationScope(times_ms=(2001, 9999)), False),
    ],
)
def test_files_are_selected_by_topic_date_offsets_and_times(scope: VerificationScope, expected: bool) -> None:
    assert scope.has_file(FILE) is expected


DATE = "2026-01-01"


def make_stats(first: int, last: int, rows: int | None = None, partition: int = 0, checksum: int = 7) -> PartitionStats:
    return PartitionStats(partition, first, last, last - first + 1 if rows is None else rows, 10, 1000, 2000, checksum)


def make_file(name: str, *partitions: PartitionStats) -> DataFile:
    return DataFile(f"topic=t/date={DATE}/{name}.parquet", "t", DATE, 100, "0" * 64, partitions)


def make_state(
    *files: DataFile, covered: tuple[OffsetRange, ...] = (OffsetRange(0, 100),), gaps: tuple[Gap, ...] = ()
) -> ArchiveState:
    return ArchiveState(commit_number=1, files={file.path: file for file in files}, covered={TP: covered}, gaps=gaps)


def texts(findings: Iterable[Finding]) -> list[str]:
    return list(map(format_finding, findings))


def test_a_consistent_manifest_has_no_findings() -> None:
    state = make_state(
        make_file("a", make_stats(0, 49)),
        make_file("b", make_stats(60, 90, rows=3)),
        covered=(OffsetRange(0, 50), OffsetRange(60, 100)),
        gaps=(Gap("t", 0, 50, 60, "retention"),),
    )
    assert texts(check_manifest(state, VerificationScope())) == []


def test_unexplained_holes_and_uncovered_rows_are_found() -> None:
    state = make_state(
        make_file("a", make_stats(0, 55)),
        make_file("b", make_stats(60, 62, rows=9)),
        make_file("c", make_stats(70, 70))._replace(path="topic=other/date=2026-01-01/c.parquet"),
        covered=(OffsetRange(0, 50), OffsetRange(60, 80), OffsetRange(90, 95)),
        gaps=(Gap("t", 0, 50, 55, "retention"),),
    )
    assert texts(check_manifest(state, VerificationScope())) == [
        f"layout: topic=t/date={DATE}/a.parquet (t-0): the manifest claims rows that no commit covers: "
        "offsets 50 to 55",
        f"layout: topic=t/date={DATE}/b.parquet (t-0): the manifest claims 9 rows: offsets 60 to 62",
        "layout: topic=other/date=2026-01-01/c.parquet: the manifest assigns it to t and 2026-01-01",
        "hole: t-0: no commit covers them, and no gap explains why: offsets 55 to 59, 80 to 89",
    ]
    assert texts(check_manifest(state, VerificationScope(topics=frozenset({"other"})))) == []


def test_rows_that_were_not_committed_are_found_by_partition() -> None:
    file = make_file("a", make_stats(0, 9), make_stats(0, 4, partition=1), make_stats(5, 6, partition=3))
    counted = [make_stats(0, 9), make_stats(0, 4, rows=6, partition=1, checksum=8), make_stats(7, 7, partition=2)]
    assert texts(check_rows(file, counted)) == [
        f"rows: {file.path} (t-1): 6 rows instead of 5; checksum 0000000000000008 instead of 0000000000000007: "
        "offsets 0 to 4",
        f"rows: {file.path} (t-2): 1 rows of a partition that was not committed in this file: offset 7",
        f"rows: {file.path} (t-3): all 2 committed rows are missing: offsets 5 to 6",
    ]


def test_lost_offsets_are_known_only_if_each_offset_had_a_row() -> None:
    ranges = [OffsetRange(0, 4), OffsetRange(5, 10)]
    assert lost_offsets(make_stats(0, 9), ranges) == (OffsetRange(4, 5),)
    assert lost_offsets(make_stats(0, 9, rows=9), ranges) == ()


def test_rows_beyond_a_covered_range_may_be_uncovered() -> None:
    file = make_file("a", make_stats(0, 200))
    state = make_state(file, covered=(OffsetRange(0, 50), OffsetRange(60, 100)))
    for first, last, expected in ((0, 49, False), (45, 65, True), (99, 100, True)):
        assert may_be_uncovered(CountedRows(file, make_stats(first, last), 0), state) is expected


def test_rows_of_another_date_are_found_by_file() -> None:
    file = make_file("a", make_stats(0, 20), make_stats(0, 3, partition=1))
    counted = [CountedRows(file, stats, misdated) for stats, misdated in zip(file.partitions, (3, 0), strict=True)]
    assert texts(check_dates(counted)) == [
        f"date: {file.path} (t-0): 3 rows have a different date than {DATE} (UTC), within: offsets 0 to 20"
    ]
