"""Reads the batches of closed segments for compaction, checks each, and limits the rate."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from kbroker.runtime.disk import Disk
from kbroker.runtime.environment import Clock
from kbroker.storage import file_names
from kbroker.storage.log.batch_scan import BatchScan
from protocol.records.batch import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, BatchHeader
from protocol.records.checksum import crc32c

_make_header = partial(tuple.__new__, BatchHeader)
_unpack = HEADER.unpack_from


class SegmentDamaged(Exception):
    """A segment is damaged. The message says where."""


class SourceSegment(NamedTuple):
    """A closed segment with offsets [base_offset, end_offset) and `size` bytes.

    `aborted`: the number of entries in its transaction index. Without one of them, compaction would keep the records of
    an aborted transaction forever.
    """

    base_offset: int
    end_offset: int
    size: int
    aborted: int = 0


class Throttler:
    """Sleeps so that at most `rate` bytes per second are recorded, on average since its creation. None: no limit."""

    def __init__(self, rate: float | None, clock: Clock, sleep: Callable[[float], None]) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._start_ms = clock.mono_ms()
        self._bytes = 0

    def record(self, size: int) -> None:
        """Record that `size` bytes were read or written, and sleep if necessary."""
        if self._rate is None:
            return
        self._bytes += size
        ahead_s = self._bytes / self._rate - (self._clock.mono_ms() - self._start_ms) / 1000
        if ahead_s > 0:
            self._sleep(ahead_s)


class SourceReader:
    """Iterates over (header, complete batch) of a segment, checking CRCs. Raises SegmentDamaged, OSError.

    A batch that is larger than `chunk_bytes` is read into memory only after its CRC has confirmed its length.
    """

    def __init__(
        self, disk: Disk, directory: str, source: SourceSegment, chunk_bytes: int, throttler: Throttler
    ) -> None:
        self._path = file_names.segment_file(directory, source.base_offset, file_names.LOG)
        self._file = disk.open(self._path, write=False)
        self._source = source
        self._chunk_bytes = chunk_bytes
        self._throttler = throttler
        self._position = 0

    def __iter__(self) -> Iterator[tuple[BatchHeader, bytes]]:
        next_offset, end_offset, size, _ = self._source
        chunk, chunk_start = b"", 0
        while self._position < size:
            position = self._position
            pos = position - chunk_start
            if pos + HEADER_SIZE > len(chunk):
                chunk, chunk_start, pos = self._read(position, self._chunk_bytes), position, 0
                if len(chunk) < HEADER_SIZE:
                    raise self.damaged(f"{len(chunk)} bytes where a batch is expected")
            header = _make_header(_unpack(chunk, pos))
            base, length, _, magic, crc, _, delta, _, _, _, _, _, _ = header
            batch_size = length + LENGTH_OVERHEAD
            if (
                magic != MAGIC
                or not HEADER_SIZE <= batch_size <= size - position
                or base < next_offset
                or delta < 0
                or base + delta >= end_offset
            ):
                raise self.damaged(f"a batch of {batch_size} bytes of format {magic} with offset {base}")
            if pos + batch_size > len(chunk):
                self._check_large_batch(position, batch_size, base)
                chunk, chunk_start, pos = self._read(position, max(batch_size, self._chunk_bytes)), position, 0
            if crc32c(memoryview(chunk)[pos + CRC_START : pos + batch_size]) != crc:
                raise self.damaged(f"a wrong CRC in the batch of offset {base}")
            next_offset = base + delta + 1
            yield header, chunk[pos : pos + batch_size]
            self._position = position + batch_size

    def iter_chunks(self, size: int) -> Iterator[bytes]:
        """Yield the first `size` bytes of the file, in chunks."""
        for position in range(0, size, self._chunk_bytes):
            yield self._read(position, min(self._chunk_bytes, size - position))

    def damaged(self, fault: str) -> SegmentDamaged:
        """Return the error for the current batch."""
        return SegmentDamaged(f"{self._path} has at position {self._position} {fault}")

    def _read(self, position: int, size: int) -> bytes:
        data = self._file.pread(min(size, self._source.size - position), position)
        self._throttler.record(len(data))
        return data

    def _check_large_batch(self, position: int, size: int, base_offset: int) -> None:
        if size <= self._chunk_bytes:
            return
        scan = BatchScan(self._file, position, position + size, base_offset, base_offset, check_crc=True)
        for _ in scan:
            pass
        if scan.fault is not None:
            raise self.damaged(scan.fault)
