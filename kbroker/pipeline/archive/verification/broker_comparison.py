"""Compares an archive with the broker: first sums of many records, then single records where the sums differ.

The broker's records are read with Spark, where it still has the archive's offsets.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.layout import (
    OffsetRange,
    encode_assignment,
    encode_offsets,
    intersect_ranges,
    merge_ranges,
    subtract_ranges,
)
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, TopicInfo
from kbroker.pipeline.archive.verification.checks import (
    BucketStats,
    BucketSum,
    BucketSums,
    archive_sums,
    comparable_ranges,
    unequal_buckets,
)
from kbroker.pipeline.archive.verification.findings import (
    Finding,
    PartitionComparison,
    VerificationScope,
    difference,
    note,
)
from kbroker.pipeline.archive.verification.row_scan import BUCKET_OFFSETS, MAX_REPORTED, RowScan, note_omitted
from kbroker.pipeline.cluster_admin import ClusterAdmin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class ComparisonPlan:
    """The offsets to compare, and findings on those that cannot be compared."""

    ranges: Mapping[TopicPartition, tuple[OffsetRange, ...]] = field(default_factory=dict)
    compacted_topics: frozenset[str] = frozenset()  # from which the broker may have removed records
    findings: list[Finding] = field(default_factory=list)

    @property
    def bounds(self) -> dict[TopicPartition, OffsetRange]:
        """The range from the first to the last compared offset of each partition."""
        return {tp: OffsetRange(ranges[0].start, ranges[-1].end) for tp, ranges in self.ranges.items()}


def plan_comparison(
    cluster: ClusterAdmin, state: ArchiveState, scope: VerificationScope, require_broker: bool
) -> ComparisonPlan:
    """Plan the comparison. With `require_broker` a topic that is not at the broker is a difference."""
    archived = sorted({tp.topic for tp in state.covered if scope.has_topic(tp.topic)})
    topics = cluster.describe_topics(archived)
    findings: list[Finding] = []
    partitions: list[TopicPartition] = []
    for topic in archived:
        info = topics.get(topic)
        problem = _topic_problem(state.topics.get(topic), info)
        if problem:
            create = difference if require_broker else note
            findings.append(create("not compared", f"{problem}: not compared", topic=topic))
        elif info is not None:
            for tp in sorted(tp for tp in state.covered if tp.topic == topic):
                if tp.partition < info.partitions:
                    partitions.append(tp)
                else:
                    text = f"archived, but the broker's topic has {info.partitions} partitions"
                    findings.append(difference("unknown record", text, tp))
    log_starts = cluster.beginning_offsets(partitions)
    log_ends = cluster.end_offsets(partitions, bool(state.settings.get("committed_only")))
    for tp in partitions:
        offsets_after_end = subtract_ranges(scope.limit(state.covered[tp]), [OffsetRange(0, log_ends[tp])])
        if offsets_after_end:
            text = f"archived, but the broker's log ends at {log_ends[tp]}"
            findings.append(difference("unknown record", text, tp, offsets=offsets_after_end))
    ranges = comparable_ranges(state, scope, log_starts, log_ends)
    return ComparisonPlan(ranges, _compacted_topics(cluster, state, topics), findings)


def _topic_problem(archived: TopicInfo | None, info: TopicInfo | None) -> str:
    if info is None:
        return "the topic does not exist at the broker"
    if archived is not None and archived.topic_id and info.topic_id and archived.topic_id != info.topic_id:
        return f"the broker's topic was created again (its id is {info.topic_id} instead of {archived.topic_id})"
    return ""


def _compacted_topics(cluster: ClusterAdmin, state: ArchiveState, topics: Iterable[str]) -> frozenset[str]:
    """Return the topics with log compaction, now or when they were archived."""
    policies = cluster.effective_configs("cleanup.policy", topics)
    archived_policies = {name: info.configs.get("cleanup.policy", "") for name, info in state.topics.items()}
    return frozenset(
        name for name, policy in policies.items() if "compact" in policy or "compact" in archived_policies.get(name, "")
    )


PartitionRanges = Mapping[TopicPartition, Sequence[OffsetRange]]

_TEXTS = {
    "missing record": "at the broker, but not in the archive",
    "unknown record": "in the archive, but not at the broker",
    "different record": "different at the broker",
}
# Hashes of single columns, which show in which columns a record differs.
_COLUMN_HASHES = {
    "key": "xxhash64(isnull(key), key)",
    "value": "xxhash64(isnull(value), value)",
    "headers": "xxhash64(headers, transform(headers, header -> isnull(header.value)))",
    "timestamp": "unix_micros(timestamp)",
    "timestampType": "CAST(timestampType AS BIGINT)",
}


class _GroupKey(NamedTuple):
    """What the differing records of one finding have in common; the names are those of Spark's columns."""

    topic: str
    partition: int
    kind: str
    columns: str  # comma-separated; of different records
    file: str | None  # URI; None for missing records


