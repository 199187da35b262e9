"""Polls a KafkaConsumer and prints its records, between offsets of its partitions or as a member of a group."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from kbroker.cli.common.errors import CliError
from kbroker.cli.common.output import ProgressBar
from kbroker.cli.common.stop_signals import Interrupts
from kbroker.cli.common.values import PartitionPosition
from kbroker.cli.records.formats import to_json, to_plain, to_terminal

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


POLL_MS = 500
MAX_POLL_RECORDS = 5000
COMMIT_TIMEOUT_MS = 5000


class Printer:
    """Writes records to standard output, all records of a poll in one write."""

    def __init__(self, *, as_json: bool, separator: bytes | None, for_terminal: bool) -> None:
        self._as_json = as_json
        self._separator = separator
        self._for_terminal = for_terminal
        self._colors = for_terminal and "NO_COLOR" not in os.environ

    def line(self, record: Any) -> bytes:
        """Return one record without its line end."""
        if self._as_json:
            return to_json(record)
        if self._for_terminal:
            return to_terminal(record, self._colors)
        return to_plain(record, self._separator)

    def print(self, records: Iterable[Any]) -> None:
        """Write and flush, so that offsets committed afterwards are those of printed records."""
        out = sys.stdout.buffer
        unwritten = memoryview(b"".join(self.line(record) + b"\n" for record in records))
        while unwritten:
            # With PYTHONUNBUFFERED this is a bare write(2), which may write a part only.
            unwritten = unwritten[out.write(unwritten) :]
        out.flush()


def read_partitions(
    consumer: Any, bounds: OffsetBounds, max_records: int | None, interrupts: Interrupts
) -> Iterator[list[Any]]:
    """Yield the records within the bounds, at most `max_records`, in a list for each poll."""
    begin, end = bounds
    unfinished = {tp for tp in begin if tp not in end or begin[tp] < end[tp]}
    if not unfinished:
        return
    consumer.assign(sorted(unfinished))
    for tp in unfinished:
        consumer.seek(tp, begin[tp])
    remaining = max_records
    while unfinished:
        with interrupts.deferred():  # kafka-python may swallow an exception in a poll
            polled = consumer.poll(POLL_MS, max_records=_poll_size(remaining))
        records = [
            record
            for tp, batch in polled.items()
            for record in batch
            if tp in unfinished and record.offset < end.get(tp, record.offset + 1)
        ]
        yield records
        if remaining is not None and (remaining := remaining - len(records)) <= 0:
            return
        finished = {tp for tp in unfinished if tp in end and consumer.position(tp) >= end[tp]}
        if finished:
            consumer.pause(*finished)
            unfinished -= finished


def consume_partitions(
    consumer: Any, bounds: OffsetBounds, printer: Printer, max_records: int | None, interrupts: Interrupts
) -> None:
    """Print the records within the bounds, at most `max_records`."""
    total = max_records
    if bounds.begin.keys() <= bounds.end.keys():
        count = sum(max(bounds.end[tp] - begin, 0) for tp, begin in bounds.begin.items())
        total = count if max_records is None else min(max_records, count)
    with ProgressBar("consuming", total, enabled=not sys.stdout.isatty()) as progress:
        for records in read_partitions(consumer, bounds, max_records, interrupts):
            printer.print(records)
            progress.advance(len(records))


def _poll_size(remaining: int | None) -> int:
    return MAX_POLL_RECORDS if remaining is None else min(remaining, MAX_POLL_RECORDS)


def consume_as_member(
    consumer: Any, topics: list[str], printer: Printer, max_records: int | None, follow: bool, interrupts: Interrupts
) -> None:
    """Join the consumer's group and print records before they are committed (at least once).

    A poll returns no more than may be printed, and auto-commits (each second, and before a rebalance) the records of
    earlier polls, which have been printed.
    """
    assignments = _subscribe(consumer, topics)
    log_ends: Offsets = {}
    printed: Offsets = {}
    remaining = max_records
    try:
        while remaining is None or remaining > 0:
            with interrupts.deferred():  # kafka-python may swallow an exception in a poll
                polled = consumer.poll(POLL_MS, max_records=_poll_size(remaining))
            for tp, batch in polled.items():
                printer.print(batch)
                printed[tp] = batch[-1].offset + 1
                remaining = None if remaining is None else remaining - len(batch)
            if not follow and assignments and _has_read_all(consumer, log_ends):
                break
    except BaseException:
        _commit_printed(consumer, printed)
        raise
    consumer.commit()


def _subscribe(consumer: Any, topics: list[str]) -> list[Any]:
    """Subscribe, and return a list that grows with each assignment, even one of no partitions."""
    from kafka import ConsumerRebalanceListener

    assignments: list[Any] = []

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, assigned: Any) -> None:
            assignments.append(assigned)

    consumer.subscribe(topics, listener=Listener())
    return assignments


def _has_read_all(consumer: Any, log_ends: Offsets) -> bool:
    """Return whether this member has read its partitions up to the end that each had when it was assigned."""
    assigned = consumer.assignment()
    if unknown := [tp for tp in assigned if tp not in log_ends]:
        log_ends.update(consumer.end_offsets(unknown))
    return all(consumer.position(tp) >= log_ends[tp] for tp in assigned)


def _commit_printed(consumer: Any, printed: Offsets) -> None:
    from kafka import OffsetAndMetadata

    assigned = consumer.assignment()
    offsets = {tp: OffsetAndMetadata(offset, "", -1) for tp, offset in printed.items() if tp in assigned}
    if offsets:
        with suppress(Exception):  # the exception that ends the command is reported
            consumer.commit(offsets, timeout_ms=COMMIT_TIMEOUT_MS)
