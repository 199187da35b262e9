"""The archive's rows against the broker's records: sums of many at a time, and one by one where the sums differ."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kbroker.common import TopicPartition
from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.manifest.model import ArchiveState, OffsetRange
from kbroker.pipeline.archive.verification.content import BUCKET, TOLD, condition, more
from kbroker.pipeline.archive.verification.findings import Finding, difference, minus, note
from kbroker.pipeline.archive.verification.rules import Scope, Sum, comparable
from kbroker.pipeline.kafka import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of one partition, looked at record by record. Where more of them differ, everything does.
MOST_BUCKETS = 100
# Columns that are told apart where a record differs.
_TOLD_COLUMNS = ("key", "value", "headers", "timestamp", "timestampType")
_HASHES = {
    "key": "xxhash64(isnull(key), key)",
    "value": "xxhash64(isnull(value), value)",
    "headers": "xxhash64(headers, transform(headers, header -> isnull(header.value)))",
    "timestamp": "unix_micros(timestamp)",
    "timestampType": "CAST(timestampType AS BIGINT)",
}


@dataclass
class Plan:
    """What of the archive is compared with the broker, and why the rest is not."""

    spans: Mapping[TopicPartition, tuple[OffsetRange, ...]] = field(default_factory=dict)
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)  # of the broker's log
    compacted: frozenset[str] = frozenset()  # topics whose older records the broker may have removed
    findings: list[Finding] = field(default_factory=list)

    @property
    def ranges(self) -> dict[TopicPartition, OffsetRange]:
        """From the first compared offset of each partition to the last."""
        return {at: OffsetRange(spans[0].start, spans[-1].end) for at, spans in self.spans.items()}


def plan(cluster: Cluster, state: ArchiveState, scope: Scope, is_required: bool) -> Plan:
    """What can be compared now. With `is_required` it is a difference where a topic is not at the broker."""
    archived = sorted({at.topic for at in state.covered if scope.has_topic(at.topic)})
    there = cluster.topics(archived)
    findings = []
    partitions = []
    for topic in archived:
        was, now = state.topics.get(topic), there.get(topic)
        reason = "the broker has no such topic" if now is None else ""
        if was is not None and now is not None and was.topic_id != now.topic_id and was.topic_id and now.topic_id:
            reason = f"the broker's topic is another one of this name (id {now.topic_id} instead of {was.topic_id})"
        if reason:
            tell = difference if is_required else note
            findings.append(tell("not compared", f"{reason}: not compared", topic=topic))
        elif now is not None:
            numbers = sorted(at.partition for at in state.covered if at.topic == topic)
            partitions += [TopicPartition(topic, number) for number in numbers if number < now.partitions]
            findings += _without_partition(topic, numbers, now.partitions)
    starts = cluster.beginnings(partitions)
    ends = cluster.ends(partitions, bool(state.settings.get("committed_only")))
    for at in partitions:
        beyond = minus(scope.spans(state.covered[at]), [OffsetRange(0, ends[at])])
        if beyond:
            what = f"archived, and the broker's log ends at {ends[at]}"
            findings.append(difference("unknown record", what, at, offsets=beyond))
    return Plan(comparable(state, scope, starts, ends), starts, _compacted(cluster, state, there), findings)


def _compacted(cluster: Cluster, state: ArchiveState, topics: Iterable[str]) -> frozenset[str]:
    """Those that are compacted, or were while they were archived."""
    now = cluster.in_force("cleanup.policy", topics)
    then = {name: info.configs.get("cleanup.policy", "") for name, info in state.topics.items()}
    return frozenset(name for name, policy in now.items() if "compact" in policy or "compact" in then.get(name, ""))


def _without_partition(topic: str, numbers: Iterable[int], partitions: int) -> list[Finding]:
    what = f"archived, and the broker's topic has {partitions} partitions"
    return [
        difference("unknown record", what, TopicPartition(topic, number)) for number in numbers if number >= partitions
    ]


class Broker:
    """The broker's side of a comparison."""

    def __init__(
        self, spark: "SparkSession", bootstrap: str, compared: Plan, committed_only: bool, scope: Scope
    ) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._plan = compared
        self._level = "read_committed" if committed_only else "read_uncommitted"
        self._condition = condition(scope)

    def sums(self) -> dict[tuple[TopicPartition, int], Sum]:
        """Of all records that are compared, by partition and bucket."""
        from pyspark.sql import functions as f

        rows = self.rows(self._plan.spans).withColumn("bucket", f.expr(f"offset div {BUCKET}"))
        counted = rows.groupBy("topic", "partition", "bucket")
        found = counted.agg(f.count("*").alias("rows"), f.expr(f"{schema.CHECKSUM} AS checksum")).collect()
        return {
            (TopicPartition(row.topic, row.partition), row.bucket): Sum(row["rows"], schema.unsigned(row.checksum))
            for row in found
        }

    def rows(self, spans: Mapping[TopicPartition, Sequence[OffsetRange]]) -> "DataFrame":
        """The records of these offsets, with the columns of Spark's Kafka source."""
        first = {at: listed[0].start for at, listed in spans.items()}
        last = {at: listed[-1].end for at, listed in spans.items()}
        # As many tasks as there are slots, even where there is one partition.
        tasks = max(len(spans), self._spark.sparkContext.defaultParallelism)
        options = {
            "kafka.bootstrap.servers": self._bootstrap,
            "kafka.isolation.level": self._level,
            "assign": _assignment(spans),
            "startingOffsets": _offsets(first),
            "endingOffsets": _offsets(last),
            "includeHeaders": "true",
            "failOnDataLoss": "false",
            "minPartitions": str(tasks),
        }
        rows = self._spark.read.format("kafka").options(**options).load().where(self._condition)
        return only(rows, self._spark, spans)

    def unlike(
        self, archive: "DataFrame", spans: Mapping[TopicPartition, Sequence[OffsetRange]]
    ) -> tuple[list[Finding], int]:
        """Each record of these offsets that is not the same on both sides, and how many the broker compacted away."""
        from pyspark.sql import functions as f

        ours = _hashed(only(archive.where(self._condition), self._spark, spans), "file_path", "ours")
        theirs = _hashed(self.rows(spans), "CAST(NULL AS string)", "theirs")
        both = ours.join(theirs, ["topic", "partition", "offset"], "full_outer")
        kind = f.expr(
            "CASE WHEN ours IS NULL THEN 'missing record' WHEN theirs IS NULL THEN 'unknown record' "
            "WHEN ours.hash <> theirs.hash THEN 'different record' END"
        )
        unlike = both.withColumn("kind", kind).where("kind IS NOT NULL").persist()
        try:
            gone = f.col("topic").isin(*self._plan.compacted) & (f.col("kind") == "unknown record")
            compacted = unlike.where(gone).count() if self._plan.compacted else 0
            return self._told(unlike.where(~gone) if self._plan.compacted else unlike), compacted
        finally:
            unlike.unpersist()

    def _told(self, unlike: "DataFrame") -> list[Finding]:
        from pyspark.sql import functions as f

        columns = [f"IF(ours.{name} <=> theirs.{name}, NULL, '{name}')" for name in _TOLD_COLUMNS]
        differing = f.expr(f"IF(kind = 'different record', concat_ws(', ', {', '.join(columns)}), '')").alias("columns")
        by = ("topic", "partition", "kind", "columns", "file")
        rows = unlike.select("topic", "partition", "kind", differing, f.col("ours.file").alias("file"), "offset")
        run = f.expr(f"offset - row_number() OVER (PARTITION BY {', '.join(by)} ORDER BY offset)").alias("run")
        runs = rows.select(*by, "offset", run).groupBy(*by, "run")
        ends = runs.agg(f.min("offset").alias("first"), f.max("offset").alias("last"))
        found = ends.orderBy("topic", "partition", "first").limit(TOLD + 1).collect()
        grouped: dict[tuple[Any, ...], list[OffsetRange]] = defaultdict(list)
        for row in found[:TOLD]:
            grouped[tuple(row[name] for name in by)].append(OffsetRange(row["first"], row["last"] + 1))
        told = [_finding(of, spans) for of, spans in grouped.items()]
        return told + more(len(found), "ranges of differing records")