class BrokerRecords:
    """The records at the broker."""

    def __init__(self, spark: "SparkSession", bootstrap: str, committed_only: bool, scope: VerificationScope) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._isolation_level = "read_committed" if committed_only else "read_uncommitted"
        self._timestamp_condition = scope.timestamp_condition()

    def sums(self, ranges: PartitionRanges) -> BucketSums:
        """Return the sums of the records at these offsets."""
        from pyspark.sql import functions as f

        rows = self._read(ranges).withColumn("bucket", f.expr(f"offset div {BUCKET_OFFSETS}"))
        grouped = rows.groupBy("topic", "partition", "bucket")
        sums = grouped.agg(f.count("*").alias("rows"), f.expr(f"{schema.CHECKSUM} AS checksum")).collect()
        return {
            (TopicPartition(row.topic, row.partition), row.bucket): BucketSum(
                row["rows"], schema.to_unsigned(row.checksum)
            )
            for row in sums
        }

    def find_differences(
        self, archive_rows: "DataFrame", ranges: PartitionRanges, compacted_topics: frozenset[str]
    ) -> tuple[list[Finding], int]:
        """Compare the records at these offsets one by one.

        Returns the differences, and how many archived records of `compacted_topics` are no longer at the broker.
        """
        from pyspark.sql import functions as f

        archived = _restrict(archive_rows.where(self._timestamp_condition), self._spark, ranges)
        archive = _hash_rows(archived, "file_path", "archive")
        broker = _hash_rows(self._read(ranges), "CAST(NULL AS string)", "broker")
        joined = archive.join(broker, ["topic", "partition", "offset"], "full_outer")
        kind = f.expr(
            "CASE WHEN archive IS NULL THEN 'missing record' WHEN broker IS NULL THEN 'unknown record' "
            "WHEN archive.hash <> broker.hash THEN 'different record' END"
        )
        different = joined.withColumn("kind", kind).where("kind IS NOT NULL").persist()
        try:
            if not compacted_topics:
                return _to_findings(different), 0
            is_compacted = f.col("topic").isin(*compacted_topics) & (f.col("kind") == "unknown record")
            compacted = different.where(is_compacted).count()
            return _to_findings(different.where(~is_compacted)), compacted
        finally:
            different.unpersist()

    def _read(self, ranges: PartitionRanges) -> "DataFrame":
        """Return the records at these offsets, with the columns of Spark's Kafka source."""
        # At least one task per core, even for a single partition.
        min_partitions = max(len(ranges), self._spark.sparkContext.defaultParallelism)
        options = {
            "kafka.bootstrap.servers": self._bootstrap,
            "kafka.isolation.level": self._isolation_level,
            "assign": encode_assignment(ranges),
            "startingOffsets": encode_offsets({tp: listed[0].start for tp, listed in ranges.items()}),
            "endingOffsets": encode_offsets({tp: listed[-1].end for tp, listed in ranges.items()}),
            "includeHeaders": "true",
            "failOnDataLoss": "false",
            "minPartitions": str(min_partitions),
        }
        rows = self._spark.read.format("kafka").options(**options).load().where(self._timestamp_condition)
        return _restrict(rows, self._spark, ranges)


def _to_findings(different: "DataFrame") -> list[Finding]:
    """Return one finding for all differing records with the same group key."""
    from pyspark.sql import functions as f

    columns = [f"IF(archive.{name} <=> broker.{name}, NULL, '{name}')" for name in _COLUMN_HASHES]
    differing = f"IF(kind = 'different record', concat_ws(', ', {', '.join(columns)}), '') AS columns"
    rows = different.select(
        "topic", "partition", "kind", f.expr(differing), f.col("archive.file").alias("file"), "offset"
    )
    key = _GroupKey._fields
    # `run` is equal for consecutive offsets.
    run = f.expr(f"offset - row_number() OVER (PARTITION BY {', '.join(key)} ORDER BY offset)").alias("run")
    runs = rows.select(*key, "offset", run).groupBy(*key, "run")
    ends = runs.agg(f.min("offset").alias("first"), f.max("offset").alias("last"))
    found = ends.orderBy("topic", "partition", "first").limit(MAX_REPORTED + 1).collect()
    ranges: dict[_GroupKey, list[OffsetRange]] = defaultdict(list)
    for row in found[:MAX_REPORTED]:
        ranges[_GroupKey(*(row[name] for name in key))].append(OffsetRange(row["first"], row["last"] + 1))
    findings = [_finding(group_key, listed) for group_key, listed in ranges.items()]
    return findings + note_omitted(len(found), "ranges of differing records")


def _finding(key: _GroupKey, ranges: Sequence[OffsetRange]) -> Finding:
    path = "/".join(key.file.split("/")[-3:]) if key.file else ""
    text = _TEXTS[key.kind] + (f" ({key.columns})" if key.kind == "different record" else "")
    return difference(key.kind, text, TopicPartition(key.topic, key.partition), path, ranges)


def _restrict(rows: "DataFrame", spark: "SparkSession", ranges: PartitionRanges) -> "DataFrame":
    """Return the rows at these offsets."""
    from pyspark.sql import functions as f

    table_rows = [(*tp, *offsets) for tp, listed in ranges.items() for offsets in listed]
    table = spark.createDataFrame(table_rows, "topic string, partition int, lo bigint, hi bigint").alias("ranges")
    is_in_range = f.expr(
        "rows.topic = ranges.topic AND rows.partition = ranges.partition AND offset >= lo AND offset < hi"
    )
    return rows.alias("rows").join(f.broadcast(table), is_in_range, "left_semi")


def _hash_rows(rows: "DataFrame", file: str, name: str) -> "DataFrame":
    """Return one row per offset: topic, partition, offset, and a struct of file, row hash and column hashes."""
    from pyspark.sql import functions as f

    hashes = [f.expr(f"{expression} AS {column}") for column, expression in _COLUMN_HASHES.items()]
    struct = f.struct(f.expr(f"{file} AS file"), f.expr(f"{schema.ROW_CHECKSUM} AS hash"), *hashes)
    hashed = rows.select("topic", "partition", "offset", struct.alias(name))
    return hashed.groupBy("topic", "partition", "offset").agg(f.first(name).alias(name))


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
