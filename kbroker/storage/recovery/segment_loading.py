"""Loads one segment from its files: a closed one by its indexes, the tail of the log by its batches."""

from collections.abc import Callable
from errno import EIO
from struct import Struct
from typing import NamedTuple

from kbroker.storage import file_names
from kbroker.storage.log.batch_scan import MAX_RELATIVE_OFFSET, BatchScan
from kbroker.storage.log.indexes import (
    NO_TIMESTAMP,
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetIndex,
    TimeIndex,
    position_of,
    read_time_entry,
    relative_offset_of,
)
from kbroker.storage.log.offset_lookup import rebuild_indexes
from kbroker.storage.log.segment import LogSegment
from kbroker.storage.log.segment_indexes import IndexCounts
from protocol.records.batch import HEADER_SIZE, LENGTH_OVERHEAD, BatchHeader

# Larger than any offset, so everything in the log is trusted.
END_OF_LOG = 1 << 62

_OFFSET_ENTRY = Struct(">ii")

_EMPTY = "empty"
_NO_TIMESTAMPS = "without timestamps"
_MISMATCH = "does not match the log"

# Called with each batch that is read, its segment and its position. It is called twice for some batches.
OnBatch = Callable[[LogSegment, int, BatchHeader], None]


class RecoveredSegment(NamedTuple):
    """`next_offset` follows the last batch. `was_cut`: the file was truncated."""

    next_offset: int
    was_cut: bool
    repairs: list[str]


# Closed segments.


class _IndexFiles(NamedTuple):
    """The sizes and last entries of index files. `fault`: why they cannot be valid; None if they can."""

    fault: str | None
    counts: IndexCounts = IndexCounts(-1, -1, 0)
    max_timestamp: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1


def load_closed_segment(segment: LogSegment, end_offset: int, index_interval: int) -> str | None:
    """Load a segment below the recovery point. Its indexes stay on disk unless they cannot be correct.

    Damage that their last entries do not reveal is noticed and repaired when they are used. Returns the repair, if any.
    """
    segment.open_closed_blocking(end_offset)
    files = _check_index_files(segment, end_offset, index_interval)
    if files.fault is None:
        _use_index_files(segment, files)
        return None
    rebuild_indexes(segment, index_interval, end_offset)
    offsets, times = segment.indexes.offset, segment.indexes.time
    assert offsets is not None
    assert times is not None
    counts = len(offsets.entries), len(times.timestamps)
    if files.fault in (_EMPTY, _NO_TIMESTAMPS) and counts == files.counts[:2]:
        # The indexes are unusual because the log is, for example because of one large batch or missing timestamps.
        _use_index_files(segment, files)
        return None
    segment.use_max_timestamp_of(times)
    return f"{segment.path(file_names.INDEX)}: {files.fault}; rebuilt from the log"


def _use_index_files(segment: LogSegment, files: _IndexFiles) -> None:
    segment.use_index_files(files.counts, files.max_timestamp, files.max_timestamp_offset)


def _check_index_files(segment: LogSegment, end_offset: int, index_interval: int) -> _IndexFiles:
    disk, base = segment.disk, segment.base_offset
    last_offset = end_offset - 1 - base
    try:
        index_file = disk.open(segment.path(file_names.INDEX), write=False)
        time_file = disk.open(segment.path(file_names.TIME_INDEX), write=False)
    except FileNotFoundError:
        return _IndexFiles("missing")
    count, extra = divmod(index_file.size(), OFFSET_ENTRY_BYTES)
    time_count, time_extra = divmod(time_file.size(), TIME_ENTRY_BYTES)
    if extra or time_extra:
        return _IndexFiles("of a wrong size")
    position, indexed_offset = 0, None
    if count:
        offset, position = _OFFSET_ENTRY.unpack(index_file.pread(OFFSET_ENTRY_BYTES, (count - 1) * OFFSET_ENTRY_BYTES))
        indexed_offset = base + offset
        # Both ascend, and the first batch never has an entry.
        if not (count - 1 <= offset <= last_offset and count * HEADER_SIZE <= position < segment.size):
            return _IndexFiles(_MISMATCH)
    max_timestamp, max_timestamp_offset = NO_TIMESTAMP, base
    if time_count:
        max_timestamp, offset = read_time_entry(time_file.pread, time_count - 1)
        max_timestamp_offset = base + offset
        if max_timestamp < 0 or not time_count - 1 <= offset <= last_offset:
            return _IndexFiles(_MISMATCH)
    if not count and segment.size > index_interval:
        fault: str | None = _EMPTY
    elif not time_count and segment.size:
        fault = _NO_TIMESTAMPS
    else:
        fault = _check_last_batches(segment, position, indexed_offset, max_timestamp)
    return _IndexFiles(fault, IndexCounts(count, time_count, 0), max_timestamp, max_timestamp_offset)


