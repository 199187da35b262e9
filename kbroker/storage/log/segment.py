"""A segment of a log: its log file, its timestamps and its indexes.

Threads read segments while the event loop appends to the active one. This needs no locks:

- Every field that a reader uses is replaced in one step, never changed in pieces.
- An append writes the bytes, adds the batch to the position cache, increases `size`, and then advances the log end
  offset. A reader reads `size` first. So every batch within `size` is in the cache, even if it is not below the log end
  offset yet, and every batch below the log end offset can be found.
- A file is closed by dropping the reference to it, so a read in progress keeps its file open.
- A truncation replaces the segment by another LogSegment of the same file, marks the old one, and then truncates the
  file. A reader checks the mark after it has read, and repeats the read if it is set.
"""

from collections.abc import Callable
from errno import EIO
from functools import partial

from kbroker.common import Buffer
from kbroker.runtime.disk import DirectSocket, Disk, DiskFile
from kbroker.storage import file_names
from kbroker.storage.log.indexes import NO_TIMESTAMP, OffsetIndex, TimeIndex, WouldBlock
from kbroker.storage.log.log_health import NO_SPACE
from kbroker.storage.log.segment_indexes import IndexCounts, SegmentGone, SegmentIndexes, open_unless_retired
from kbroker.storage.log.transaction_index import AbortedTransaction
from protocol.records.batch import HEADER_SIZE, parse_header

# A read of at least this many bytes may return a FileSlice. Measured: sendfile needs two more system calls, so below
# 100 KB it is not cheaper than copying.
BULK_BYTES = 1 << 17
# After this many appended bytes the kernel is asked to start writing them to the disk.
_WRITEBACK_BYTES = 8 << 20


class FileSlice:
    """A part of a segment file that is sent from the page cache to a socket, or is read when it is sent.

    It consists of complete batches. Reading a large response completely before its first byte is sent would delay the
    client, and occupy memory for as long as the client takes to receive it. The slice keeps the file open; its length
    is the number of unread bytes.

    `on_error` is called with an error before it is raised, perhaps in a thread.
    """

    __slots__ = ("_file", "_on_error", "_position", "_remaining")

    def __init__(self, file: DiskFile, position: int, size: int, on_error: Callable[[OSError], object]) -> None:
        self._file = file
        self._on_error = on_error
        self._position = position
        self._remaining = size

    def __len__(self) -> int:
        return self._remaining

    def send_nowait(self, socket: DirectSocket, limit: int) -> int | None:
        """Send at most `limit` of the next bytes from the page cache to a socket. Returns as DiskFile.send_nowait."""
        sent = self._file.send_nowait(socket, min(limit, self._remaining), self._position)
        if sent:
            self._position += sent
            self._remaining -= sent
        return sent

    def read_nowait(self, limit: int) -> Buffer | None:
        """Read at most `limit` of the next bytes; None if they are not in memory. Raises OSError."""
        return self._read(self._file.pread_nowait, limit)

    def read_blocking(self, limit: int) -> Buffer:
        """Read at most `limit` of the next bytes. Raises OSError."""
        data = self._read(self._file.pread_reused, limit)
        assert data is not None
        return data

    def _read(self, read: Callable[[int, int], Buffer | None], limit: int) -> Buffer | None:
        try:
            data = read(min(limit, self._remaining), self._position)
            if data is not None and not data:
                raise OSError(EIO, "the file ends before the end of the slice")
        except OSError as error:
            self._on_error(error)
            raise
        if data is not None:
            self._position += len(data)
            self._remaining -= len(data)
        return data


