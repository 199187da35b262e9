"""Compares an archive with the broker: first sums of many records, then single records where the sums differ."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile
from kbroker.pipeline.archive.offset_ranges import OffsetRange, intersect_ranges, merge_ranges, subtract_ranges
from kbroker.pipeline.archive.verification.broker_records import BrokerRecords
from kbroker.pipeline.archive.verification.checks import BucketStats, archive_sums, unequal_buckets
from kbroker.pipeline.archive.verification.comparison_plan import ComparisonPlan
from kbroker.pipeline.archive.verification.findings import Finding, PartitionComparison, difference, note
from kbroker.pipeline.archive.verification.row_scan import BUCKET_OFFSETS, RowScan
from kbroker.pipeline.cluster_admin import ClusterAdmin

# The most buckets of a partition whose records are compared one by one. If more differ, nearly all records differ.
MAX_BUCKETS = 100

_Ranges = Mapping[TopicPartition, tuple[OffsetRange, ...]]


@dataclass
class BrokerComparison:
    """Compares the rows of one state with the broker's records."""

    cluster: ClusterAdmin
    records: BrokerRecords
    plan: ComparisonPlan
    scan: RowScan
    readable: Sequence[DataFile]
    lost: Sequence[DataFile]  # files whose rows cannot be read

    def run(
        self, buckets: Iterable[BucketStats], state: ArchiveState
    ) -> tuple[list[Finding], list[PartitionComparison]]:
        """Compare the archive with the broker. Returns the findings, and a summary for each partition."""
        broker = self.records.sums(self.plan.ranges)
        archive = archive_sums(buckets, state.files)
        findings = self._compare_records(unequal_buckets(archive, broker))
        different = {(finding.topic, finding.partition) for finding in findings if finding.is_difference}
        comparisons = []
        for tp, ranges in self.plan.ranges.items():
            archive_rows = sum(total.rows for (other, _), total in archive.items() if other == tp)
            broker_rows = sum(total.rows for (other, _), total in broker.items() if other == tp)
            is_equal = tuple(tp) not in different
            comparisons.append(PartitionComparison(*tp, ranges, archive_rows, broker_rows, is_equal))
        return findings, comparisons

    def _compare_records(self, unequal: Mapping[TopicPartition, Sequence[int]]) -> list[Finding]:
        """Compare the records of unequal buckets one by one."""
        ranges, findings = self._select_ranges(unequal)
        if not ranges:
            return findings
        files = [file for file in self.readable if _has_any(file, ranges)]
        differences, compacted = self.records.find_differences(
            self.scan.rows(files), ranges, self.plan.compacted_topics
        )
        log_starts = self.cluster.beginning_offsets(ranges)
        for found in differences:
            remaining = _exclude_retention(found, log_starts)
            if remaining is not None:
                findings += _attribute_to_files(remaining, self.lost)
        if compacted:
            text = f"{compacted} archived records were removed at the broker by log compaction"
            topics = ", ".join(sorted({tp.topic for tp in ranges} & self.plan.compacted_topics))
            findings.append(note("compacted", text, topic=topics))
        return findings

    def _select_ranges(self, unequal: Mapping[TopicPartition, Sequence[int]]) -> tuple[_Ranges, list[Finding]]:
        """Return the offsets of unequal buckets that the broker still has, and findings on the others."""
        log_starts = self.cluster.beginning_offsets(unequal)
        result: dict[TopicPartition, tuple[OffsetRange, ...]] = {}
        findings: list[Finding] = []
        for tp, buckets in unequal.items():
            selected = intersect_ranges(self.plan.ranges[tp], _bucket_ranges(buckets))
            deleted = intersect_ranges(selected, [OffsetRange(0, log_starts[tp])])
            if deleted:
                text = "deleted from the broker's log while it was read"
                findings.append(note("retention", text, tp, offsets=deleted))
            selected = subtract_ranges(selected, deleted)
            if tp.topic not in self.plan.compacted_topics and len(buckets) > MAX_BUCKETS:
                limit = _bucket_ranges(buckets[:MAX_BUCKETS])
                text = "different at the broker; too many to be compared one by one"
                findings.append(difference("different record", text, tp, offsets=subtract_ranges(selected, limit)))
                selected = intersect_ranges(selected, limit)
            if selected:
                result[tp] = selected
        return result, findings


def _bucket_ranges(buckets: Iterable[int]) -> tuple[OffsetRange, ...]:
    return merge_ranges(OffsetRange(bucket * BUCKET_OFFSETS, (bucket + 1) * BUCKET_OFFSETS) for bucket in buckets)


def _has_any(file: DataFile, ranges: _Ranges) -> bool:
    return any(
        intersect_ranges(
            [OffsetRange(stats.first, stats.last + 1)], ranges.get(TopicPartition(file.topic, stats.partition), ())
        )
        for stats in file.partitions
    )


def _exclude_retention(finding: Finding, log_starts: Mapping[TopicPartition, int]) -> Finding | None:
    """Exclude records that retention has deleted from the broker meanwhile; None if nothing remains."""
    if finding.kind != "unknown record" or finding.partition is None:
        return finding
    log_start = log_starts[TopicPartition(finding.topic, finding.partition)]
    remaining = subtract_ranges(finding.offsets, [OffsetRange(0, log_start)])
    return finding._replace(offsets=remaining) if remaining else None


def _attribute_to_files(finding: Finding, lost: Iterable[DataFile]) -> list[Finding]:
    """Split missing records by the unreadable file that contained them."""
    if finding.kind != "missing record":
        return [finding]
    result = []
    remaining = finding.offsets
    for file in lost:
        held = intersect_ranges(
            remaining,
            [
                OffsetRange(stats.first, stats.last + 1)
                for stats in file.partitions
                if (file.topic, stats.partition) == (finding.topic, finding.partition)
            ],
        )
        if held:
            text = "at the broker; the archive lost it with this file"
            result.append(finding._replace(text=text, file=file.path, offsets=held))
            remaining = subtract_ranges(remaining, held)
    return [*result, *([finding._replace(offsets=remaining)] if remaining else [])]
