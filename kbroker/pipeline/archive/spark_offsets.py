"""Offsets in the JSON of Spark's Kafka source: {"topic":{"0":17}} (pure)."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError


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
