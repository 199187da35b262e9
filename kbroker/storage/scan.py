"""Walking over the batches of a segment's file: by headers alone, or checking every CRC."""

from collections.abc import Iterator
from functools import partial
from struct import Struct

from kbroker.storage.backend import DiskFile
from protocol.records.batch import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, BatchHeader
from protocol.records.crc import crc32c

MAX_RELATIVE_OFFSET = 2**31 - 1
# Enough of a header to walk by: base offset, batch length, last offset delta.
STEP = Struct(">qi11xi")

# Without the Python frame of NamedTuple._make.
_make = partial(tuple.__new__, BatchHeader)
_unpack = HEADER.unpack_from

_CRC_CHUNK = 1 << 20
_HEADER_CHUNK = 1 << 12


class Scan:
    """Iterates over (position, header) of the valid batches in [start, end) of a file, in a thread.

    It ends at the first batch that is not whole, not of format v2, out of order, or (with `check_crc`) damaged.
    Afterwards `position` is where the valid prefix ends, `next_offset` follows its last offset, and `fault` says
    why it ended before `end`, None if it did not. Memory is bounded whatever lengths the batches claim.
    """

    __slots__ = (
        "_check_crc",
        "_chunk",
        "_chunk_start",
        "_end",
        "_file",
        "_last_allowed",
        "fault",
        "next_offset",
        "position",
    )

    def __init__(
        self, file: DiskFile, start: int, end: int, base_offset: int, next_offset: int, *, check_crc: bool
    ) -> None:
        self._file = file
        self._end = end
        self._check_crc = check_crc
        self._last_allowed = base_offset + MAX_RELATIVE_OFFSET
        self._chunk: bytes = b""
        self._chunk_start = start
        self.position = start
        self.next_offset = next_offset
        self.fault: str | None = None

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        end, check_crc = self._end, self._check_crc
        position = self.position
        while position < end:
            pos = position - self._chunk_start
            if pos + HEADER_SIZE > len(self._chunk):
                pos = self._load(position)
                if len(self._chunk) < HEADER_SIZE:
                    self.fault = f"{end - position} bytes are less than a batch header"
                    return
            header = _make(_unpack(self._chunk, pos))
            base, length, _, magic, crc, _, delta, _, _, _, _, _, _ = header
            size = length + LENGTH_OVERHEAD
            last = base + delta
            if (
                size < HEADER_SIZE
                or position + size > end
                or magic != MAGIC
                or base < self.next_offset
                or delta < 0
                or last > self._last_allowed
            ):
                self.fault = self._explain(header, size, position)
                return
            if check_crc and self._crc(position, size) != crc:
                self.fault = "a batch whose CRC is wrong"
                return
            self.next_offset = last + 1
            self.position = position + size
            yield position, header
            position += size

    def _explain(self, header: BatchHeader, size: int, position: int) -> str:
        if size < HEADER_SIZE or position + size > self._end:
            return f"a batch of {size} bytes where {self._end - position} remain"
        if header.magic != MAGIC:
            return f"a batch of format {header.magic}"
        return f"offsets {header.base_offset} to {header.last_offset} where {self.next_offset} is due"

    def _load(self, position: int) -> int:
        """Read a chunk that begins at `position`; gives the position in it."""
        size = _CRC_CHUNK if self._check_crc else _HEADER_CHUNK
        self._chunk = self._file.pread(min(size, self._end - position), position)
        self._chunk_start = position
        return 0

    def _crc(self, position: int, size: int) -> int:
        pos = position - self._chunk_start
        if pos + size > len(self._chunk):
            pos = self._load(position)
        if pos + size <= len(self._chunk):
            return crc32c(memoryview(self._chunk)[pos + CRC_START : pos + size])
        # Larger than a chunk: go on piece by piece, so that a damaged length costs time but no memory.
        crc = crc32c(memoryview(self._chunk)[pos + CRC_START :])
        done = len(self._chunk)
        while done < size:
            piece = self._file.pread(min(_CRC_CHUNK, size - done), position + done)
            if not piece:
                return -1
            crc = crc32c(piece, crc)  # type: ignore[call-arg]
            done += len(piece)
        return crc
