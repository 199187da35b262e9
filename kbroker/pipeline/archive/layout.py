"""The names of files and directories in an archive, offset ranges, and the offsets of Spark's Kafka source (pure).

    _manifest/NNNNNNNNNNNNNNNNNNNN.json            a commit
    _manifest/NNNNNNNNNNNNNNNNNNNN.state.json      the archive state after that commit
    _spark_metadata/                               the committed files in the format of Spark's file sink
    _staging/WRITER/                               files that a writer has not committed yet
    _checkpoint/                                   Spark's checkpoint of `archive run`
    topic=T/date=YYYY-MM-DD/WRITER-NNNNN.parquet   rows

Readers that do not use the manifest, such as pyarrow, ignore names that begin with `_` or `.`. Spark's offsets are
JSON: {"topic":{"0":17}}.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError

MANIFEST = "_manifest"
SPARK_METADATA = "_spark_metadata"
STAGING = "_staging"
CHECKPOINT = "_checkpoint"
# Spark's directory name for a null value.
NULL_TOPIC = "__HIVE_DEFAULT_PARTITION__"

_MANIFEST_NAME = re.compile(r"(\d{20})(\.state)?\.json")
_DATA_PATH = re.compile(
    r"topic=([A-Za-z0-9._-]{1,249})/date=([+-]?\d{4,}-\d\d-\d\d)/[A-Za-z0-9][A-Za-z0-9._-]*\.parquet"
)
_WRITER_ID = re.compile("[0-9a-f]{12}")
_DATA_NAME = re.compile(rf"({_WRITER_ID.pattern})-\d{{5,}}\.parquet")


def commit_path(number: int) -> str:
    return f"{MANIFEST}/{number:020d}.json"


def state_path(number: int) -> str:
    return f"{MANIFEST}/{number:020d}.state.json"


def parse_manifest_name(name: str) -> tuple[int, bool] | None:
    """Return the commit number and whether the file is a state file; None for other files."""
    match = _MANIFEST_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), match[2] is not None)


def parse_data_path(path: str) -> tuple[str, str] | None:
    """Return topic and date of a data file; None for a path that no archive writer creates."""
    match = _DATA_PATH.fullmatch(path)
    return None if match is None or match[1] == NULL_TOPIC else (match[1], match[2])


def data_name(writer_id: str, number: int) -> str:
    return f"{writer_id}-{number:05d}.parquet"


def is_writer_id(name: str) -> bool:
    return _WRITER_ID.fullmatch(name) is not None


def writer_id_of(path: str) -> str | None:
    """Return the id of the writer that created a data file; None for a file that no archive writer named."""
    match = _DATA_NAME.fullmatch(path.rpartition("/")[2])
    return None if match is None else match[1]


def staging_directory(writer_id: str) -> str:
    return f"{STAGING}/{writer_id}"


def owner_path(writer_id: str) -> str:
    return f"{STAGING}/{writer_id}/owner.json"


class OffsetRange(NamedTuple):
    """The offsets [start, end)."""

    start: int
    end: int


def merge_ranges(ranges: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the union as ascending ranges that neither touch nor overlap."""
    result: list[OffsetRange] = []
    for current in sorted(item for item in ranges if item.start < item.end):
        if result and current.start <= result[-1].end:
            result[-1] = OffsetRange(result[-1].start, max(result[-1].end, current.end))
        else:
            result.append(current)
    return tuple(result)


def subtract_ranges(ranges: Iterable[OffsetRange], subtrahend: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the offsets of `ranges` that are not in `subtrahend`."""
    result = []
    subtracted = merge_ranges(subtrahend)
    for start, end in merge_ranges(ranges):
        position = start
        for other in subtracted:
            if other.end <= position or other.start >= end:
                continue
            result.append(OffsetRange(position, other.start))
            position = other.end
        result.append(OffsetRange(position, end))
    return merge_ranges(result)


def intersect_ranges(ranges: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> tuple[OffsetRange, ...]:
    """Return the offsets that are in both."""
    merged_others = merge_ranges(others)
    return merge_ranges(
        OffsetRange(max(start, other.start), min(end, other.end))
        for start, end in merge_ranges(ranges)
        for other in merged_others
    )


def ranges_of(offsets: Iterable[int]) -> tuple[OffsetRange, ...]:
    """Return single offsets as ascending ranges."""
    return merge_ranges(OffsetRange(offset, offset + 1) for offset in offsets)


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Return the value of the options startingOffsets and endingOffsets."""
    return json.dumps(nest(offsets), separators=(",", ":"))


def encode_assignment(partitions: Iterable[TopicPartition]) -> str:
    """Return the value of the option assign: {"topic":[0,1]}."""
    assignment: dict[str, list[int]] = defaultdict(list)
    for tp in sorted(partitions):
        assignment[tp.topic].append(tp.partition)
    return json.dumps(assignment)


def nest(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return the offsets by topic and by partition number as text, sorted."""
    result: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    return result


def unnest(value: Any) -> dict[TopicPartition, int]:
    """Reverse `nest`. Raises ValueError, TypeError or AttributeError for other values."""
    return {
        TopicPartition(str(topic), int(partition)): int(offset)
        for topic, partitions in value.items()
        for partition, offset in partitions.items()
    }


def decode_checkpoint_file(data: bytes, location: str) -> dict[TopicPartition, int]:
    """Return the offsets in a file `offsets/N` or `sources/0/0` of Spark's checkpoint.

    `offsets/N` is `v1`, a line about the batch, and one line per source. `sources/0/0` is a zero byte, `v1` and one
    line. Raises PipelineError for a truncated or damaged file, or if the query does not read Kafka alone.
    """
    lines = data.lstrip(b"\0").decode("utf-8", "replace").strip().split("\n")
    try:
        if lines[0].strip() != "v1":
            raise ValueError(f"its first line is {lines[0][:20]!r}")
        sources = lines[1:] if len(lines) == 2 else lines[2:]
        if len(sources) != 1:
            raise ValueError(f"it has {len(sources)} sources")
        return {} if sources[0] == "-" else unnest(json.loads(sources[0]))
    except (ValueError, TypeError, AttributeError) as error:
        raise PipelineError(f"{location} does not belong to a query that reads topics: {error}") from None
