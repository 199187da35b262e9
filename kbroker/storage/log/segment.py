"""One segment: its files, its indexes, and where offsets are in it.

Threads read segments while the loop appends to the active one. That is safe without locks because every field that
a reader uses is replaced in one step, never changed in pieces, and because of the order in which an append does it:
the bytes are written, the batch is put into the list of recent ones (`Log.tail`), the size covers it, the log end
offset passes it. A reader takes the size first. So a batch that the size covers is in the list, if not yet below the
log end offset, and one below the log end offset can be found. Files are closed by dropping the reference, so a read
under way keeps its file.
"""

from collections.abc import Callable
from errno import EIO, ENOSPC

from kbroker.common import Buffer
from kbroker.runtime.disk import Disk, DiskFile
from kbroker.storage import file_names
from kbroker.storage.indexes.segment_indexes import (
    INDEX_ENTRY,
    NO_TIMESTAMP,
    TIME_ENTRY,
    OffsetIndex,
    TimeIndex,
    WouldBlock,
    find_entry,
    find_entry_by_position,
    find_time,
)
from kbroker.storage.indexes.transaction_index import ABORTED_ENTRY, AbortedTransaction, TransactionIndex
from kbroker.storage.log.file_slice import FileSlice
from protocol.records.batch import LENGTH_OVERHEAD, BatchHeader

# So many appends at least have their positions in memory.
TAIL = 64
# Entries of the offset index, the time index and the index of aborted transactions.
IndexCounts = tuple[int, int, int]


class SegmentGone(Exception):
    """The segment left the log while a thread was about to open its files: look again in the list of segments."""


