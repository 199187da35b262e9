"""The columns of an archive, and what is computed of rows: the same wherever it is computed.

Everything here is SQL text and functions of DataFrames; nothing depends on the session's time zone.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Spark's Kafka schema and the date. `topic` and `date` are directories, all else is in the files.
COLUMNS = (
    "key binary, value binary, headers array<struct<key:string,value:binary>>, topic string, partition int, "
    "offset bigint, timestamp timestamp, timestampType int, date date"
)
NAMES = ("key", "value", "headers", "topic", "partition", "offset", "timestamp", "timestampType", "date")

# The date of a record's timestamp in UTC, whatever the session's time zone is.
DATE = "date_from_unix_date(CAST(floor(unix_seconds(timestamp) / 86400) AS INT))"

# Of one row. xxhash64 passes over nulls, so they are told apart by flags of their own; no headers and an empty list of
# headers are the same in Kafka, and here.
ROW_CHECKSUM = (
    "xxhash64(partition, offset, timestamp, timestampType, isnull(key), isnull(value), key, value, headers, "
    "transform(headers, header -> isnull(header.value)))"
)
# Of a set of rows, in any order: signed, as Spark has it; `unsigned` makes of it what Part.checksum holds. A row that
# is there twice takes itself out: counts have to be compared as well.
CHECKSUM = f"bit_xor({ROW_CHECKSUM})"

# The aggregates behind model.Part, in the order of its fields after `partition`.
PART_AGGREGATES = (
    "min(offset) AS first",
    "max(offset) AS last",
    "count(*) AS rows",
    "sum(CAST(coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) AS BIGINT)) AS bytes",
    "unix_millis(min(timestamp)) AS from_ms",
    "unix_millis(max(timestamp)) AS to_ms",
    f"{CHECKSUM} AS checksum",
)


def parts(frame: "DataFrame", *by: "str | Column") -> "DataFrame":
    """One row for each partition, further told apart by the columns `by` (such as `topic`): these columns, then
    `partition`, then the other fields of model.Part. The checksum is signed; see `unsigned`.
    """
    from pyspark.sql import functions as f

    aggregates = [f.expr(text) for text in PART_AGGREGATES]
    return frame.groupBy(*by, "partition").agg(*aggregates)


def unsigned(checksum: int) -> int:
    """A checksum of Spark's as model.Part has it: 64 bits without a sign."""
    return checksum & 0xFFFF_FFFF_FFFF_FFFF
