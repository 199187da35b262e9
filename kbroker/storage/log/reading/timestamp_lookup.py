"""Finds offsets by timestamp, in a thread: the time index leads to a batch, whose records are then read."""

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.common import Buffer, KafkaError
from kbroker.storage.log.batch_scan import iter_valid_headers
from kbroker.storage.log.reading.offset_lookup import end_offset_of, search_segment
from kbroker.storage.log.reading.readable_log import ReadableLog
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_indexes import SegmentGone
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import BatchHeader, iter_batch_records


class TimestampedOffset(NamedTuple):
    """The result of a lookup by timestamp."""

    offset: int
    timestamp: int
    leader_epoch: int


def find_offset_for_timestamp(log: ReadableLog, timestamp: int, max_offset: int) -> TimestampedOffset | None:
    """Return the first record below `max_offset` whose timestamp is at least `timestamp`."""
    searched_to = log.log_start_offset
    while True:
        try:
            for segment in log.segments:
                end = segment.end_offset
                if segment.max_timestamp >= timestamp and (end is None or end > searched_to):
                    found = _find_in_segment(log, segment, timestamp)
                    if found is not None:
                        return found if found.offset < max_offset else None
                if end is not None:
                    searched_to = max(searched_to, end)
            return None
        except SegmentGone:
            continue


def find_max_timestamp(log: ReadableLog) -> TimestampedOffset | None:
    """Return the first record with the largest timestamp (KIP-734); None if no record has a timestamp."""
    while True:
        try:
            newest = max(log.segments, key=lambda segment: segment.max_timestamp)
            if newest.max_timestamp < 0:
                return None
            return _find_in_segment(log, newest, newest.max_timestamp)
        except SegmentGone:
            continue


def _find_in_segment(log: ReadableLog, segment: LogSegment, timestamp: int) -> TimestampedOffset | None:
    indexed = _offset_before(segment, timestamp)
    for start in (indexed, segment.base_offset):
        start = max(log.log_start_offset, start)
        for position, header in _iter_batches(log, segment, start):
            if header.max_timestamp < timestamp or header.last_offset < start:
                continue
            if start == indexed and header.base_offset <= indexed > segment.base_offset:
                # According to the index all records up to here are earlier, so it is damaged: search the whole segment.
                break
            for offset, record_timestamp in _iter_timestamps(segment.read(header.size, position, True), header):
                if record_timestamp >= timestamp and offset >= log.log_start_offset:
                    return TimestampedOffset(offset, record_timestamp, header.leader_epoch)
        else:
            return None
    return None


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


def _iter_timestamps(batch: Buffer, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Iterate over (offset, timestamp) of the records of a complete batch. Raises KafkaError(CORRUPT_MESSAGE)."""
    append_time = header.max_timestamp if header.is_log_append_time else None
    try:
        for record in iter_batch_records(batch, header):
            timestamp = record.timestamp if append_time is None else append_time
            yield header.base_offset + record.offset_delta, timestamp
    except MalformedError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
