"""The offsets at which a consumer without a group begins and stops, by partition."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kbroker.cli.common.errors import CliError
from kbroker.cli.common.parsing import PartitionPosition

Offsets = dict[Any, int]  # by kafka.TopicPartition


class OffsetBounds(NamedTuple):
    """First offsets, and exclusive end offsets; a partition without an end is read until the command is stopped."""

    begin: Offsets
    end: Offsets


def existing_partitions(consumer: Any, topics: list[str], partitions: list[int] | None) -> list[Any]:
    """Return all partitions of topics, or those in `partitions`; raises CliError for one that does not exist."""
    from kafka import TopicPartition

    existing = []
    for topic in dict.fromkeys(topics):
        indexes = consumer.partitions_for_topic(topic)
        if not indexes:
            raise CliError(f"topic {topic} does not exist")
        for missing in sorted(set(partitions or ()) - indexes):
            raise CliError(f"topic {topic} has no partition {missing}: it has {len(indexes)}")
        existing += [TopicPartition(topic, index) for index in sorted(partitions or indexes)]
    return existing


def find_bounds(
    consumer: Any, partitions: list[Any], start: PartitionPosition, stop: PartitionPosition | None, follow: bool
) -> OffsetBounds:
    """Return the offsets of two positions. Without `stop`, stop at the current end, or never with `follow`."""
    log_start: Offsets = consumer.beginning_offsets(partitions)
    log_end: Offsets = consumer.end_offsets(partitions)

    def at_time(position: PartitionPosition) -> dict[Any, int | None]:
        if position.kind != "time":
            return {}
        offsets = consumer.offsets_for_times(dict.fromkeys(partitions, position.value))
        return {tp: at.offset if at is not None else None for tp, at in offsets.items()}

    begin = resolve_position(start, log_start, log_end, at_time(start))
    if stop is not None:
        end = resolve_position(stop, log_start, log_end, at_time(stop), clamp_to_end=not follow)
        if follow and stop.kind == "time":
            # A partition without a record that late yet has no end.
            end = {tp: offset for tp, offset in end.items() if offset < log_end[tp]}
    else:
        end = {} if follow else dict(log_end)
    return OffsetBounds(begin, end)


def resolve_position(
    position: PartitionPosition,
    log_start: Offsets,
    log_end: Offsets,
    at_time: Mapping[Any, int | None],
    *,
    clamp_to_end: bool = True,
) -> Offsets:
    """Return a position as an offset in each partition, clamped to the log; a time after all records is the end."""

    def offset(tp: Any) -> int:
        match position.kind:
            case "earliest":
                return log_start[tp]
            case "last":
                return log_end[tp] - position.value
            case "offset":
                return position.value
        found = at_time.get(tp)
        return log_end[tp] if found is None else found

    return {tp: max(log_start[tp], min(offset(tp), log_end[tp]) if clamp_to_end else offset(tp)) for tp in log_start}
