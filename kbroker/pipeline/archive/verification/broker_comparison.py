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
from kbroker.pipeline.archive.manifest import ArchiveState, DataFile, TopicInfo
from kbroker.pipeline.archive.verification.findings import (
    Finding,
    PartitionComparison,
    VerificationScope,
    difference,
    note,
)
from kbroker.pipeline.archive.verification.row_scan import MAX_REPORTED, RowScan, note_omitted
from kbroker.pipeline.cluster_admin import ClusterAdmin
from kbroker.pipeline.security import kafka_options
from kbroker.pipeline.spark import functions as f

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

# Rows are summed by bucket of this many offsets; single records are compared only in buckets whose sums differ.
BUCKET_OFFSETS = 100_000
# The most buckets of a partition whose records are compared one by one. If more differ, nearly all records differ.
MAX_BUCKETS = 100

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

_Ranges = Mapping[TopicPartition, tuple[OffsetRange, ...]]


@dataclass
class ComparisonPlan:
    """The offsets to compare, and findings on those that cannot be compared."""

    ranges: _Ranges = field(default_factory=dict)
    compacted_topics: frozenset[str] = frozenset()  # from which the broker may have removed records
    findings: list[Finding] = field(default_factory=list)


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
        if info is None or (problem := _topic_problem(state.topics.get(topic), info)):
            text = "the topic does not exist at the broker" if info is None else problem
            create = difference if require_broker else note
            findings.append(create("not compared", f"{text}: not compared", topic=topic))
            continue
        for tp in sorted(tp for tp in state.covered if tp.topic == topic):
            if tp.partition < info.partitions:
                partitions.append(tp)
            else:
                text = f"archived, but the broker's topic has {info.partitions} partitions"
                findings.append(difference("unknown record", text, tp))
    log_starts = cluster.beginning_offsets(partitions)
    log_ends = cluster.end_offsets(partitions, bool(state.settings.get("committed_only")))
    ranges = {}
    for tp in partitions:
        selected = scope.limit(state.covered[tp])
        if beyond_end := subtract_ranges(selected, [OffsetRange(0, log_ends[tp])]):
            text = f"archived, but the broker's log ends at {log_ends[tp]}"
            findings.append(difference("unknown record", text, tp, offsets=beyond_end))
        if comparable := intersect_ranges(selected, [OffsetRange(log_starts[tp], log_ends[tp])]):
            ranges[tp] = comparable
    return ComparisonPlan(ranges, _compacted_topics(cluster, state, topics), findings)


def _topic_problem(archived: TopicInfo | None, info: TopicInfo) -> str:
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


class _GroupKey(NamedTuple):
    """What the differing records of one finding have in common; the names are those of Spark's columns."""

    topic: str
    partition: int
    kind: str
    columns: str  # comma-separated; of different records
    file: str | None  # URI; None for missing records


