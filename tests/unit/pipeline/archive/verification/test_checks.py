"""Comparisons of the manifest, the rows and the broker's records by their statistics."""

from collections.abc import Iterable

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import OffsetRange
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, Gap, PartitionStats
from kbroker.pipeline.archive.verification.checks import (
    BucketStats,
    BucketSum,
    archive_sums,
    check_dates,
    check_manifest,
    check_rows,
    comparable_ranges,
    lost_offsets,
    possibly_uncovered,
    stats_by_file,
    unequal_buckets,
)
from kbroker.pipeline.archive.verification.findings import Finding, VerificationScope, format_finding

DATE = "2026-01-01"
TP = TopicPartition("t", 0)


def make_stats(first: int, last: int, rows: int | None = None, partition: int = 0, checksum: int = 7) -> PartitionStats:
    return PartitionStats(partition, first, last, last - first + 1 if rows is None else rows, 10, 1000, 2000, checksum)


def make_file(name: str, *partitions: PartitionStats) -> DataFile:
    return DataFile(f"topic=t/date={DATE}/{name}.parquet", "t", DATE, 100, "0" * 64, partitions)


def make_state(
    *files: DataFile, covered: tuple[OffsetRange, ...] = (OffsetRange(0, 100),), gaps: tuple[Gap, ...] = ()
) -> ArchiveState:
    return ArchiveState(commit_number=1, files={file.path: file for file in files}, covered={TP: covered}, gaps=gaps)


def make_bucket(path: str, first: int, last: int, **changes: int) -> BucketStats:
    bucket = BucketStats(path, 0, first // 10, True, first, last, last - first + 1, 5, 1000, 2000, 3, 0)
    return bucket._replace(**changes)


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


def test_statistics_of_buckets_are_merged_by_file_and_partition() -> None:
    buckets = [make_bucket("a", 0, 9), make_bucket("a", 10, 12, checksum=5, from_ms=500), make_bucket("b", 3, 3)]
    assert stats_by_file(buckets) == {
        "a": (PartitionStats(0, 0, 12, 13, 10, 500, 2000, 3 ^ 5),),
        "b": (PartitionStats(0, 3, 3, 1, 5, 1000, 2000, 3),),
    }


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


def test_buckets_beyond_a_covered_range_may_have_uncovered_rows() -> None:
    file = make_file("a", make_stats(0, 200))
    inside, across, beyond = (make_bucket(file.path, *offsets) for offsets in ((0, 49), (45, 65), (99, 100)))
    state = make_state(file, covered=(OffsetRange(0, 50), OffsetRange(60, 100)))
    assert possibly_uncovered([inside, across, beyond], state) == [across, beyond]


def test_rows_of_another_date_are_found_by_file() -> None:
    file = make_file("a", make_stats(0, 20))
    buckets = [
        make_bucket(file.path, 0, 9, misdated=2),
        make_bucket(file.path, 10, 19),
        make_bucket(file.path, 20, 20, misdated=1),
    ]
    assert texts(check_dates(buckets, make_state(file))) == [
        f"date: {file.path} (t-0): 3 rows have a different date than {DATE} (UTC), within: offsets 0 to 9, 20"
    ]


def test_buckets_are_compared_by_row_count_and_checksum() -> None:
    first, second = make_file("a", make_stats(0, 29)), make_file("b", make_stats(0, 29))
    buckets = [
        make_bucket(first.path, 0, 4),
        make_bucket(second.path, 5, 9, checksum=4),
        make_bucket(first.path, 10, 19),
        make_bucket(first.path, 20, 29)._replace(is_compared=False),
    ]
    archive = archive_sums(buckets, make_state(first, second).files)
    assert archive == {(TP, 0): BucketSum(10, 3 ^ 4), (TP, 1): BucketSum(10, 3)}
    broker = {(TP, 0): BucketSum(10, 7), (TP, 1): BucketSum(10, 3)}
    assert unequal_buckets(archive, broker) == {}
    # Three copies of a record have the checksum of one.
    assert unequal_buckets(archive, {**broker, (TP, 1): BucketSum(12, 3)}) == {TP: [1]}
    assert unequal_buckets(archive, {(TP, 1): BucketSum(10, 3), (TP, 4): BucketSum(1, 1)}) == {TP: [0, 4]}


def test_offsets_that_the_archive_covers_and_the_broker_has_are_comparable() -> None:
    other = TopicPartition("u", 0)
    state = ArchiveState(covered={TP: (OffsetRange(0, 50), OffsetRange(60, 100)), other: (OffsetRange(0, 10),)})
    log_ends = {TP: 80, other: 10}
    ranges = comparable_ranges(state, VerificationScope(), {TP: 20, other: 10}, log_ends)
    assert ranges == {TP: (OffsetRange(20, 50), OffsetRange(60, 80))}
    scope = VerificationScope(offsets=OffsetRange(40, 62))
    assert comparable_ranges(state, scope, {TP: 20}, log_ends) == {TP: (OffsetRange(40, 50), OffsetRange(60, 62))}
