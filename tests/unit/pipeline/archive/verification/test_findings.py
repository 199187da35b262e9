"""What a verification covers and finds."""

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import OffsetRange
from kbroker.pipeline.archive.manifest.model import DataFile, PartitionStats
from kbroker.pipeline.archive.verification.findings import (
    PartitionComparison,
    VerificationReport,
    VerificationScope,
    difference,
    format_finding,
    format_offsets,
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
