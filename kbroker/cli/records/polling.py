"""Reads and prints records, between offsets of partitions or as a member of a group."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from time import monotonic
from typing import NamedTuple

from kbroker.cli.common.client import partition_leaders, select_partitions
from kbroker.cli.common.output import ProgressBar
from kbroker.cli.common.stop_signals import Interrupts
from kbroker.cli.common.values import PartitionPosition, TopicPartitions
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord, PartitionConsumer
from kbroker.client.group_member import BlockingMember
from kbroker.client.groups import committed_offsets
from kbroker.client.offsets import EARLIEST, LATEST, READ_UNCOMMITTED, list_offsets
from kbroker.common import TopicPartition

Offsets = dict[TopicPartition, int]


class OffsetBounds(NamedTuple):
    """First offsets, and exclusive end offsets; a partition without an end is read until the command is stopped."""

    begin: Offsets
    end: Offsets


def existing_partitions(
    cluster: ClusterClient, topics: list[str], partitions: list[int] | None
) -> list[TopicPartition]:
    """Return all partitions of topics, or those in `partitions`; raises CliError for one that does not exist."""
    leaders = partition_leaders(cluster, list(dict.fromkeys(topics)))
    selections = [TopicPartitions(topic, tuple(partitions) if partitions else None) for topic in topics]
    return [TopicPartition(*partition) for partition in sorted(select_partitions(leaders, selections))]


def find_bounds(
    cluster: ClusterClient,
    partitions: list[TopicPartition],
    start: PartitionPosition,
    stop: PartitionPosition | None,
    follow: bool,
    isolation_level: int = READ_UNCOMMITTED,
) -> OffsetBounds:
    """Return the offsets of two positions. Without `stop`, stop at the current end, or never with `follow`."""
    log_start = list_offsets(cluster, dict.fromkeys(partitions, EARLIEST))
    log_end = list_offsets(cluster, dict.fromkeys(partitions, LATEST), isolation_level)

    def at_time(position: PartitionPosition) -> Offsets:
        return list_offsets(cluster, dict.fromkeys(partitions, position.value)) if position.kind == "time" else {}

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
    at_time: Mapping[TopicPartition, int],
    *,
    clamp_to_end: bool = True,
) -> Offsets:
    """Return a position as an offset in each partition, clamped to the log; a time after all records is the end."""

    def offset(tp: TopicPartition) -> int:
        match position.kind:
            case "earliest":
                return log_start[tp]
            case "last":
                return log_end[tp] - position.value
            case "offset":
                return position.value
        found = at_time.get(tp, -1)
        return log_end[tp] if found < 0 else found

    return {tp: max(log_start[tp], min(offset(tp), log_end[tp]) if clamp_to_end else offset(tp)) for tp in log_start}


MAX_POLL_RECORDS = 5000
COMMIT_EVERY_S = 1.0


class Printer:
    """Writes records to standard output, all records of a poll in one write."""

    def __init__(self, line: Callable[[ConsumedRecord], bytes], end: bytes = b"\n") -> None:
        """`line` returns the text of a record, without the `end` of each."""
        self._line, self._end = line, end

    def print(self, records: Iterable[ConsumedRecord]) -> None:
        """Write and flush, so that offsets committed afterwards are those of printed records."""
        out = sys.stdout.buffer
        unwritten = memoryview(self._end.join([*map(self._line, records), b""]))
        while unwritten:
            # With PYTHONUNBUFFERED this is a bare write(2), which may write a part only.
            unwritten = unwritten[out.write(unwritten) :]
        out.flush()


def read_partitions(
    consumer: PartitionConsumer, bounds: OffsetBounds, max_records: int | None, interrupts: Interrupts
) -> Iterator[list[ConsumedRecord]]:
    """Yield the records within the bounds, at most `max_records`, in a list for each poll."""
    begin, end = bounds
    consumer.seek({tp: offset for tp, offset in begin.items() if tp not in end or offset < end[tp]})
    remaining = max_records
    while consumer.positions:
        records = consumer.poll(_poll_size(remaining))
        if any(position > end.get(tp, position) for tp, position in consumer.positions.items()):
            records = [each for each in records if each.offset < end.get(each.topic_partition, each.offset + 1)]
        yield records
        interrupts.check()
        if remaining is not None and (remaining := remaining - len(records)) <= 0:
            return
        for tp in [tp for tp, position in consumer.positions.items() if tp in end and position >= end[tp]]:
            del consumer.positions[tp]


def consume_partitions(
    consumer: PartitionConsumer,
    bounds: OffsetBounds,
    printer: Printer,
    max_records: int | None,
    interrupts: Interrupts,
    is_filtered: bool = False,
) -> None:
    """Print the records within the bounds, at most `max_records`. `is_filtered`: nobody knows how many these are."""
    total = max_records
    if not is_filtered and bounds.begin.keys() <= bounds.end.keys():
        count = sum(max(bounds.end[tp] - begin, 0) for tp, begin in bounds.begin.items())
        total = count if max_records is None else min(max_records, count)
    with ProgressBar("consuming", total, enabled=not sys.stdout.isatty()) as progress:
        for records in read_partitions(consumer, bounds, max_records, interrupts):
            printer.print(records)
            progress.advance(len(records))


def _poll_size(remaining: int | None) -> int:
    return MAX_POLL_RECORDS if remaining is None else min(remaining, MAX_POLL_RECORDS)


class GroupReader:
    """Reads as a member of a group, and commits the offsets of records after they are printed (at least once)."""

    def __init__(
        self,
        cluster: ClusterClient,
        consumer: PartitionConsumer,
        group: str,
        topics: list[str],
        start: PartitionPosition,
    ) -> None:
        """`start`: where partitions without a committed offset are read from, earliest or latest."""
        self._cluster, self._group, self._start = cluster, group, start
        self._member = BlockingMember(cluster, group, topics)
        self._consumer = consumer
        self._is_joined = False
        # Behind the printed records, and what of this is committed; the ends of the logs when they were assigned.
        self._printed: Offsets = {}
        self._committed: Offsets = {}
        self._log_ends: Offsets = {}

    def print_records(self, printer: Printer, max_records: int | None, follow: bool, interrupts: Interrupts) -> None:
        """Print records, at most `max_records`, and without `follow` until all partitions are read."""
        remaining = max_records
        commit_at = monotonic() + COMMIT_EVERY_S
        try:
            while remaining is None or remaining > 0:
                if not self._is_joined:
                    self._join()
                records = self._consumer.poll(_poll_size(remaining))
                printer.print(records)
                self._printed = dict(self._consumer.positions)
                remaining = None if remaining is None else remaining - len(records)
                interrupts.check()
                if not follow and all(offset >= self._log_ends[tp] for tp, offset in self._printed.items()):
                    break
                if monotonic() > commit_at:
                    self._commit()
                    commit_at = monotonic() + COMMIT_EVERY_S
                if not self._member.heartbeat():
                    self._commit()
                    self._is_joined = False
            self._commit()
            self._member.leave()
        except BaseException:
            with suppress(Exception):  # the exception that ends the command is reported
                # An interrupted request is still in flight.
                self._cluster.reset()
                self._commit()
                self._member.leave()
            raise

    def _join(self) -> None:
        """Join, and seek to the committed offsets of the assigned partitions."""
        partitions = self._member.join()
        self._is_joined = True
        self._committed = committed_offsets(self._cluster, self._group)
        self._log_ends = list_offsets(self._cluster, dict.fromkeys(partitions, LATEST))
        positions = self._log_ends
        if self._start.kind == "earliest":
            positions = list_offsets(self._cluster, dict.fromkeys(partitions, EARLIEST))
        self._consumer.seek({tp: self._committed.get(tp, positions[tp]) for tp in partitions})
        self._printed = {}

    def _commit(self) -> None:
        offsets = {tp: offset for tp, offset in self._printed.items() if self._committed.get(tp) != offset}
        if not self._member.commit(offsets):
            self._is_joined = False
        self._committed |= offsets
