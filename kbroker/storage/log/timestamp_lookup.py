"""Offsets by timestamp, in a thread: the time index leads to a batch, whose records are then looked at."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.common import Buffer, KafkaError
from kbroker.storage.cleaner.batch_filter import records_of
from kbroker.storage.log.batch_scan import iter_valid_headers
from kbroker.storage.log.reading import end_of, search
from kbroker.storage.log.segment import LogSegment, SegmentGone
from protocol.errors import ErrorCode, MalformedError
from protocol.records.batch import BatchHeader

if TYPE_CHECKING:
    from kbroker.storage.log.log import Log

# Offset, timestamp, leader epoch.
Found = tuple[int, int, int]


def offset_for_timestamp(log: "Log", timestamp: int, max_offset: int) -> Found | None:
    """The first record from the log start on, below `max_offset`, whose timestamp is at least `timestamp`."""
    done = log.log_start_offset
    while True:
        try:
            for segment in log.segments:
                end = segment.end_offset
                if segment.max_timestamp >= timestamp and (end is None or end > done):
                    found = _first_since(log, segment, timestamp)
                    if found is not None:
                        return found if found[0] < max_offset else None
                if end is not None:
                    done = max(done, end)
            return None
        except SegmentGone:
            continue


def max_timestamp(log: "Log") -> Found | None:
    """The first record of the batch that has the largest timestamp; None if no record has one."""
    while True:
        try:
            best = max(log.segments, key=lambda segment: segment.max_timestamp)
            if best.max_timestamp < 0:
                return None
            return _first_since(log, best, best.max_timestamp)
        except SegmentGone:
            continue


def _first_since(log: "Log", segment: LogSegment, timestamp: int) -> Found | None:
    floor = _floor(segment, timestamp)
    for start in (floor, segment.base_offset):
        start = max(log.log_start_offset, start)
        for at, header in _batches(log, segment, start):
            if header.max_timestamp < timestamp or header.last_offset < start:
                continue
            if start == floor and header.base_offset <= floor > segment.base_offset:
                # The index says that all timestamps up to here are earlier: it is damaged.
                break
            for offset, record_timestamp in timestamps(segment.read(header.size, at, True), header):
                if record_timestamp >= timestamp and offset >= log.log_start_offset:
                    return offset, record_timestamp, header.leader_epoch
        else:
            return None
    return None


def _batches(log: "Log", segment: LogSegment, start: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of the batches from the one that reaches `start` on."""
    size = segment.size
    try:
        position = search(log, segment, start, True)
    except KafkaError:
        # It leads to a damaged batch. What comes after it counts.
        position = 0
    file = segment.open_blocking()
    for at, header, _ in iter_valid_headers(file, position, size, segment.base_offset, end_of(log, segment)):
        yield at, header


def _floor(segment: LogSegment, timestamp: int) -> int:
    try:
        return segment.time_floor_blocking(timestamp)
    except (ValueError, FileNotFoundError):
        # A damaged time index: the whole segment is looked at.
        return segment.base_offset


def timestamps(batch: Buffer, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """(offset, timestamp) of each record of a whole batch."""
    try:
        appended = header.is_log_append_time
        for record in records_of(batch, header):
            yield header.base_offset + record.offset_delta, header.max_timestamp if appended else record.timestamp
    except MalformedError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
