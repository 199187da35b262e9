"""What a verification covers and reports, and its checks of a table's metadata."""

from pathlib import Path

import pytest

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.catalogs import create_archive
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import Gap, TopicState
from kbroker.archive.verification.findings import (
    PartitionComparison,
    VerificationReport,
    VerificationScope,
    difference,
    format_finding,
    format_offsets,
    note,
)
from kbroker.archive.verification.state_checks import check_files, check_state
from kbroker.common import TopicPartition
from tests.unit.support.archive_tables import DAY_MS, append_rows

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
    report = VerificationReport("/a", "", commits={"t": 3}, started_ms=5, seconds=0.12345, files=1, bytes=2, rows=3)
    report.compared = [PartitionComparison("t", 0, (OffsetRange(0, 9),), 9, 8, False)]
    report.findings = [difference("rows", "few", TP, "f", [OffsetRange(1, 2)]), note("more", "text")]
    assert report.as_json() == {
        "archive": "/a",
        "bootstrap": None,
        "equal": False,
        "commits": {"t": 3},
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


@pytest.fixture
def table(tmp_path: Path) -> ArchiveTable:
    """A table with one file: offsets 10 to 19 of partition 0, with timestamps from 1000 to 1009."""
    table = create_archive(str(tmp_path), {}).create_table("t")
    append_rows(table, 0, 10, 10, timestamp_ms=1000)
    return table


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (VerificationScope(), True),
        (VerificationScope(dates=frozenset({"1970-01-01"})), True),
        (VerificationScope(dates=frozenset({"1970-01-02"})), False),
        (VerificationScope(offsets=OffsetRange(0, 10)), False),
        (VerificationScope(offsets=OffsetRange(0, 11)), True),
        (VerificationScope(offsets=OffsetRange(19, 99)), True),
        (VerificationScope(times_ms=(0, 1000)), False),
        (VerificationScope(times_ms=(1009, 1010)), True),
        (VerificationScope(times_ms=(1010, 9999)), False),
    ],
)
def test_files_are_selected_by_date_offsets_and_times(
    table: ArchiveTable, scope: VerificationScope, expected: bool
) -> None:
    assert scope.has_file(table.files()[0]) is expected


def test_holes_are_found_and_gaps_are_notes() -> None:
    covered = {0: (OffsetRange(0, 50), OffsetRange(60, 80), OffsetRange(90, 95))}
    gaps = (Gap(0, 50, 55, "retention"), Gap(0, 70, 72, "expired"))
    state = TopicState(covered=covered, gaps=gaps)
    assert [format_finding(finding) for finding in check_state("t", state, VerificationScope())] == [
        "hole: t-0: no commit covers them, and no gap explains why: offsets 55 to 59, 80 to 89",
        "expired: t-0: deleted from the archive because they were too old: offsets 70 to 71",
    ]
    assert list(check_state("t", state, VerificationScope(offsets=OffsetRange(0, 55)))) == []


def test_contradictions_of_a_file_and_the_state_are_found(table: ArchiveTable) -> None:
    (file,) = table.files()
    assert list(check_files("t", table.state, [file], "day")) == []
    wrong = [
        (file._replace(rows=11), "the table claims 11 rows"),
        (file._replace(last=22, rows=11), "the table claims rows that no commit covers"),
        (file._replace(partition=1), "it is listed as a file of partition 0"),
        (file._replace(to_ms=DAY_MS), "it is listed as a file of another day than that of its timestamps"),
    ]
    for changed, text in wrong:
        findings = list(check_files("t", table.state, [changed], "day"))
        assert text in [finding.text for finding in findings]
        assert all(finding.kind == "layout" for finding in findings)
    assert [finding.kind for finding in check_files("t", table.state, [file, file], "day")] == ["doubled"]
