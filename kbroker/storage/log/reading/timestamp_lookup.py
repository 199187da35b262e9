"""Finds offsets by timestamp, in a thread: the time index leads to a batch, whose records are then read.

On a topic with delayed delivery, `visible` returns what consumers see of a batch, or None. Hidden batches are skipped
by their headers.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kbroker.common import Buffer, KafkaError
from kbroker.storage.log.batch_scan import iter_valid_headers
from kbroker.storage.log.reading.offset_lookup import end_offset_of, search_segment
from kbroker.storage.log.reading.readable_log import ReadableLog
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_indexes import SegmentGone
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import BatchHeader, iter_batch_records, parse_header

MAX_OFFSET = (1 << 63) - 1


class TimestampedOffset(NamedTuple):
    """The result of a lookup by timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int


Visible = Callable[[memoryview, BatchHeader], Buffer | None]


def find_offset_for_timestamp(
    log: ReadableLog, timestamp: int, max_offset: int, visible: Visible | None = None
) -> TimestampedOffset | None:
    """Return the first record below `max_offset` whose timestamp is at least `timestamp`."""
    searched_to = log.log_start_offset
    while True:
        try:
            for segment in log.segments:
                end = segment.end_offset
                if segment.max_timestamp >= timestamp and (end is None or end > searched_to):
                    found = next(_iter_from(log, segment, timestamp, visible, max_offset), None)
                    if found is not None:
                        return found if found.offset < max_offset else None
                if end is not None:
                    searched_to = max(searched_to, end)
            return None
        except SegmentGone:
            continue


def find_max_timestamp(log: ReadableLog, visible: Visible | None = None) -> TimestampedOffset | None:
    """Return the first record with the largest timestamp (KIP-734); None if no record has a timestamp."""
    while True:
        try:
            best: TimestampedOffset | None = None
            for segment in sorted(log.segments, key=lambda segment: segment.max_timestamp, reverse=True):
                lowest = 0 if best is None else best.timestamp + 1
                if segment.max_timestamp < lowest:
                    break
                if visible is None:
                    return next(_iter_from(log, segment, segment.max_timestamp), None)
                best = _find_newest_visible(log, segment, lowest, visible) or best
            return best
        except SegmentGone:
            continue


def _find_newest_visible(
    log: ReadableLog, segment: LogSegment, lowest: int, visible: Visible
) -> TimestampedOffset | None:
    """Return the first record with the largest timestamp of a segment, if that is at least `lowest`.

    The newest batches may be hidden, so the search goes back from the largest timestamp, further each time.
    """
    back_ms = 1000
    while True:
        timestamp = max(segment.max_timestamp - back_ms, lowest)
        is_whole = _offset_before(segment, timestamp) <= max(segment.base_offset, log.log_start_offset)
        found = _iter_from(log, segment, lowest if is_whole else timestamp, visible)
        newest = max(found, key=lambda record: (record.timestamp, -record.offset), default=None)
        if newest is not None or is_whole or timestamp == lowest:
            return newest
        back_ms *= 16


def _iter_from(
    log: ReadableLog,
    segment: LogSegment,
    timestamp: int,
    visible: Visible | None = None,
    max_offset: int = MAX_OFFSET,
) -> Iterator[TimestampedOffset]:
    """Iterate over the records of a segment that are not older than `timestamp`, up to about `max_offset`."""
    indexed = _offset_before(segment, timestamp)
    for start in (indexed, segment.base_offset):
        start = max(log.log_start_offset, start)
        for position, header in _iter_batches(log, segment, start):
            if header.base_offset >= max_offset:
                return
            if header.max_timestamp < timestamp or header.last_offset < start:
                continue
            if start == indexed and header.base_offset <= indexed > segment.base_offset:
                # According to the index all records up to here are earlier, so it is damaged: search the whole segment.
                break
            if visible is not None and header.is_hidden:
                continue
            batch = segment.read(header.size, position, True)
            for offset, record_timestamp in _iter_timestamps(batch, header, visible):
                if record_timestamp >= timestamp and offset >= log.log_start_offset:
                    yield TimestampedOffset(offset, record_timestamp, header.leader_epoch)
        else:
            return


def _offset_before(segment: LogSegment, timestamp: int) -> int:
    """Return an offset before which all records are earlier, according to the time index."""
    try:
        return segment.base_offset + segment.indexes.offset_before_timestamp_blocking(timestamp)
    except (ValueError, FileNotFoundError):
        # The time index is damaged: search the whole segment.
        return segment.base_offset


def _iter_batches(log: ReadableLog, segment: LogSegment, start: int) -> Iterator[tuple[int, BatchHeader]]:
    """Iterate over (position, header) of the batches, beginning with the one that reaches `start`."""
    size = segment.size
    try:
        position = search_segment(log, segment, start, True)
    except KafkaError:
        # The batch with `start` is damaged. Continue after it.
        position = 0
    headers = iter_valid_headers(
        segment.open_blocking(), position, size, segment.base_offset, end_offset_of(log, segment)
    )
    for position, header, _ in headers:
        yield position, header


def _iter_timestamps(batch: Buffer, header: BatchHeader, visible: Visible | None) -> Iterator[tuple[int, int]]:
    """Iterate over (offset, timestamp) of the records of a complete batch. Raises KafkaError(CORRUPT_MESSAGE)."""
    try:
        if visible is not None:
            seen = visible(memoryview(batch), header)
            if seen is None:
                return
            batch, header = seen, parse_header(seen)
        append_time = header.max_timestamp if header.is_log_append_time else None
        for record in iter_batch_records(batch, header):
            timestamp = record.timestamp if append_time is None else append_time
            yield header.base_offset + record.offset_delta, timestamp
    except MalformedError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
