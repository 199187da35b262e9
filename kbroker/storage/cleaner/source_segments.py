"""What a compaction reads: the batches of closed segments, each of them checked, at a pace that may be limited."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from kbroker.runtime.disk import Disk
from kbroker.runtime.environment import Clock
from kbroker.storage import file_names
from kbroker.storage.log.batch_scan import BatchScan
from protocol.records.batch import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, BatchHeader
from protocol.records.crc import crc32c

_make = partial(tuple.__new__, BatchHeader)
_unpack = HEADER.unpack_from


class SegmentDamaged(Exception):
    """A segment is not as it was written; the message says where."""


class SourceSegment(NamedTuple):
    """A closed segment: offsets [base_offset, end_offset), `size` bytes."""

    base_offset: int
    end_offset: int
    size: int


class Throttler:
    """Sleeps so that not more than `rate` bytes are noted in a second, on average since it was made."""

    def __init__(self, rate: float | None, clock: Clock, sleep: Callable[[float], None]) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._began_ms = clock.mono_ms()
        self._noted = 0

    def note(self, size: int) -> None:
        """So many bytes were read or written."""
        if self._rate is None:
            return
        self._noted += size
        ahead = self._noted / self._rate - (self._clock.mono_ms() - self._began_ms) / 1000
        if ahead > 0:
            self._sleep(ahead)


class SourceReader:
    """Iterates over (header, whole batch) of a segment, whose CRCs are checked. Raises Damaged, OSError.

    A batch that is larger than `chunk_bytes` is read whole, but only when its CRC has shown that its length is right.
    """

    def __init__(
        self, disk: Disk, directory: str, source: SourceSegment, chunk_bytes: int, throttle: Throttler
    ) -> None:
        self._path = file_names.segment_file(directory, source.base_offset, file_names.LOG)
        self._file = disk.open(self._path, write=False)
        self._source = source
        self._chunk_bytes = chunk_bytes
        self._throttle = throttle
        self._position = 0

    def __iter__(self) -> Iterator[tuple[BatchHeader, bytes]]:
        base, end, size = self._source
        due = base
        chunk, begin = b"", 0
        while self._position < size:
            position = self._position
            at = position - begin
            if at + HEADER_SIZE > len(chunk):
                chunk, begin, at = self._read(position, self._chunk_bytes), position, 0
                if len(chunk) < HEADER_SIZE:
                    raise self.damage(f"{len(chunk)} bytes where a batch is due")
            header = _make(_unpack(chunk, at))
            length = header[1] + LENGTH_OVERHEAD
            if (
                header[3] != MAGIC
                or not HEADER_SIZE <= length <= size - position
                or header[0] < due
                or header[6] < 0
                or header[0] + header[6] >= end
            ):
                raise self.damage(f"a batch of {length} bytes of format {header[3]} with offset {header[0]}")
            if at + length > len(chunk):
                self._check_large(position, length, header)
                chunk, begin, at = self._read(position, max(length, self._chunk_bytes)), position, 0
            if crc32c(memoryview(chunk)[at + CRC_START : at + length]) != header[4]:
                raise self.damage(f"a wrong CRC of the batch of offset {header[0]}")
            due = header[0] + header[6] + 1
            yield header, chunk[at : at + length]
            self._position = position + length

    def pieces(self, size: int) -> Iterator[bytes]:
        """The first `size` bytes, in pieces."""
        for position in range(0, size, self._chunk_bytes):
            yield self._read(position, min(self._chunk_bytes, size - position))

    def damage(self, what: str) -> SegmentDamaged:
        """To be raised because of the batch at hand."""
        return SegmentDamaged(f"{self._path} has at position {self._position} {what}")

    def _read(self, position: int, size: int) -> bytes:
        data = self._file.pread(min(size, self._source.size - position), position)
        self._throttle.note(len(data))
        return data

    def _check_large(self, position: int, length: int, header: BatchHeader) -> None:
        if length > self._chunk_bytes:
            base = header.base_offset
            scan = BatchScan(self._file, position, position + length, base, base, check_crc=True)
            for _ in scan:
                pass
            if scan.fault is not None:
                raise self.damage(scan.fault)
