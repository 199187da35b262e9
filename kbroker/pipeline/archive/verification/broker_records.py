"""Reads the broker's records with Spark: sums by bucket, and single records that differ from the archive's rows."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.offset_ranges import OffsetRange
from kbroker.pipeline.archive.spark_offsets import encode_assignment, encode_offsets
from kbroker.pipeline.archive.verification.checks import BucketSum, BucketSums
from kbroker.pipeline.archive.verification.findings import Finding, difference
from kbroker.pipeline.archive.verification.row_scan import BUCKET_OFFSETS, MAX_REPORTED, note_omitted
from kbroker.pipeline.archive.verification.scope import VerificationScope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
