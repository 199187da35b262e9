"""Walking over the batches of a segment's file: by headers alone, or checking every CRC."""

from collections.abc import Iterator
from functools import partial
from struct import Struct

from kbroker.runtime.disk import DiskFile
from protocol.records.batch import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, MAGIC_POS, BatchHeader
from protocol.records.crc import crc32c

MAX_RELATIVE_OFFSET = 2**31 - 1
# Enough of a header to walk by: base offset, batch length, last offset delta.
STEP = Struct(">qi11xi")

# Without the Python frame of NamedTuple._make.
_make = partial(tuple.__new__, BatchHeader)
_unpack = HEADER.unpack_from

_CRC_CHUNK = 1 << 20
_HEADER_CHUNK = 1 << 12
# CRCs computed in search of a batch after damage cover so many bytes for each that is there, and at least the others.
_SEARCHED_PER_BYTE = 4
_SEARCHED_AT_LEAST = 1 << 26


def is_plausible(header: BatchHeader, room: int, first: int, end_offset: int) -> bool:
    """Whether this is the header of a batch in `room` bytes whose offsets lie from `first` to before `end_offset`."""
    base, length, _, magic, _, _, delta, _, _, _, _, _, _ = header
    whole = HEADER_SIZE <= length + LENGTH_OVERHEAD <= room
    return whole and magic == MAGIC and delta >= 0 and first <= base <= base + delta < end_offset


def iter_valid_headers(
    file: DiskFile, start: int, end: int, first: int, end_offset: int
) -> Iterator[tuple[int, BatchHeader, bool]]:
    """(position, header, whether damage precedes it) of the batches in [start, end) of a segment, in a thread.

    For a segment of which it is known that it was good once. CRCs are not computed while each header leads to the next;
    where one does not, the damage is passed over: it goes on with the next batch whose CRC is right. Offsets ascend
    from `first` and stay below `end_offset`.
    """
    position, damaged = start, False
    chunk, chunk_start = b"", 0

    def header_at(position: int) -> BatchHeader | None:
        nonlocal chunk, chunk_start
        pos = position - chunk_start
        if not 0 <= pos <= len(chunk) - HEADER_SIZE:
            chunk, chunk_start, pos = file.pread(min(_HEADER_CHUNK, end - position), position), position, 0
        return _make(_unpack(chunk, pos)) if len(chunk) >= HEADER_SIZE else None

    header = header_at(start) if start < end else None
    while header is not None:
        following = None
        good = is_plausible(header, end - position, first, end_offset)
        if good and position + header.size < end:
            following = header_at(position + header.size)
            if following is None or not is_plausible(
                following, end - position - header.size, header.next_offset, end_offset
            ):
                # One of the two is damaged.
                good = _is_sound(file, position, header, first, following)
        if good:
            yield position, header, damaged
            first = header.next_offset
            position, damaged, header = position + header.size, False, following
            continue
        found = _next_sound(file, position + 1, end, first, end_offset)
        if found is None:
            return
        position, damaged, header = found, True, header_at(found)


def _is_sound(file: DiskFile, position: int, header: BatchHeader, due: int, following: BatchHeader | None) -> bool:
    """Whether it is this batch that can be believed, and not the one after it."""
    if following is not None and following[3] == MAGIC and due < following[0] <= header.last_offset and header[0] > due:
        return False
    scan = BatchScan(file, position, position + header.size, header[0], header[0], check_crc=True)
    return any(True for _ in scan)


def _next_sound(file: DiskFile, start: int, end: int, first: int, end_offset: int) -> int | None:
    """Where the next batch begins whose offsets can be and whose CRC is right, at whatever byte from `start` on.

    What was made to look like many batches is given up.
    """
    budget = _SEARCHED_AT_LEAST + _SEARCHED_PER_BYTE * (end - start)
    while end - start >= HEADER_SIZE:
        chunk = file.pread(min(_CRC_CHUNK, end - start), start)
        at = chunk.find(MAGIC, MAGIC_POS)
        while 0 <= at <= len(chunk) - HEADER_SIZE + MAGIC_POS:
            position = start + at - MAGIC_POS
            header = _make(_unpack(chunk, at - MAGIC_POS))
            if is_plausible(header, end - position, first, end_offset):
                budget -= header.size
                if budget < 0:
                    return None
                scan = BatchScan(file, position, position + header.size, first, first, check_crc=True)
                if any(True for _ in scan):
                    return position
            at = chunk.find(MAGIC, at + 1)
        if len(chunk) < HEADER_SIZE or start + len(chunk) >= end:
            return None
        start += len(chunk) - HEADER_SIZE + 1
    return None


class BatchScan:
    """Iterates over (position, header) of the valid batches in [start, end) of a file, in a thread.

    It ends at the first batch that is not whole, not of format v2, out of order, or (with `check_crc`) damaged. A
    base offset is not covered by the CRC: one that leaves a gap is damaged if the batch after it knows nothing of the
    gap, or if the next segment, which begins at `following`, does not. `contiguous`: there are no gaps at all; with
    `start` inside a segment the first batch may begin anywhere.
    Afterwards `position` is where the valid prefix ends, `next_offset` follows its last offset, and `fault` says
    why it ended before `end`, None if it did not. Memory is bounded whatever lengths the batches claim.
    """

    __slots__ = (
        "_check_crc",
        "_chunk",
        "_chunk_start",
        "_contiguous",
        "_due",
        "_end",
        "_file",
        "_following",
        "_last_allowed",
        "fault",
        "next_offset",
        "position",
    )

    def __init__(
        self,
        file: DiskFile,
        start: int,
        end: int,
        base_offset: int,
        next_offset: int,
        *,
        check_crc: bool,
        contiguous: bool = False,
        following: int | None = None,
    ) -> None:
        self._file = file
        self._end = end
        self._check_crc = check_crc
        self._contiguous = contiguous
        # The offset that follows without a gap; not known at first inside a segment.
        self._due = -1 if start else next_offset
        self._following = following
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
            if base != self._due and self._due >= 0 and (self._contiguous or self._contradicted(position + size, last)):
                self.fault = f"offsets {base} to {last} where {self._due} is due"
                return
            if check_crc and self._crc(position, size) != crc:
                self.fault = "a batch whose CRC is wrong"
                return
            self.next_offset = self._due = last + 1
            self.position = position + size
            yield position, header
            position += size

    def _contradicted(self, position: int, last: int) -> bool:
        """Whether what comes at `position` has offsets that are due now, before the batch that ends with `last`."""
        if position == self._end:
            return self._following is not None and self._due < self._following <= last
        if position + HEADER_SIZE > self._end:
            return False
        pos = position - self._chunk_start
        header = self._chunk[pos : pos + HEADER_SIZE]
        if len(header) < HEADER_SIZE:
            header = self._file.pread(HEADER_SIZE, position)
        if len(header) < HEADER_SIZE:
            return False
        following = _make(_unpack(header))
        return following[3] == MAGIC and self._due < following[0] <= last

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
