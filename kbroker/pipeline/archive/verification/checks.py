"""Compares the manifest, the rows and the broker's records by their statistics (pure)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import OffsetRange, intersect_ranges, merge_ranges, subtract_ranges
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, PartitionStats
from kbroker.pipeline.archive.verification.findings import Finding, VerificationScope, difference


class BucketStats(NamedTuple):
    """Statistics of the rows of one partition in one file whose offsets are in one bucket."""

    file: str
    partition: int
    bucket: int  # offset // BUCKET_OFFSETS
    is_compared: bool  # with the broker; a bucket can have rows that are compared and rows that are not
    first: int
    last: int
    rows: int
    bytes: int
    from_ms: int
    to_ms: int
    checksum: int  # unsigned
    misdated: int  # rows whose timestamp has a different date than the directory

    @property
    def partition_stats(self) -> PartitionStats:
        return PartitionStats(
            self.partition, self.first, self.last, self.rows, self.bytes, self.from_ms, self.to_ms, self.checksum
        )


class BucketSum(NamedTuple):
    """The rows of one partition in one bucket, of all files or of the broker."""

    rows: int
    checksum: int


BucketSums = Mapping[tuple[TopicPartition, int], BucketSum]
_EMPTY = BucketSum(0, 0)


def check_manifest(state: ArchiveState, scope: VerificationScope) -> Iterator[Finding]:
    """Find contradictions within the manifest: in paths, dates and offsets, and holes without a gap."""
    for file in state.files.values():
        if not scope.has_file(file):
            continue
        if not file.path.startswith(f"topic={file.topic}/date={file.date}/"):
            yield difference("layout", f"the manifest assigns it to {file.topic} and {file.date}", file=file.path)
        for stats in file.partitions:
            tp = TopicPartition(file.topic, stats.partition)
            yield from _check_stats(file, tp, stats, state.covered.get(tp, ()))
    for tp, ranges in sorted(state.covered.items()):
        if scope.has_topic(tp.topic):
            yield from _check_holes(tp, ranges, state)


def _check_stats(
    file: DataFile, tp: TopicPartition, stats: PartitionStats, covered: tuple[OffsetRange, ...]
) -> Iterator[Finding]:
    offsets = OffsetRange(stats.first, stats.last + 1)
    count = offsets.end - offsets.start
    if not 0 < stats.rows <= count:
        yield difference("layout", f"the manifest claims {stats.rows} rows", tp, file.path, [offsets])
    uncovered = subtract_ranges([offsets], covered)
    if uncovered and stats.rows > count - sum(end - start for start, end in uncovered):
        yield difference("layout", "the manifest claims rows that no commit covers", tp, file.path, uncovered)


def _check_holes(tp: TopicPartition, covered: Sequence[OffsetRange], state: ArchiveState) -> Iterator[Finding]:
    between = [OffsetRange(previous.end, following.start) for previous, following in pairwise(covered)]
    gaps = [OffsetRange(gap.start, gap.end) for gap in state.gaps if (gap.topic, gap.partition) == tp]
    holes = subtract_ranges(between, gaps)
    if holes:
        yield difference("hole", "no commit covers them, and no gap explains why", tp, offsets=holes)


def stats_by_file(buckets: Iterable[BucketStats]) -> dict[str, tuple[PartitionStats, ...]]:
    """Return the statistics of each file's partitions."""
    merged: dict[tuple[str, int], PartitionStats] = {}
    for bucket in buckets:
        key, stats = (bucket.file, bucket.partition), bucket.partition_stats
        merged[key] = merged[key].merge(stats) if key in merged else stats
    result: dict[str, list[PartitionStats]] = defaultdict(list)
    for (file, _), stats in sorted(merged.items()):
        result[file].append(stats)
    return {file: tuple(partitions) for file, partitions in result.items()}


def check_rows(file: DataFile, counted: Iterable[PartitionStats]) -> Iterator[Finding]:
    """Compare the statistics of a file's rows with the committed ones."""
    committed_stats = {stats.partition: stats for stats in file.partitions}
    counted_stats = {stats.partition: stats for stats in counted}
    for partition in sorted(committed_stats.keys() | counted_stats.keys()):
        committed, found = committed_stats.get(partition), counted_stats.get(partition)
        if committed == found:
            continue
        if committed is None and found is not None:
            text = f"{found.rows} rows of a partition that was not committed in this file"
            offsets = OffsetRange(found.first, found.last + 1)
        elif committed is not None and found is None:
            text = f"all {committed.rows} committed rows are missing"
            offsets = OffsetRange(committed.first, committed.last + 1)
        elif committed is not None and found is not None:
            text = "; ".join(_stats_changes(committed, found))
            offsets = OffsetRange(min(committed.first, found.first), max(committed.last, found.last) + 1)
        yield difference("rows", text, TopicPartition(file.topic, partition), file.path, [offsets])


