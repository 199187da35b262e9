"""Reading one segment back from its files when a log is opened."""

from struct import Struct
from typing import NamedTuple, Protocol

from kbroker.runtime.disk import DiskFile
from kbroker.storage import file_names
from kbroker.storage.indexes.segment_indexes import INDEX_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex, read_time_entry
from kbroker.storage.log.batch_scan import BatchScan
from kbroker.storage.log.reading import rebuild_indexes
from kbroker.storage.log.segment import LogSegment
from protocol.records.batch import HEADER, HEADER_SIZE, BatchHeader

ALL = 1 << 62
_LOW = 0xFFFFFFFF
_ENTRY = Struct(">ii")


class BatchObserver(Protocol):
    def batch(self, segment: LogSegment, position: int, header: BatchHeader) -> None:
        """Told of each batch that is read while a log is opened, of some of them twice."""
        ...


class RecoveredSegment(NamedTuple):
    """The offset after the last batch, whether the file was cut, what was repaired."""

    next_offset: int
    cut: bool
    repairs: list[str]


def load_closed_segment(segment: LogSegment, end_offset: int, interval: int) -> str | None:
    """A segment below the recovery point: its indexes stay on disk unless they cannot be right.

    Damage that is not seen at their ends is noticed, and repaired, when they are used. Gives what was repaired.
    """
    segment.end_offset = end_offset
    segment.size = segment.disk.size(segment.path())
    fault = _index_fault(segment, end_offset, interval)
    if fault is not None:
        counts = segment.index_count, segment.times_count
        rebuild_indexes(segment, interval, end_offset)
        assert segment.times is not None
        assert segment.index is not None
        # Else it is strange, but so is the log: one large batch, say, or records without timestamps.
        if fault not in (_EMPTY, _NO_TIMES) or counts != (len(segment.index.entries), len(segment.times.timestamps)):
            if segment.times.timestamps:
                segment.max_timestamp = segment.times.timestamps[-1]
                segment.max_timestamp_offset = segment.base_offset + segment.times.offsets[-1]
            return f"{segment.path(file_names.INDEX)}: {fault}; rebuilt from the log"
        segment.rebuilt = False
    segment.index = segment.times = None
    segment.files_exist = True
    return None


_EMPTY = "empty"
_NO_TIMES = "without timestamps"
_UNFIT = "does not fit the log"


def _index_fault(segment: LogSegment, end_offset: int, interval: int) -> str | None:
    """What is wrong with the index files, as far as their sizes and last entries tell. Sets counts and timestamp."""
    disk = segment.disk
    last_offset = end_offset - 1 - segment.base_offset
    segment.index_count = segment.times_count = -1
    try:
        file = disk.open(segment.path(file_names.INDEX), write=False)
        times = disk.open(segment.path(file_names.TIME_INDEX), write=False)
    except FileNotFoundError:
        return "missing"
    count, rest = divmod(file.size(), INDEX_ENTRY)
    times_count, times_rest = divmod(times.size(), TIME_ENTRY)
    if rest or times_rest:
        return "of a wrong size"
    position = 0
    if count:
        offset, position = _ENTRY.unpack(file.pread(INDEX_ENTRY, (count - 1) * INDEX_ENTRY))
        # Both ascend, and the first batch never has an entry.
        if not (count - 1 <= offset <= last_offset and count * HEADER_SIZE <= position < segment.size):
            return _UNFIT
    if times_count:
        timestamp, time_offset = read_time_entry(times.pread, times_count - 1)
        if timestamp < 0 or not times_count - 1 <= time_offset <= last_offset:
            return _UNFIT
        segment.max_timestamp = timestamp
        segment.max_timestamp_offset = segment.base_offset + time_offset
    segment.index_count, segment.times_count = count, times_count
    if not count and segment.size > interval:
        return _EMPTY
    if not times_count and segment.size:
        return _NO_TIMES
    return _tail_fault(segment, position, segment.base_offset + offset if count else None)


def _tail_fault(segment: LogSegment, position: int, expected: int | None) -> str | None:
    """Look at the batches from the last index entry on: it must lead to one, and none may be newer than the newest."""
    base = segment.base_offset
    file = segment.disk.open(segment.path(), write=False)
    for _, header in BatchScan(file, position, segment.size, base, base, check_crc=False):
        if expected not in (None, header.last_offset):
            return _UNFIT
        expected = None
        if header.max_timestamp > segment.max_timestamp:
            return "lacks timestamps"
    return _UNFIT if expected is not None else None


def load_trusted_indexes(segment: LogSegment, trusted_to: int) -> list[str]:
    """A segment of which only the offsets below `trusted_to` are known to be good: load the indexes of those.

    Gives what must be repaired. `read_on` is to follow; until then the size is that of the file.
    """
    segment.file = segment.disk.open(segment.path(), create=True)
    segment.size = segment.file.size()
    return _load_indexes(segment, trusted_to, segment.size)