def _finding(of: tuple[Any, ...], spans: Sequence[OffsetRange]) -> Finding:
    topic, partition, kind, columns, file = of
    path = "/".join(file.split("/")[-3:]) if file else ""
    what = {
        "missing record": "the broker has what the archive has not",
        "unknown record": "the archive has what the broker has not",
        "different record": f"not the same at the broker ({columns})",
    }[kind]
    return difference(kind, what, TopicPartition(topic, partition), path, spans)


def only(
    rows: "DataFrame", spark: "SparkSession", spans: Mapping[TopicPartition, Sequence[OffsetRange]]
) -> "DataFrame":
    """The rows whose offsets are in these ranges."""
    from pyspark.sql import functions as f

    listed = [(*at, *span) for at, several in spans.items() for span in several]
    table = spark.createDataFrame(listed, "topic string, partition int, lo bigint, hi bigint").alias("wanted")
    here = rows.alias("rows")
    inside = f.expr("rows.topic = wanted.topic AND rows.partition = wanted.partition AND offset >= lo AND offset < hi")
    return here.join(f.broadcast(table), inside, "left_semi")


def _hashed(rows: "DataFrame", file: str, name: str) -> "DataFrame":
    """One line for each offset: topic, partition, offset, and a struct of the file, the row's hash, each column's."""
    from pyspark.sql import functions as f

    columns = [f.expr(f"{hashed} AS {column}") for column, hashed in _HASHES.items()]
    whole = [f.expr(f"{file} AS file"), f.expr(f"{schema.ROW_CHECKSUM} AS hash")]
    each = rows.select("topic", "partition", "offset", f.struct(*whole, *columns).alias(name))
    return each.groupBy("topic", "partition", "offset").agg(f.first(name).alias(name))


def _assignment(partitions: Iterable[TopicPartition]) -> str:
    listed: dict[str, list[int]] = defaultdict(list)
    for at in sorted(partitions):
        listed[at.topic].append(at.partition)
    return json.dumps(listed)


def _offsets(values: Mapping[TopicPartition, int]) -> str:
    offsets: dict[str, dict[str, int]] = defaultdict(dict)
    for at, value in values.items():
        offsets[at.topic][str(at.partition)] = value
    return json.dumps(offsets)