class LogSegment:
    """`size` is in bytes. `end_offset` is None while the segment is active, afterwards the base offset of the next one.

    `unsynced_truncation`: the file was truncated since its last sync, so after a power loss the removed bytes may be
    back. `retired`: the segment is no longer part of the log. `is_truncated`: it was retired by a truncation, so what a
    thread reads now may not be what the segment had.
    """

    __slots__ = (
        "_bytes_since_index_entry", "_used", "_writeback_end", "base_offset", "created_ms", "directory", "disk",
        "end_offset", "file", "first_timestamp", "indexes", "is_truncated", "max_timestamp", "max_timestamp_offset",
        "retired", "size", "unsynced_truncation",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, base_offset: int, created_ms: int) -> None:
        self.disk = disk
        self.directory = directory
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.size = 0
        self.end_offset: int | None = None
        self.file: DiskFile | None = None
        self.indexes = SegmentIndexes(disk, directory, base_offset)
        # The max timestamp of the first batch, for rolling by time; None while it is not known.
        self.first_timestamp: int | None = None
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        # Includes the batch of the last index entry.
        self._bytes_since_index_entry = 0
        self._writeback_end = 0
        self.unsynced_truncation = False
        # Whether it was read since the last `close_unneeded_files`.
        self._used = False
        self.retired = False
        self.is_truncated = False

    def path(self, suffix: str = file_names.LOG) -> str:
        return file_names.segment_file(self.directory, self.base_offset, suffix)

    # Reads. With `wait` they may block, so they belong in a thread; without it they raise WouldBlock.

    def read(self, size: int, position: int, wait: bool) -> Buffer:
        """Read at most `size` bytes at `position`. Raises SegmentGone, OSError."""
        self._used = True
        file = self.file or self._open(wait)
        data = file.pread_reused(size, position) if wait else file.pread_nowait(size, position)
        if data is None:
            raise WouldBlock
        if wait and self.is_truncated:
            # The file may have changed before the read, and even have other batches already.
            raise SegmentGone
        return data

    def slice(self, position: int, size: int, on_error: Callable[[OSError], object]) -> FileSlice:
        """Return a part of the file as a FileSlice, which is read when it is sent. Raises WouldBlock."""
        self._used = True
        return FileSlice(self.file or self._open(False), position, size, partial(self._on_slice_error, on_error))

    def _on_slice_error(self, on_error: Callable[[OSError], object], error: OSError) -> None:
        if not self.is_truncated:
            on_error(error)

    def collect_aborted(self, offset: int, upper: int, wait: bool, found: list[AbortedTransaction]) -> bool:
        """Add to `found` the aborted transactions that overlap [offset, upper) and have their marker in this segment.

        Returns True if no later segment can have more. Raises the errors of the lookups of SegmentIndexes.
        """
        self._used = True
        return self.indexes.collect_aborted(offset, upper, wait, found)

    def open_blocking(self) -> DiskFile:
        """Return the log file, opened if it is not open. Raises SegmentGone, OSError."""
        return self.file or self._open(True)

    def _open(self, wait: bool) -> DiskFile:
        if not wait:
            raise WouldBlock
        file = self.file = open_unless_retired(self.disk, self.path(), lambda: self.retired)
        return file

    def close_unneeded_files(self, idle_only: bool) -> None:
        """Close the files of a closed segment; with `idle_only` unless it was read since the last call.

        While an index is in memory the files may not have their final names yet.
        """
        if self.indexes.offset is None and not (idle_only and self._used):
            self.close_files()
        self._used = False

    def close_files(self) -> None:
        self.file = None
        self.indexes.close_files()

    # Appends, on the event loop.

    def create_file(self) -> None:
        """Create the log file. A leftover file of that name is truncated. Raises OSError."""
        file = self.disk.open(self.path(), create=True)
        if file.size():
            file.truncate(0)
        self.file = file

    def begin(self, first_timestamp: int) -> None:
        """Prepare the empty segment for its first batch, which has this max timestamp."""
        self.first_timestamp = first_timestamp

    def add_batch(self, position: int, size: int, last_offset: int, timestamp: int, index_interval: int) -> bool:
        """Record a batch that was written at `position`. Returns whether index entries were added.

        `timestamp` is the batch's max timestamp, `index_interval` is index.interval.bytes.
        """
        self.size = position + size
        if self.first_timestamp is None:
            self.first_timestamp = timestamp
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_timestamp_offset = last_offset
        if self._bytes_since_index_entry <= index_interval:
            self._bytes_since_index_entry += size
            return False
        self._bytes_since_index_entry = size
        self.indexes.add(last_offset - self.base_offset, position)
        self.add_time_entry()
        return True

    def index_next_batch(self) -> None:
        """Add index entries for the next batch, regardless of index.interval.bytes."""
        self._bytes_since_index_entry = 1 << 62

    def add_time_entry(self) -> None:
        """Add the largest timestamp so far to the time index."""
        self.indexes.add_timestamp(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def cut_torn_append(self) -> None:
        """Truncate the bytes that a failed write left after the last complete batch. Raises OSError.

        A read-only file system rejects any truncation, so nothing is done if there is nothing to truncate.
        """
        if not self.size:
            self.first_timestamp = None
        assert self.file is not None
        if self.file.size() != self.size:
            self.file.truncate(self.size)
            self.unsynced_truncation = True

    def take_writeback(self, end: int) -> Callable[[], None] | None:
        """Return a job that makes the kernel start writing the bytes before `end` to disk; None if they are few."""
        start, file = self._writeback_end, self.file
        if file is None or end - start < _WRITEBACK_BYTES:
            return None
        self._writeback_end = end
        return partial(file.start_writeback, start, end - start)

    def close(self, end_offset: int) -> None:
        """Make the segment inactive. As in Kafka, the last entry of its time index has its largest timestamp."""
        self.end_offset = end_offset
        self.add_time_entry()

    # Durability.

    def sync_blocking(self) -> None:
        """Sync the log file. Raises OSError."""
        try:
            file = self.file or self.disk.open(self.path(), write=False)
        except FileNotFoundError:
            if self.retired:
                # Retention has removed the segment, so nothing has to be synced.
                return
            raise
        # Reset before the sync: a truncation on the event loop during it requires another sync.
        self.unsynced_truncation = False
        file.fdatasync()

    @property
    def needs_index_write(self) -> bool:
        return self.indexes.needs_write(self.end_offset is not None)

    def mark_indexes_written(self, counts: IndexCounts) -> None:
        """Record that an index write job has written this many entries."""
        self.indexes.mark_written(counts, self.end_offset is not None)

    # Loading, in a thread.

    def open_closed_blocking(self, end_offset: int) -> None:
        """Load a closed segment, which ends at `end_offset`. Its files are opened when they are read."""
        self.end_offset = end_offset
        self.size = self.disk.size(self.path())

    def open_file_blocking(self) -> DiskFile:
        """Open the log file for writing, and set `size` to the size of the file."""
        file = self.file = self.disk.open(self.path(), create=True)
        self.size = file.size()
        return file

    def begin_loading(self) -> None:
        """Prepare to add the batches of a part of the file, which was just opened."""
        self.size = 0

    def use_cleaned(self, file: DiskFile, size: int, end_offset: int) -> None:
        """Use a compacted file that does not have its final name yet."""
        self.file = file
        self.size = size
        self.end_offset = end_offset

    def use_timestamps(self, first: int | None, largest: int, largest_offset: int) -> None:
        self.first_timestamp = first
        self.max_timestamp, self.max_timestamp_offset = largest, largest_offset

    def truncate_blocking(self, size: int) -> None:
        """Truncate the log file, which was just opened, to `size` bytes if it is larger."""
        assert self.file is not None
        if self.file.size() > size:
            self.file.truncate(size)
        self.size = size

    def truncate_file_blocking(self) -> None:
        """Truncate the log file to the size of the segment, which was loaded as a part of the file. Raises OSError."""
        assert self.file is not None
        self.file.truncate(self.size)
        self.unsynced_truncation = True

    def mark_truncated(self) -> None:
        """Record that the file was truncated, perhaps by an earlier process that did not sync it."""
        self.unsynced_truncation = True

    def use_indexes(self, offset: OffsetIndex, time: TimeIndex) -> None:
        """Set the index entries. The last time index entry has the largest timestamp so far."""
        self.indexes.use(offset, time)
        self.use_max_timestamp_of(time)

    def use_max_timestamp_of(self, time: TimeIndex) -> None:
        if time.timestamps:
            self.max_timestamp = time.timestamps[-1]
            self.max_timestamp_offset = self.base_offset + time.offsets[-1]

    def use_index_files(self, counts: IndexCounts, max_timestamp: int, max_timestamp_offset: int) -> None:
        """Use the complete index files of this closed segment. Their entries stay on disk."""
        self.indexes.use_files(counts)
        self.max_timestamp, self.max_timestamp_offset = max_timestamp, max_timestamp_offset

    def reset_indexes(self) -> None:
        """Discard the offset and time index, because the segment will be read from its start."""
        self.indexes.reset()
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self.first_timestamp = None
        self._bytes_since_index_entry = 0

    def load_first_timestamp_blocking(self) -> None:
        """Set `first_timestamp` from the first batch in the file. Raises OSError."""
        file = self.file or self.disk.open(self.path(), write=False)
        header = file.pread(HEADER_SIZE, 0)
        self.first_timestamp = parse_header(header).max_timestamp if len(header) == HEADER_SIZE else None

    def newest_timestamp(self) -> int:
        """Return the largest timestamp of the records; if they have none, the file's modification time (KIP-33)."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.disk.mtime_ms(self.path())

    # Removal.

    def retire(self) -> None:
        """Mark the segment as removed from the log. Readers that have its files open may finish."""
        self.retired = True
        self.indexes.retire()

    def retire_truncated(self) -> None:
        """Mark the segment as removed by a truncation, before its file changes."""
        self.is_truncated = True
        self.retire()

    def rename_deleted_blocking(
        self, suffixes: tuple[str, ...] = (*file_names.SEGMENT_SUFFIXES, file_names.SNAPSHOT)
    ) -> list[str]:
        """Rename the files to `.deleted`; returns the new names of those that exist. Raises OSError.

        A longer name may need a disk block, which a full disk does not have. The file is then removed immediately: a
        reader either has it open or looks up its segment again.
        """
        renamed = []
        for suffix in suffixes:
            path = self.path(suffix)
            if not self.disk.exists(path):
                continue
            try:
                self.disk.rename(path, path + file_names.DELETED)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                self.disk.unlink(path)
            else:
                renamed.append(path + file_names.DELETED)
        return renamed

    def delete_blocking(self) -> None:
        """Delete the files immediately, since nothing reads the log yet. Raises OSError."""
        self.retire()
        self.close_files()
        for path in self.rename_deleted_blocking():
            self.disk.unlink(path)
