"""The text and JSON of findings."""

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.offset_ranges import OffsetRange
from kbroker.pipeline.archive.verification.findings import (
    PartitionComparison,
    VerificationReport,
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
