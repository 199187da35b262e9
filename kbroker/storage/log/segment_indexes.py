"""The three indexes of a segment: in memory while they grow, in their files once the segment is closed."""

from collections.abc import Callable
from errno import EIO
from typing import NamedTuple

from kbroker.common import Buffer
from kbroker.runtime.disk import Disk, DiskFile
from kbroker.storage import file_names
from kbroker.storage.log.indexes import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    BlockCache,
    OffsetIndex,
    TimeIndex,
    WouldBlock,
    extend_index_file,
    find_entry,
    find_entry_by_position,
    find_last_before,
)
from kbroker.storage.log.transaction_index import TRANSACTION_ENTRY_BYTES, AbortedTransaction, TransactionIndex


class SegmentGone(Exception):
    """The segment was removed from the log before a thread opened its files. The log's list of segments has changed."""


class IndexCounts(NamedTuple):
    """Entries in each index of a segment."""

    offset: int
    time: int
    transaction: int


_NO_COUNTS = IndexCounts(0, 0, 0)


class SegmentIndexes:
    """`offset` and `time` are in memory while they have entries that are not in the files. Otherwise they are None.

    In that case the files have `counts` entries. `rebuilt`: the offset and the time index were rebuilt from the log, so
    if they do not match the log again, the log is damaged.

    With `wait` a lookup may block, so it runs in a thread; without it a lookup raises WouldBlock. All lookups raise
    SegmentGone if the segment was removed from the log, and ValueError if a file has changed.
    """

    __slots__ = (
        "_base_offset", "_directory", "_disk", "_offset_blocks", "_offset_file", "_retired", "_transaction_file",
        "counts", "has_files", "offset", "rebuilt", "time", "transaction",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, base_offset: int) -> None:
        self._disk = disk
        self._directory = directory
        self._base_offset = base_offset
        self.offset: OffsetIndex | None = OffsetIndex()
        self.time: TimeIndex | None = TimeIndex()
        self.transaction = TransactionIndex()
        self.counts = _NO_COUNTS
        # Whether the offset and the time index have files, even empty ones.
        self.has_files = False
        self.rebuilt = False
        self._offset_file: DiskFile | None = None
        # None while the offset index is in memory.
        self._offset_blocks: BlockCache | None = None
        self._transaction_file: DiskFile | None = None
        self._retired = False

    def path(self, suffix: str) -> str:
        return file_names.segment_file(self._directory, self._base_offset, suffix)

    # Lookups.

    def entry_at_offset(self, relative_offset: int, wait: bool) -> int | None:
        """Return the last offset index entry whose offset is at most `relative_offset`."""
        index = self.offset
        if index is not None:
            return index.at_offset(relative_offset)
        file = self._offset_file or self._open_offset_index(wait)
        read = file.pread if wait else file.pread_nowait
        return find_entry(read, self.counts.offset, relative_offset, self._offset_blocks)

    def entry_at_position(self, position: int, wait: bool) -> int | None:
        """Return the last offset index entry whose position is at most `position`."""
        index = self.offset
        if index is not None:
            return index.at_position(position)
        file = self._offset_file or self._open_offset_index(wait)
        read = file.pread if wait else file.pread_nowait
        return find_entry_by_position(read, self.counts.offset, position, self._offset_blocks)

    def offset_before_timestamp_blocking(self, timestamp: int) -> int:
        """Return a relative offset before which every record is earlier than `timestamp`."""
        index = self.time
        if index is not None:
            return index.last_before(timestamp)
        file = self._open(file_names.TIME_INDEX)
        return find_last_before(file.pread, self.counts.time, timestamp)

    def collect_aborted(self, offset: int, upper: int, wait: bool, found: list[AbortedTransaction]) -> bool:
        """Add to `found` the aborted transactions that overlap [offset, upper) and have their marker in this segment.

        Returns True if no later segment can have more.
        """

        def read(size: int, position: int) -> Buffer | None:
            file = self._transaction_file or self._open_transaction_index(wait)
            return file.pread(size, position) if wait else file.pread_nowait(size, position)

        return self.transaction.collect(read, offset, upper, found)

    def _open_offset_index(self, wait: bool) -> DiskFile:
        if not wait:
            raise WouldBlock
        file = self._offset_file = self._open(file_names.INDEX)
        return file

    def _open_transaction_index(self, wait: bool) -> DiskFile:
        if not wait:
            raise WouldBlock
        file = self._transaction_file = self._open(file_names.TXN_INDEX)
        return file

    def _open(self, suffix: str) -> DiskFile:
        return open_unless_retired(self._disk, self.path(suffix), lambda: self._retired)

    def retire(self) -> None:
        self._retired = True

    def close_files(self) -> None:
        self._offset_file = None
        self._offset_blocks = BlockCache()
        self._transaction_file = None

    # Entries, on the event loop.

    def add(self, relative_offset: int, position: int) -> None:
        """Add an offset index entry."""
        if self.offset is not None:
            self.offset.add(relative_offset, position)

    def add_timestamp(self, max_timestamp: int, relative_offset: int) -> None:
        """Add a time index entry, unless the last one has this timestamp."""
        if self.time is not None:
            self.time.add(max_timestamp, relative_offset)

    def is_full(self, max_bytes: int) -> bool:
        """Return whether an index file of `max_bytes` (segment.index.bytes) cannot take another entry.

        As in Kafka, one entry of the time index is reserved for the end of the segment.
        """
        offset, time = self._in_memory()
        return (
            len(offset.entries) >= max_bytes // OFFSET_ENTRY_BYTES
            or len(time.timestamps) >= max_bytes // TIME_ENTRY_BYTES - 1
        )

    def _in_memory(self) -> tuple[OffsetIndex, TimeIndex]:
        assert self.offset is not None
        assert self.time is not None
        return self.offset, self.time

    # Writing the files.

    def needs_write(self, is_closed: bool) -> bool:
        """Return whether the files must be written. Those of a closed segment are written even without new entries."""
        if self.transaction.has_unwritten:
            return True
        if self.offset is None or self.time is None:
            return False
        has_unwritten = self.offset.persisted < len(self.offset.entries)
        return is_closed or has_unwritten or self.time.persisted < len(self.time.timestamps)

    def current_counts(self) -> IndexCounts:
        """Return the numbers of all entries, whether they are in the files or not."""
        return IndexCounts(
            len(self.offset.entries) if self.offset is not None else self.counts.offset,
            len(self.time.timestamps) if self.time is not None else self.counts.time,
            len(self.transaction),
        )

    def write_job(self, sync: bool = False) -> Callable[[], IndexCounts]:
        """Return a job for a thread that writes the current entries. The job returns their numbers.

        Two jobs of one segment must not run at the same time. Without `sync` the offset index is not synced: its loss
        would be noticed, since its entries are checked against the log. A loss of the other indexes would not.
        """
        offset, time, counts = self.offset, self.time, self.current_counts()
        first_aborted, aborted = self.transaction.persisted, self.transaction.encode_unwritten()

        def write() -> IndexCounts:
            self._write_index(file_names.INDEX, OFFSET_ENTRY_BYTES, offset, counts.offset, sync)
            self._write_index(file_names.TIME_INDEX, TIME_ENTRY_BYTES, time, counts.time, True)
            if aborted:
                self._write_transaction_index(first_aborted, aborted)
            return counts

        return write

    def _write_index(
        self, suffix: str, entry_bytes: int, index: OffsetIndex | TimeIndex | None, end: int, sync: bool
    ) -> None:
        if index is not None:
            extend_index_file(
                self._disk,
                self.path(suffix),
                index.persisted * entry_bytes,
                lambda start: index.encode(start // entry_bytes, end),
                sync=sync,
            )

    def _write_transaction_index(self, first: int, data: bytes) -> None:
        """Write the entries from number `first` on. An earlier job may have written some of them since.

        The file name is synced as well: a producer snapshot that is written afterwards relies on the file. For the same
        reason an entry is never removed from the file.
        """
        path, persisted = self.path(file_names.TXN_INDEX), self.transaction.persisted
        data = data[(persisted - first) * TRANSACTION_ENTRY_BYTES :]
        if not data:
            return
        size = persisted * TRANSACTION_ENTRY_BYTES
        exists = self._disk.exists(path)
        if size and (not exists or self._disk.size(path) < size):
            raise OSError(EIO, f"{path} has lost entries")
        extend_index_file(self._disk, path, size, lambda _: data, sync=True)
        if not exists:
            self._disk.sync_dir(self._directory)

    def write_transaction_index_blocking(self) -> None:
        """Write all entries of the transaction index, while no job writes any."""
        index = self.transaction
        self._write_transaction_index(index.persisted, index.encode_unwritten())
        index.mark_written(len(index))

    def mark_written(self, counts: IndexCounts, is_closed: bool) -> None:
        """Record the result of a write job. The indexes of a closed segment are then dropped from memory."""
        self.transaction.mark_written(counts.transaction)
        offset, time = self.offset, self.time
        self.has_files = True
        if offset is None or time is None:
            return
        offset.persisted = max(offset.persisted, min(counts.offset, len(offset.entries)))
        time.persisted = max(time.persisted, min(counts.time, len(time.timestamps)))
        if is_closed and offset.persisted == len(offset.entries):
            self.counts = counts
            self._offset_blocks = BlockCache()
            self.offset = None
            self.time = None

    # Loading, in a thread.

    def use(self, offset: OffsetIndex, time: TimeIndex) -> None:
        """Use these entries, which were read from the files."""
        self.time, self.offset = time, offset
        self.has_files = True

    def reset(self) -> None:
        """Discard the offset and the time index."""
        self.offset, self.time = OffsetIndex(), TimeIndex()

    def use_rebuilt(self, offset: OffsetIndex, time: TimeIndex) -> None:
        """Replace both indexes, while other threads may read. The next checkpoint writes them."""
        self.time = time
        self.offset = offset
        self.rebuilt = True

    def use_files(self, counts: IndexCounts) -> None:
        """Use the complete files of this closed segment."""
        self.counts = counts
        self._offset_blocks = BlockCache()
        self.offset = self.time = None
        self.has_files = True
        self.rebuilt = False

    def use_transaction_index(self, index: TransactionIndex) -> None:
        self.transaction = index


def open_unless_retired(disk: Disk, path: str, is_retired: Callable[[], bool]) -> DiskFile:
    """Open a file of a closed segment to read it. Raises SegmentGone, OSError."""
    try:
        file = disk.open(path, write=False)
    except FileNotFoundError:
        if is_retired():
            raise SegmentGone from None
        raise
    # The check follows the open: the opened file could belong to a new segment with the same name.
    if is_retired():
        raise SegmentGone
    return file
