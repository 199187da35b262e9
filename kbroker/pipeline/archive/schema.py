"""The columns of an archive's rows, and the checksums and statistics that are computed from them, as Spark SQL.

The expressions do not depend on the time zone of the Spark session.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kbroker.pipeline.archive.manifest import PartitionStats

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
# The checksum of a set of rows in any order, signed. Two copies of a row cancel each other out, so
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


def partition_stats(
    frame: "DataFrame", *group_by: str, more: "Sequence[Column]" = ()
) -> list[tuple[tuple[Any, ...], PartitionStats, tuple[Any, ...]]]:
    """Compute the statistics of each combination of `group_by` and partition, and the aggregates `more`.

    Returns the values of `group_by`, the statistics, and the values of `more`. Runs a Spark job.
    """
    from pyspark.sql import functions as f

    aggregates = [*map(f.expr, STATS_AGGREGATES), *more]
    groups, end = len(group_by), len(group_by) + len(PartitionStats._fields)
    result = []
    for row in frame.groupBy(*group_by, "partition").agg(*aggregates).collect():
        stats = PartitionStats(*row[groups:end])
        # Spark's checksum is signed.
        unsigned = stats._replace(checksum=stats.checksum & 0xFFFF_FFFF_FFFF_FFFF)
        result.append((tuple(row[:groups]), unsigned, tuple(row[end:])))
    return result