class LogSegment:
    """`size` in bytes; `end_offset` is set when the segment is closed and None while it is active.

    `index` and `times` are in memory while there are entries that the files do not hold yet; else they are None and
    the files hold `index_count` and `times_count` entries. `aborted`: its index of aborted transactions. `retired`: no
    longer part of the log. `rebuilt`: its indexes were made anew from the log, so what does not fit them now is damage
    to the log.
    """

    __slots__ = (
        "aborted",
        "aborted_file",
        "base_offset",
        "created_ms",
        "cut",
        "directory",
        "disk",
        "end_offset",
        "file",
        "files_exist",
        "first_timestamp",
        "index",
        "index_count",
        "index_file",
        "max_timestamp",
        "max_timestamp_offset",
        "rebuilt",
        "retired",
        "size",
        "times",
        "times_count",
        "unindexed",
        "used",
        "written_back",
    )

    def __init__(self, disk: Disk, directory: str, base_offset: int, created_ms: int) -> None:
        self.disk = disk
        self.directory = directory
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.size = 0
        self.end_offset: int | None = None
        self.file: DiskFile | None = None
        self.index: OffsetIndex | None = OffsetIndex()
        self.times: TimeIndex | None = TimeIndex()
        self.index_count = 0
        self.times_count = 0
        self.index_file: DiskFile | None = None
        self.aborted = TransactionIndex()
        self.aborted_file: DiskFile | None = None
        # Whether both index files are on disk, if only empty ones.
        self.files_exist = False
        # Of the first batch, for rolling by time; None: not known yet.
        self.first_timestamp: int | None = None
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        # Bytes since the last index entry, the batch of that entry included.
        self.unindexed = 0
        self.written_back = 0
        # Whether the file was made shorter since its last sync: a power loss may bring back what was cut off.
        self.cut = False
        self.used = False
        self.retired = False
        self.rebuilt = False

    def path(self, suffix: str = file_names.LOG) -> str:
        return file_names.segment_file(self.directory, self.base_offset, suffix)

    # Reads. With `wait` they may block and so belong in a thread; without, they raise WouldBlock.

    def read(self, size: int, position: int, wait: bool) -> Buffer:
        """Up to `size` bytes at `position`."""
        self.used = True
        file = self.file or self._open(wait)[0]
        data = file.pread_reused(size, position) if wait else file.pread_nowait(size, position)
        if data is None:
            raise WouldBlock
        return data

    def place(self, position: int, size: int, failed: Callable[[OSError], object]) -> FileSlice:
        """What would be read, to be read later. Raises WouldBlock."""
        self.used = True
        return FileSlice(self.file or self._open(False)[0], position, size, failed)

    def entry_at_offset(self, relative_offset: int, wait: bool) -> int | None:
        """The last index entry (relative offset << 32 | position) of an offset up to this one."""
        index = self.index
        if index is not None:
            return index.at_offset(relative_offset)
        file = self.index_file or self._open(wait)[1]
        return find_entry(file.pread if wait else file.pread_nowait, self.index_count, relative_offset)

    def entry_at_position(self, position: int, wait: bool) -> int | None:
        """The last index entry of a position up to this one."""
        index = self.index
        if index is not None:
            return index.at_position(position)
        file = self.index_file or self._open(wait)[1]
        return find_entry_by_position(file.pread if wait else file.pread_nowait, self.index_count, position)

    def time_floor_blocking(self, timestamp: int) -> int:
        """An offset (absolute) before which no record of `timestamp` or later is; at least the base offset."""
        times = self.times
        if times is not None:
            return self.base_offset + times.before(timestamp)
        file = self.disk.open(self.path(file_names.TIME_INDEX), write=False)
        self._check_retired()
        return self.base_offset + find_time(file.pread, self.times_count, timestamp)

    def collect_aborted(self, offset: int, upper: int, wait: bool, found: list[AbortedTransaction]) -> bool:
        """Add to `found` what was aborted in [offset, upper) and has its marker here; True if no later segment can have
        more. Raises ValueError if the file is not what was written."""

        def read(size: int, position: int) -> Buffer | None:
            file = self.aborted_file
            if file is None:
                if not wait:
                    raise WouldBlock
                try:
                    file = self.disk.open(self.path(file_names.TXN_INDEX), write=False)
                except FileNotFoundError:
                    self._check_retired()
                    raise
                self._check_retired()
                self.aborted_file = file
            return file.pread(size, position) if wait else file.pread_nowait(size, position)

        self.used = True
        return self.aborted.collect(read, offset, upper, found)

    def open_blocking(self) -> DiskFile:
        """The log file, opened if it is not yet."""
        return self.file or self._open(True)[0]

    def _open(self, wait: bool) -> tuple[DiskFile, DiskFile]:
        """Open the log and the index file of a closed segment."""
        if not wait:
            raise WouldBlock
        try:
            file = self.file or self.disk.open(self.path(), write=False)
            index_file = self.index_file or (
                self.disk.open(self.path(file_names.INDEX), write=False) if self.index is None else file
            )
        except FileNotFoundError:
            self._check_retired()
            raise
        # Only after this is it certain that the files were not those of a successor of the same name.
        self._check_retired()
        self.file = file
        if index_file is not file:
            self.index_file = index_file
        return file, index_file

    def _check_retired(self) -> None:
        if self.retired:
            raise SegmentGone

    def release(self) -> None:
        """Let go of a closed segment's files unless they were used since the last call.

        While the index is in memory the files may not have their names yet.
        """
        if not self.used and self.index is None:
            self.file = None
            self.index_file = None
            self.aborted_file = None
        self.used = False

    # Writes, on the loop.

    def note_batch(self, position: int, header: BatchHeader, interval: int) -> None:
        """Account for a batch that is in the file: size, timestamps, index entries (Log.append has it inline)."""
        last_offset = header[0] + header[6]
        size = header[1] + LENGTH_OVERHEAD
        if self.first_timestamp is None:
            self.first_timestamp = header[8]
        if header[8] > self.max_timestamp:
            self.max_timestamp = header[8]
            self.max_timestamp_offset = last_offset
        if self.unindexed > interval:
            self.add_entry(last_offset, position)
            self.unindexed = 0
        self.unindexed += size
        self.size = position + size

    def add_entry(self, last_offset: int, position: int) -> None:
        """An entry in both indexes, for the batch at `position`."""
        index, times = self.index, self.times
        if index is not None and times is not None:
            index.add(last_offset - self.base_offset, position)
            times.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def close_indexes(self, end_offset: int) -> None:
        """The segment becomes inactive; its time index ends with its largest timestamp, as in Kafka."""
        self.end_offset = end_offset
        self.note_time()

    def note_time(self) -> None:
        if self.times is not None:
            self.times.add(self.max_timestamp, self.max_timestamp_offset - self.base_offset)

    def persist_job(self, sync: bool = False) -> Callable[[], IndexCounts]:
        """A job for a thread that brings the index files up to the entries of this moment; gives their counts.

        Jobs of one segment must not run at the same time. An offset index that a power loss took is noticed, since
        its entries are checked against the log; the others are not, so they are always synced.
        """
        index, times = self.index, self.times
        index_end = len(index.entries) if index is not None else self.index_count
        times_end = len(times.timestamps) if times is not None else self.times_count
        aborted_start, aborted_tail = self.aborted.persisted, self.aborted.encode_tail()
        aborted_end = len(self.aborted)

        def job() -> IndexCounts:
            if index is not None:
                self._extend(file_names.INDEX, INDEX_ENTRY, index.persisted, index_end, index.encode, sync)
            if times is not None:
                self._extend(file_names.TIME_INDEX, TIME_ENTRY, times.persisted, times_end, times.encode, True)
            if aborted_tail:
                self._extend_aborted(aborted_start, aborted_tail)
            return index_end, times_end, aborted_end

        return job

    def _extend(
        self, suffix: str, width: int, start: int, end: int, encode: Callable[[int, int], bytes], sync: bool
    ) -> None:
        file = self.disk.open(self.path(suffix), create=True)
        try:
            size = file.size()
            if size < start * width:
                start = 0
            if size != start * width:
                file.truncate(start * width)
            data = encode(start, end)
            if data and file.append(data) != len(data):
                file.truncate(start * width)
                raise OSError(ENOSPC, "no space left for an index")
            if sync and data:
                file.fdatasync()
        finally:
            file.close()

    def _extend_aborted(self, start: int, data: bytes) -> None:
        """The name is synced as well: a snapshot of the producers that is written after it relies on the file, and so
        nothing that it holds is ever cut off. Earlier jobs may have written some of this meanwhile."""
        path = self.path(file_names.TXN_INDEX)
        start, data = self.aborted.persisted, data[(self.aborted.persisted - start) * ABORTED_ENTRY :]
        if not data:
            return
        created = not self.disk.exists(path)
        file = self.disk.open(path, create=True)
        try:
            if file.size() < start * ABORTED_ENTRY:
                raise OSError(EIO, f"{path} has lost entries")
            if file.size() != start * ABORTED_ENTRY:
                file.truncate(start * ABORTED_ENTRY)
            if file.append(data) != len(data):
                file.truncate(start * ABORTED_ENTRY)
                raise OSError(ENOSPC, "no space left for an index")
            file.fdatasync()
        finally:
            file.close()
        if created:
            self.disk.sync_dir(self.directory)

    def persist_aborted_blocking(self) -> None:
        """Bring its index of aborted transactions up to now, while no job does."""
        self._extend_aborted(self.aborted.persisted, self.aborted.encode_tail())
        self.aborted.written(len(self.aborted))

    def persisted(self, counts: IndexCounts) -> None:
        """A persist job is done. A closed segment's indexes leave the memory."""
        index_end, times_end, aborted_end = counts
        self.aborted.written(aborted_end)
        index, times = self.index, self.times
        self.files_exist = True
        if index is not None and times is not None:
            index.persisted = max(index.persisted, min(index_end, len(index.entries)))
            times.persisted = max(times.persisted, min(times_end, len(times.timestamps)))
            if self.end_offset is not None and index.persisted == len(index.entries):
                self.index_count = index_end
                self.times_count = times_end
                self.index = None
                self.times = None

    @property
    def needs_persist(self) -> bool:
        index, times = self.index, self.times
        if self.aborted.unwritten:
            return True
        if index is None or times is None:
            return False
        closed = self.end_offset is not None
        return closed or index.persisted < len(index.entries) or times.persisted < len(times.timestamps)

    def largest_timestamp(self) -> int:
        """Of its records; if they have none, when its file was last written (KIP-33)."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.disk.mtime_ms(self.path())

    # Removal.

    def rename_deleted(
        self, suffixes: tuple[str, ...] = (*file_names.SEGMENT_SUFFIXES, file_names.SNAPSHOT)
    ) -> list[str]:
        """Mark the files as deleted; gives the names of those that there were."""
        renamed = []
        for suffix in suffixes:
            path = self.path(suffix)
            if self.disk.exists(path):
                self.disk.rename(path, path + file_names.DELETED)
                renamed.append(path + file_names.DELETED)
        return renamed