def recover_segment(
    segment: LogSegment,
    interval: int,
    observer: BatchObserver,
    *,
    check_crc: bool,
    contiguous: bool,
    following: int | None,
) -> RecoveredSegment:
    """Read what comes after the last index entry, cut off what is bad, and complete the indexes in memory.

    `contiguous`: the segment has no gaps. `following`: the offset at which the next segment begins.
    """
    assert segment.file is not None
    assert segment.index is not None
    size = segment.size
    repairs = []

    def read(start: int, checked: bool) -> BatchScan | None:
        return _read(segment, start, interval, observer, check_crc=checked, contiguous=contiguous, following=following)

    if segment.index.persisted < len(segment.index.entries):
        # Rebuilt meanwhile, since it was wrong, from batches that nobody has checked yet.
        _forget_indexes(segment)
    scan = read(_resume_point(segment), check_crc)
    if scan is None:
        # One of them is damaged: nothing of the log is taken on trust.
        repairs.append(f"{segment.path(file_names.INDEX)}: does not fit the log; rebuilt from the log")
        _forget_indexes(segment)
        scan = read(0, True)
    elif scan.fault is not None and not check_crc:
        # After a clean stop all should be well; as it is not, nothing is taken on trust.
        _forget_indexes(segment)
        scan = read(0, True)
    assert scan is not None
    assert segment.times is not None
    if segment.times_count < 0 and segment.times.timestamps:
        repairs.append(f"{segment.path(file_names.TIME_INDEX)}: empty; rebuilt from the log")
    cut = scan.position < size
    if cut:
        repairs.append(f"{segment.path()}: cut from {size} to {scan.position} bytes: {scan.fault}")
        segment.file.truncate(scan.position)
    segment.size = scan.position
    segment.times.keep_offsets(max(scan.next_offset - 1 - segment.base_offset, -1))
    return RecoveredSegment(scan.next_offset, cut, repairs)


def _load_indexes(segment: LogSegment, trusted_to: int, size: int) -> list[str]:
    """Entries of what is trusted; if one index is damaged, both are dropped."""
    try:
        index = OffsetIndex.decode(segment.disk.read(segment.path(file_names.INDEX)))
        times = TimeIndex.decode(segment.disk.read(segment.path(file_names.TIME_INDEX)))
    except FileNotFoundError:
        # Not written yet: a segment gets its index files at the first checkpoint.
        _forget_indexes(segment)
        return []
    except ValueError as error:
        _forget_indexes(segment)
        return [f"{segment.path(file_names.INDEX)}: {error}; rebuilt from the log"]
    limit = trusted_to - segment.base_offset
    entries = index.entries
    count = len(entries)
    while count and ((entries[count - 1] >> 32) >= limit or (entries[count - 1] & _LOW) > size - HEADER_SIZE):
        count -= 1
    if count < len(entries):
        index.keep(count)
    times.keep_offsets(min(limit - 1, 2**31 - 1))
    if count and not times.timestamps:
        # Either no record has a timestamp, or the file was lost: a look at all headers tells.
        index.keep(0)
        segment.times_count = -1
    segment.index, segment.times = index, times
    segment.files_exist = True
    if times.timestamps:
        segment.max_timestamp = times.timestamps[-1]
        segment.max_timestamp_offset = segment.base_offset + times.offsets[-1]
    return []


def _forget_indexes(segment: LogSegment) -> None:
    fresh = LogSegment(segment.disk, segment.directory, segment.base_offset, segment.created_ms)
    segment.index, segment.times = fresh.index, fresh.times
    segment.max_timestamp, segment.max_timestamp_offset = fresh.max_timestamp, fresh.max_timestamp_offset
    segment.first_timestamp = None


def _resume_point(segment: LogSegment) -> int:
    entries = segment.index.entries if segment.index is not None else ()
    return entries[-1] & _LOW if entries else 0


def _read(
    segment: LogSegment,
    start: int,
    interval: int,
    observer: BatchObserver,
    *,
    check_crc: bool,
    contiguous: bool,
    following: int | None,
) -> BatchScan | None:
    """Read from `start`, where the last index entry points to. None: what is there is not what the entry says."""
    assert segment.file is not None
    if check_crc:
        segment.file.forget_clean(start)
    size = segment.file.size()
    expected = None
    if start:
        assert segment.index is not None
        expected = segment.base_offset + (segment.index.entries[-1] >> 32)
        segment.first_timestamp = first_timestamp(segment.file)
    segment.unindexed = 0
    base = segment.base_offset
    scan = BatchScan(
        segment.file, start, size, base, base, check_crc=check_crc, contiguous=contiguous, following=following
    )  # fmt: skip
    for position, header in scan:
        if expected is not None and header.last_offset != expected:
            return None
        expected = None
        segment.note_batch(position, header, interval)
        observer.batch(segment, position, header)
    # Even the first batch was not good.
    return None if expected is not None else scan


def first_timestamp(file: DiskFile) -> int | None:
    """Of the first batch, None if there is none."""
    header = file.pread(HEADER_SIZE, 0)
    return int(HEADER.unpack(header)[8]) if len(header) == HEADER_SIZE else None
