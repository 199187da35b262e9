"""Which files and offsets are in the scope of a verification."""

import pytest

from kbroker.pipeline.archive.manifest.model import DataFile, PartitionStats
from kbroker.pipeline.archive.offset_ranges import OffsetRange
from kbroker.pipeline.archive.verification.scope import VerificationScope

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
