"""The columns of an archive's rows, and the checksums and statistics that are computed from them, as Spark SQL.

The expressions do not depend on the time zone of the Spark session.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The schema of Spark's Kafka source, and the date. `topic` and `date` are directories; the other columns are in the
# files.
COLUMNS = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int, "
    "offset bigint, timestamp timestamp, timestampType int, date date"
)
NAMES = ("key", "value", "headers", "topic", "partition", "offset", "timestamp", "timestampType", "date")

# The date of a record's timestamp in UTC.
DATE = "date_from_unix_date(CAST(floor(unix_seconds(timestamp) / 86400) AS INT))"

# The checksum of one row. xxhash64 skips nulls, so they are marked by separate arguments. Null headers and an empty
# list of headers are the same in Kafka, and have the same checksum.
ROW_CHECKSUM = (
    "xxhash64(partition, offset, timestamp, timestampType, isnull(key), isnull(value), key, value, headers, "
    "transform(headers, header -> isnull(header.value)))"
)
# The checksum of a set of rows in any order, signed; see to_unsigned. Two copies of a row cancel each other out, so
# row counts must be compared as well.
CHECKSUM = f"bit_xor({ROW_CHECKSUM})"

# The fields of PartitionStats after `partition`, in their order.
STATS_AGGREGATES = (
    "min(offset) AS first",
    "max(offset) AS last",
    "count(*) AS rows",
    "sum(CAST(coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) AS BIGINT)) AS bytes",
    "unix_millis(min(timestamp)) AS from_ms",
    "unix_millis(max(timestamp)) AS to_ms",
    f"{CHECKSUM} AS checksum",
)


def partition_stats(frame: "DataFrame", *group_by: "str | Column") -> "DataFrame":
    """Return the statistics of each partition, or of each combination of `group_by` (such as `topic`) and partition.

    The columns are those of `group_by`, `partition` and STATS_AGGREGATES. The checksum is signed.
    """
    from pyspark.sql import functions as f

    aggregates = [f.expr(text) for text in STATS_AGGREGATES]
    return frame.groupBy(*group_by, "partition").agg(*aggregates)


def to_unsigned(checksum: int) -> int:
    """Convert Spark's signed 64-bit checksum to the unsigned one of PartitionStats."""
    return checksum & 0xFFFF_FFFF_FFFF_FFFF