def _check_last_batches(
    segment: LogSegment, position: int, indexed_offset: int | None, max_timestamp: int
) -> str | None:
    """Compare the batches from the last index entry on with the indexes.

    The entry must lead to a batch with the last offset `indexed_offset`, and no batch may be newer than
    `max_timestamp`."""
    base = segment.base_offset
    file = segment.disk.open(segment.path(), write=False)
    for _, header in BatchScan(file, position, segment.size, base, base, check_crc=False):
        if indexed_offset not in (None, header.last_offset):
            return _MISMATCH
        indexed_offset = None
        if header.max_timestamp > max_timestamp:
            return "lacks timestamps"
    return _MISMATCH if indexed_offset is not None else None


# The tail of the log.


class TrustedIndexes(NamedTuple):
    """`repair`: the index to rebuild, if any. `lost_timestamps`: the time index may have lost its entries."""

    repair: str | None = None
    lost_timestamps: bool = False


def load_trusted_indexes(segment: LogSegment, trusted_to: int, end: int | None = None) -> TrustedIndexes:
    """Open a segment of which only offsets below `trusted_to` are known to be valid, with their index entries.

    Only batches before position `end`, or before the end of the file, have entries. The caller must call
    `recover_segment` next. Until then the size of the segment is that of the file.
    """
    size = segment.open_file_blocking().size()
    if end is not None:
        size = end
    try:
        offsets = OffsetIndex.decode(segment.disk.read(segment.path(file_names.INDEX)))
        times = TimeIndex.decode(segment.disk.read(segment.path(file_names.TIME_INDEX)))
    except FileNotFoundError:
        # They are not written yet: a segment gets its index files at the first checkpoint.
        segment.reset_indexes()
        return TrustedIndexes()
    except ValueError as error:
        segment.reset_indexes()
        return TrustedIndexes(f"{segment.path(file_names.INDEX)}: {error}; rebuilt from the log")
    limit = trusted_to - segment.base_offset
    entries = offsets.entries
    count = len(entries)
    while count and (
        relative_offset_of(entries[count - 1]) >= limit or position_of(entries[count - 1]) > size - HEADER_SIZE
    ):
        count -= 1
    times.truncate_to_offset(min(limit - 1, MAX_RELATIVE_OFFSET))
    # Either no record has a timestamp, or the time index was lost: the headers of all batches are read to find out.
    lost_timestamps = count > 0 and not times.timestamps
    if lost_timestamps:
        count = 0
    if count < len(entries):
        offsets.truncate(count)
    segment.use_indexes(offsets, times)
    return TrustedIndexes(lost_timestamps=lost_timestamps)