class BrokerComparison:
    """Compares the rows of one state with the broker's records."""

    def __init__(
        self,
        spark: "SparkSession",
        cluster: ClusterAdmin,
        plan: ComparisonPlan,
        scan: RowScan,
        scope: VerificationScope,
        committed_only: bool,
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._plan = plan
        self._scan = scan
        self._timestamp_condition = scope.timestamp_condition()
        self._isolation_level = "read_committed" if committed_only else "read_uncommitted"

    def run(
        self, readable: Sequence[DataFile], lost: Sequence[DataFile]
    ) -> tuple[list[Finding], list[PartitionComparison]]:
        """Compare the readable files with the broker. Returns the findings, and a summary for each partition.

        `lost`: the files whose rows cannot be read.
        """
        sums: dict[TopicPartition, list[Row]] = {tp: [] for tp in self._plan.ranges}
        for row in self._sums(readable):
            sums[TopicPartition(row.topic, row.partition)].append(row)
        unequal = {
            tp: buckets
            for tp, rows in sums.items()
            if (buckets := sorted(row.bucket for row in rows if row.checksum or row.archived != row.at_broker))
        }
        findings = self._compare_records(unequal, readable, lost) if unequal else []
        different = {(finding.topic, finding.partition) for finding in findings if finding.is_difference}
        comparisons = []
        for tp, rows in sums.items():
            archived, at_broker = sum(row.archived for row in rows), sum(row.at_broker for row in rows)
            equal = tuple(tp) not in different
            comparisons.append(PartitionComparison(*tp, self._plan.ranges[tp], archived, at_broker, equal))
        return findings, comparisons

    def _sums(self, files: Sequence[DataFile]) -> "list[Row]":
        """Count the rows of both sides by bucket. The checksum of all of them is 0 if both have the same rows."""
        archived = self._archived(self._plan.ranges, files).selectExpr(*schema.NAMES[:-1], "1 AS is_archived")
        at_broker = self._at_broker(self._plan.ranges).selectExpr(*schema.NAMES[:-1], "0 AS is_archived")
        return (
            archived.unionByName(at_broker)
            .groupBy("topic", "partition", f.expr(f"offset div {BUCKET_OFFSETS} AS bucket"))
            .agg(
                f.expr("count_if(is_archived = 1) AS archived"),
                f.expr("count_if(is_archived = 0) AS at_broker"),
                f.expr(f"{schema.CHECKSUM} AS checksum"),
            )
            .collect()
        )

    def _compare_records(
        self, unequal: Mapping[TopicPartition, Sequence[int]], readable: Sequence[DataFile], lost: Sequence[DataFile]
    ) -> list[Finding]:
        """Compare the records of unequal buckets one by one."""
        ranges, omitted = {}, {}
        for tp, buckets in unequal.items():
            count = len(buckets) if tp.topic in self._plan.compacted_topics else MAX_BUCKETS
            ranges[tp] = intersect_ranges(self._plan.ranges[tp], _bucket_ranges(buckets[:count]))
            omitted[tp] = intersect_ranges(self._plan.ranges[tp], _bucket_ranges(buckets[count:]))
        differences, compacted = self._find_differences(ranges, readable)
        log_starts = self._cluster.beginning_offsets(unequal)
        findings = []
        for found in differences:
            findings += _explain(found, log_starts, lost)
        for tp, offsets in omitted.items():
            if existing := subtract_ranges(offsets, [OffsetRange(0, log_starts[tp])]):
                text = "different at the broker; too many to be compared one by one"
                findings.append(difference("different record", text, tp, offsets=existing))
        if compacted:
            text = f"{compacted} archived records were removed at the broker by log compaction"
            topics = ", ".join(sorted({tp.topic for tp in ranges} & self._plan.compacted_topics))
            findings.append(note("compacted", text, topic=topics))
        return findings

    def _find_differences(self, ranges: _Ranges, files: Sequence[DataFile]) -> tuple[list[Finding], int]:
        """Compare the records at these offsets one by one.

        Returns the differences, and how many archived records of compacted topics are no longer at the broker.
        """
        archive = _hash_rows(self._archived(ranges, files), "file_path", "archive")
        broker = _hash_rows(self._at_broker(ranges), "CAST(NULL AS string)", "broker")
        joined = archive.join(broker, ["topic", "partition", "offset"], "full_outer")
        kind = f.expr(
            "CASE WHEN archive IS NULL THEN 'missing record' WHEN broker IS NULL THEN 'unknown record' "
            "WHEN archive.hash <> broker.hash THEN 'different record' END"
        )
        different = joined.withColumn("kind", kind).where("kind IS NOT NULL").persist()
        try:
            if not self._plan.compacted_topics:
                return _to_findings(different), 0
            is_compacted = f.col("topic").isin(*self._plan.compacted_topics) & (f.col("kind") == "unknown record")
            return _to_findings(different.where(~is_compacted)), different.where(is_compacted).count()
        finally:
            different.unpersist()

    def _archived(self, ranges: _Ranges, files: Sequence[DataFile]) -> "DataFrame":
        """Return the archive's rows at these offsets."""
        rows = self._scan.rows(file for file in files if _has_any(file, ranges))
        return self._restrict(rows, ranges)

    def _at_broker(self, ranges: _Ranges) -> "DataFrame":
        """Return the broker's records at these offsets, with the columns of Spark's Kafka source."""
        # At least one task per core, even for a single partition.
        min_partitions = max(len(ranges), self._spark.sparkContext.defaultParallelism)
        options = {
            **kafka_options(self._cluster.bootstrap),
            "kafka.isolation.level": self._isolation_level,
            "assign": encode_assignment(ranges),
            "startingOffsets": encode_offsets({tp: listed[0].start for tp, listed in ranges.items()}),
            "endingOffsets": encode_offsets({tp: listed[-1].end for tp, listed in ranges.items()}),
            "includeHeaders": "true",
            "failOnDataLoss": "false",
            "minPartitions": str(min_partitions),
        }
        return self._restrict(self._spark.read.format("kafka").options(**options).load(), ranges)

    def _restrict(self, rows: "DataFrame", ranges: _Ranges) -> "DataFrame":
        """Return the rows at these offsets and with timestamps in the scope."""
        table_rows = [(*tp, *offsets) for tp, listed in ranges.items() for offsets in listed]
        columns = "topic string, partition int, lo bigint, hi bigint"
        table = self._spark.createDataFrame(table_rows, columns).alias("ranges")
        is_in_range = f.expr(
            "rows.topic = ranges.topic AND rows.partition = ranges.partition AND offset >= lo AND offset < hi"
        )
        return rows.where(self._timestamp_condition).alias("rows").join(f.broadcast(table), is_in_range, "left_semi")


def _hash_rows(rows: "DataFrame", file: str, name: str) -> "DataFrame":
    """Return one row per offset: topic, partition, offset, and a struct of file, row hash and column hashes."""
    hashes = [f.expr(f"{expression} AS {column}") for column, expression in _COLUMN_HASHES.items()]
    struct = f.struct(f.expr(f"{file} AS file"), f.expr(f"{schema.ROW_CHECKSUM} AS hash"), *hashes)
    hashed = rows.select("topic", "partition", "offset", struct.alias(name))
    return hashed.groupBy("topic", "partition", "offset").agg(f.first(name).alias(name))


def _to_findings(different: "DataFrame") -> list[Finding]:
    """Return one finding for all differing records with the same group key."""
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
    findings = []
    for group, listed in ranges.items():
        path = "/".join(group.file.split("/")[-3:]) if group.file else ""
        text = _TEXTS[group.kind] + (f" ({group.columns})" if group.kind == "different record" else "")
        findings.append(difference(group.kind, text, TopicPartition(group.topic, group.partition), path, listed))
    return findings + note_omitted(len(found), "ranges of differing records")


def _bucket_ranges(buckets: Iterable[int]) -> tuple[OffsetRange, ...]:
    return merge_ranges(OffsetRange(bucket * BUCKET_OFFSETS, (bucket + 1) * BUCKET_OFFSETS) for bucket in buckets)


def _has_any(file: DataFile, ranges: _Ranges) -> bool:
    return any(
        intersect_ranges([stats.offsets], ranges.get(TopicPartition(file.topic, stats.partition), ()))
        for stats in file.partitions
    )


def _explain(found: Finding, log_starts: Mapping[TopicPartition, int], lost: Iterable[DataFile]) -> list[Finding]:
    """Separate what retention has deleted from the broker meanwhile, and what was in an unreadable file."""
    if found.partition is None:
        return [found]
    tp, result, remaining = TopicPartition(found.topic, found.partition), [], found.offsets
    if found.kind == "unknown record":
        if deleted := intersect_ranges(remaining, [OffsetRange(0, log_starts[tp])]):
            result.append(note("retention", "deleted from the broker's log while it was read", tp, offsets=deleted))
            remaining = subtract_ranges(remaining, deleted)
    elif found.kind == "missing record":
        for file in lost:
            known = [stats.offsets for stats in file.partitions if (file.topic, stats.partition) == tp]
            if held := intersect_ranges(remaining, known):
                text = "at the broker; the archive lost it with this file"
                result.append(found._replace(text=text, file=file.path, offsets=held))
                remaining = subtract_ranges(remaining, held)
    return [*result, *([found._replace(offsets=remaining)] if remaining else [])]
