"""The columns of a topic's table, and how its rows are divided into files.

The columns are those of Spark's Kafka source without the topic. A file holds records of one partition and one day (or
hour) of their timestamps in UTC, ascending by offset, unless records of several batches were merged out of order.
"""

from collections.abc import Mapping
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, Transform
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

PARTITION, OFFSET, TIMESTAMP = 1, 2, 3  # field ids
_HEADER = StructType(NestedField(9, "key", StringType()), NestedField(10, "value", BinaryType()))
SCHEMA = Schema(
    NestedField(PARTITION, "partition", IntegerType(), required=True),
    NestedField(OFFSET, "offset", LongType(), required=True),
    NestedField(TIMESTAMP, "timestamp", TimestamptzType(), required=True),
    NestedField(4, "timestampType", IntegerType(), required=True),
    NestedField(5, "key", BinaryType()),
    NestedField(6, "value", BinaryType()),
    NestedField(7, "headers", ListType(8, _HEADER, element_required=True)),
)
# Leaves whose values rarely repeat within a file: a dictionary of them costs time and saves no space.
PLAIN_COLUMNS = frozenset((OFFSET, TIMESTAMP, 5, 6, 9, 10))
PERIODS: Mapping[str, Transform[Any, int]] = {"day": DayTransform(), "hour": HourTransform()}
SORT_ORDER = SortOrder(SortField(OFFSET, IdentityTransform()))
MERGE_MANIFESTS = "commit.manifest-merge.enabled"
# Conflicts are for the caller to decide: a retried append would archive the same offsets twice. Only commits of
# maintenance merge manifests, because rewriting one of 1 MiB takes about a second.
TABLE_PROPERTIES = {
    "commit.retry.num-retries": "0",
    MERGE_MANIFESTS: "false",
    "commit.manifest.min-count-to-merge": "2",
    "commit.manifest.target-size-bytes": str(1 << 20),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.metrics.column.key": "none",
    "write.metadata.metrics.column.value": "none",
    "write.metadata.metrics.column.headers": "none",
}


def partition_spec(period: str) -> PartitionSpec:
    """Return the partitioning of a table by `day` or `hour`."""
    return PartitionSpec(
        PartitionField(TIMESTAMP, 1000, PERIODS[period], f"timestamp_{period}"),
        PartitionField(PARTITION, 1001, IdentityTransform(), "partition"),
    )