def recover_segment(
    segment: LogSegment,
    index_interval: int,
    on_batch: OnBatch,
    *,
    check_crc: bool,
    next_base_offset: int | None,
    lost_timestamps: bool = False,
) -> RecoveredSegment:
    """Read the batches after the last index entry, truncate at the first bad one, and complete the indexes in memory.

    `next_base_offset`: the next segment's, if any. Every segment may have gaps between its offsets: compaction leaves
    them, and the follower of a compacted log gets them.
    """
    size = segment.size
    repairs = []

    def scan_from(position: int, check_crc: bool) -> BatchScan | None:
        assert segment.file is not None
        base = segment.base_offset
        if check_crc:
            segment.file.drop_clean_pages(position)
        scan = BatchScan(
            segment.file,
            position,
            segment.file.size(),
            base,
            base,
            check_crc=check_crc,
            next_base_offset=next_base_offset,
        )
        return scan if _replay(segment, scan, index_interval, on_batch) else None

    offsets = segment.indexes.offset
    assert offsets is not None
    if offsets.persisted < len(offsets.entries):
        # The index was wrong and was rebuilt after it was opened, from batches that are not checked yet.
        segment.reset_indexes()
    scan = scan_from(_last_indexed_position(segment), check_crc)
    if scan is None:
        # The index or the log is damaged, so nothing is trusted.
        repairs.append(f"{segment.path(file_names.INDEX)}: does not match the log; rebuilt from the log")
        segment.reset_indexes()
        scan = scan_from(0, True)
    elif scan.fault is not None and not check_crc:
        # After a clean shutdown there should be no damage. Since there is, nothing is trusted.
        segment.reset_indexes()
        scan = scan_from(0, True)
    times = segment.indexes.time
    assert scan is not None
    assert times is not None
    if lost_timestamps and times.timestamps:
        repairs.append(f"{segment.path(file_names.TIME_INDEX)}: empty; rebuilt from the log")
    was_cut = scan.position < size
    if was_cut:
        repairs.append(f"{segment.path()}: cut from {size} to {scan.position} bytes: {scan.fault}")
    segment.truncate_blocking(scan.position)
    times.truncate_to_offset(max(scan.next_offset - 1 - segment.base_offset, -1))
    return RecoveredSegment(scan.next_offset, was_cut, repairs)


def load_prefix(segment: LogSegment, end: int, offset: int, index_interval: int) -> int:
    """Load the first `end` bytes of a segment, the batches that end before `offset`. Returns the offset after them.

    The file is not changed.
    """
    load_trusted_indexes(segment, offset, end)
    base = segment.base_offset
    for _ in range(2):
        segment.begin_loading()
        assert segment.file is not None
        scan = BatchScan(segment.file, _last_indexed_position(segment), end, base, base, check_crc=False)
        if _replay(segment, scan, index_interval, _ignore) and scan.position == end:
            break
        # The index does not match the log. The first batches may be damaged as well.
        segment.reset_indexes()
    else:
        raise OSError(EIO, f"{segment.path()} is damaged before position {end}")
    times = segment.indexes.time
    assert times is not None
    times.truncate_to_offset(max(scan.next_offset - 1 - base, -1))
    return scan.next_offset


def _ignore(segment: LogSegment, position: int, header: BatchHeader) -> None:
    pass


def _last_indexed_position(segment: LogSegment) -> int:
    entries = segment.indexes.offset.entries if segment.indexes.offset is not None else ()
    return position_of(entries[-1]) if entries else 0


def _replay(segment: LogSegment, scan: BatchScan, index_interval: int, on_batch: OnBatch) -> bool:
    """Add the batches of a scan to the segment. Returns False if the first one does not match the last index entry."""
    indexed_offset = None
    if scan.position:
        offsets = segment.indexes.offset
        assert offsets is not None
        indexed_offset = segment.base_offset + relative_offset_of(offsets.entries[-1])
        segment.load_first_timestamp_blocking()
    for position, header in scan:
        base, length, _, _, _, _, delta, _, max_timestamp, _, _, _, _ = header
        if indexed_offset is not None and base + delta != indexed_offset:
            return False
        indexed_offset = None
        segment.add_batch(position, length + LENGTH_OVERHEAD, base + delta, max_timestamp, index_interval)
        on_batch(segment, position, header)
    return indexed_offset is None