def _stats_changes(committed: PartitionStats, found: PartitionStats) -> Iterator[str]:
    if committed.rows != found.rows:
        yield f"{found.rows} rows instead of {committed.rows}"
    if (committed.first, committed.last) != (found.first, found.last):
        yield f"offsets {found.first} to {found.last} instead of {committed.first} to {committed.last}"
    if committed.bytes != found.bytes:
        yield f"{found.bytes} bytes of keys and values instead of {committed.bytes}"
    if (committed.from_ms, committed.to_ms) != (found.from_ms, found.to_ms):
        yield f"timestamps {found.from_ms} to {found.to_ms} instead of {committed.from_ms} to {committed.to_ms}"
    if committed.checksum != found.checksum:
        yield f"checksum {found.checksum:016x} instead of {committed.checksum:016x}"


def possibly_uncovered(buckets: Iterable[BucketStats], state: ArchiveState) -> list[BucketStats]:
    """Return the buckets that may have rows which no commit covers; only their offsets can show it."""
    return [bucket for bucket in buckets if not _is_covered(bucket, state)]


def _is_covered(bucket: BucketStats, state: ArchiveState) -> bool:
    covered = state.covered.get(TopicPartition(state.files[bucket.file].topic, bucket.partition), ())
    return any(start <= bucket.first and bucket.last < end for start, end in covered)


def check_dates(buckets: Iterable[BucketStats], state: ArchiveState) -> Iterator[Finding]:
    """Find files with rows whose date is not that of the directory."""
    misdated: dict[tuple[str, int], list[BucketStats]] = defaultdict(list)
    for bucket in buckets:
        if bucket.misdated:
            misdated[bucket.file, bucket.partition].append(bucket)
    for (path, partition), listed in sorted(misdated.items()):
        file = state.files[path]
        count = sum(bucket.misdated for bucket in listed)
        text = f"{count} row{'s have' if count > 1 else ' has'} a different date than {file.date} (UTC), within"
        offsets = merge_ranges(OffsetRange(bucket.first, bucket.last + 1) for bucket in listed)
        yield difference("date", text, TopicPartition(file.topic, partition), path, offsets)


def lost_offsets(committed: PartitionStats, found: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the committed offsets without a row. They are known only if each offset had a row when committed."""
    if committed.rows != committed.last - committed.first + 1:
        return ()
    return subtract_ranges([OffsetRange(committed.first, committed.last + 1)], found)


def archive_sums(buckets: Iterable[BucketStats], files: Mapping[str, DataFile]) -> BucketSums:
    """Return the sums of the rows that are compared with the broker, by partition and bucket."""
    result: dict[tuple[TopicPartition, int], BucketSum] = {}
    for bucket in buckets:
        if bucket.is_compared:
            key = (TopicPartition(files[bucket.file].topic, bucket.partition), bucket.bucket)
            rows, checksum = result.get(key, _EMPTY)
            result[key] = BucketSum(rows + bucket.rows, checksum ^ bucket.checksum)
    return result


def unequal_buckets(archive: BucketSums, broker: BucketSums) -> dict[TopicPartition, list[int]]:
    """Return the buckets whose sums differ, ascending by partition."""
    result: dict[TopicPartition, list[int]] = defaultdict(list)
    for tp, bucket in sorted(archive.keys() | broker.keys()):
        if archive.get((tp, bucket), _EMPTY) != broker.get((tp, bucket), _EMPTY):
            result[tp].append(bucket)
    return dict(result)


def comparable_ranges(
    state: ArchiveState,
    scope: VerificationScope,
    log_starts: Mapping[TopicPartition, int],
    log_ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
    """Return the offsets in the scope that the archive covers and the broker's log still has."""
    result = {}
    for tp, covered in sorted(state.covered.items()):
        if scope.has_topic(tp.topic) and tp in log_starts and tp in log_ends:
            ranges = intersect_ranges(scope.limit(covered), [OffsetRange(log_starts[tp], log_ends[tp])])
            if ranges:
                result[tp] = ranges
    return result
