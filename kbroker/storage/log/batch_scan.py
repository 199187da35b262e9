"""Iterates over the batches of a segment file, by their headers alone or with a check of every CRC."""

from collections.abc import Iterator
from functools import partial
from struct import Struct

from kbroker.runtime.disk import DiskFile
from protocol.records.batch import CRC_START, HEADER, HEADER_SIZE, LENGTH_OVERHEAD, MAGIC, MAGIC_POS, BatchHeader
from protocol.records.checksum import crc32c

# The largest offset in a segment, relative to its base offset.
MAX_RELATIVE_OFFSET = 2**31 - 1
# The header fields that locate the next batch: base offset, batch length, last offset delta.
STEP = Struct(">qi11xi")

# Faster than NamedTuple._make, which adds a Python frame.
_make_header = partial(tuple.__new__, BatchHeader)
_unpack = HEADER.unpack_from

# Bytes per read, if CRCs are checked and if only headers are read.
_CRC_CHUNK = 1 << 20
_HEADER_CHUNK = 1 << 12
# The search for a batch after damage computes CRCs of at most _MIN_CRC_BYTES, plus this many bytes per searched byte.
_CRC_BYTES_PER_BYTE = 4
_MIN_CRC_BYTES = 1 << 26


def is_plausible(header: BatchHeader, available: int, first_offset: int, end_offset: int) -> bool:
    """Return whether a header fits a batch in `available` bytes, with offsets in [first_offset, end_offset)."""
    base, length, _, magic, _, _, delta, _, _, _, _, _, _ = header
    is_complete = HEADER_SIZE <= length + LENGTH_OVERHEAD <= available
    return is_complete and magic == MAGIC and delta >= 0 and first_offset <= base <= base + delta < end_offset


def iter_valid_headers(
    file: DiskFile, start: int, end: int, first_offset: int, end_offset: int
) -> Iterator[tuple[int, BatchHeader, bool]]:
    """Iterate over the batches in bytes [start, end) of a file, skipping damage. Runs in a thread.

    Yields (position, header, whether damage precedes the batch). This is for segments that were once valid: as long as
    each header leads to a plausible next one, no CRC is computed. Where it does not, the iteration continues with the
    next batch whose CRC is valid. Offsets ascend in [first_offset, end_offset).
    """
    position, follows_damage = start, False
    chunk, chunk_start = b"", 0

    def header_at(position: int) -> BatchHeader | None:
        nonlocal chunk, chunk_start
        pos = position - chunk_start
        if not 0 <= pos <= len(chunk) - HEADER_SIZE:
            chunk, chunk_start, pos = file.pread(min(_HEADER_CHUNK, end - position), position), position, 0
        return _make_header(_unpack(chunk, pos)) if len(chunk) >= HEADER_SIZE else None

    header = header_at(start) if start < end else None
    while header is not None:
        following = None
        is_good = is_plausible(header, end - position, first_offset, end_offset)
        if is_good and position + header.size < end:
            next_position = position + header.size
            following = header_at(next_position)
            if following is None or not is_plausible(following, end - next_position, header.next_offset, end_offset):
                # One of the two batches is damaged.
                is_good = _is_first_good(file, position, header, first_offset, following)
        if is_good:
            yield position, header, follows_damage
            first_offset = header.next_offset
            position, follows_damage, header = position + header.size, False, following
            continue
        found = _find_next_valid(file, position + 1, end, first_offset, end_offset)
        if found is None:
            return
        position, follows_damage, header = found, True, header_at(found)


def _is_first_good(
    file: DiskFile, position: int, header: BatchHeader, expected_offset: int, following: BatchHeader | None
) -> bool:
    """Return whether this batch is valid, so that the batch after it is the damaged one."""
    if (
        following is not None
        and following.magic == MAGIC
        and expected_offset < following.base_offset <= header.last_offset
        and header.base_offset > expected_offset
    ):
        # The base offset, which the CRC does not cover, leaves a gap, and the next batch has offsets in that gap.
        return False
    return _is_valid_batch(file, position, header.size, header.base_offset)


def _is_valid_batch(file: DiskFile, position: int, size: int, first_offset: int) -> bool:
    scan = BatchScan(file, position, position + size, first_offset, first_offset, check_crc=True)
    return any(True for _ in scan)


def _find_next_valid(file: DiskFile, start: int, end: int, first_offset: int, end_offset: int) -> int | None:
    """Return the position of the next batch with plausible offsets and a valid CRC, at any byte from `start` on.

    Returns None after a bounded amount of work, even for data that was crafted to look like many batches.
    """
    budget = _MIN_CRC_BYTES + _CRC_BYTES_PER_BYTE * (end - start)
    while end - start >= HEADER_SIZE:
        chunk = file.pread(min(_CRC_CHUNK, end - start), start)
        at = chunk.find(MAGIC, MAGIC_POS)
        while 0 <= at <= len(chunk) - HEADER_SIZE + MAGIC_POS:
            position = start + at - MAGIC_POS
            header = _make_header(_unpack(chunk, at - MAGIC_POS))
            if is_plausible(header, end - position, first_offset, end_offset):
                budget -= header.size
                if budget < 0:
                    return None
                if _is_valid_batch(file, position, header.size, first_offset):
                    return position
            at = chunk.find(MAGIC, at + 1)
        if len(chunk) < HEADER_SIZE or start + len(chunk) >= end:
            return None
        start += len(chunk) - HEADER_SIZE + 1
    return None


class BatchScan:
    """Iterates over (position, header) of the valid batches in bytes [start, end) of a file, in a thread.

    It ends at the first batch that is incomplete, not of format v2, out of order or, with `check_crc`, has a wrong CRC.
    The CRC does not cover the base offset: a base offset that leaves a gap is considered damaged if the next batch, or
    the next segment at `next_base_offset`, has offsets in that gap. If `start` is inside a segment, the first batch may
    have any offset.

    Afterwards `position` is the end of the valid prefix, `next_offset` follows its last offset, and `fault` is the
    reason why the scan ended before `end`, or None. Memory is bounded, whatever lengths the batches claim.
    """

    __slots__ = (
        "_check_crc", "_chunk", "_chunk_start", "_end", "_expected_offset", "_file", "_max_offset",
        "_next_base_offset", "fault", "next_offset", "position",
    )  # fmt: skip

    def __init__(
        self,
        file: DiskFile,
        start: int,
        end: int,
        base_offset: int,
        next_offset: int,
        *,
        check_crc: bool,
        next_base_offset: int | None = None,
    ) -> None:
        self._file = file
        self._end = end
        self._check_crc = check_crc
        # The next offset if there is no gap; initially -1 if the scan starts inside a segment.
        self._expected_offset = -1 if start else next_offset
        self._next_base_offset = next_base_offset
        self._max_offset = base_offset + MAX_RELATIVE_OFFSET
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
            header = _make_header(_unpack(self._chunk, pos))
            base, length, _, magic, crc, _, delta, _, _, _, _, _, _ = header
            size = length + LENGTH_OVERHEAD
            last = base + delta
            if (
                size < HEADER_SIZE
                or position + size > end
                or magic != MAGIC
                or base < self.next_offset
                or delta < 0
                or last > self._max_offset
            ):
                self.fault = self._explain(header, size, position)
                return
            expected = self._expected_offset
            if base != expected and expected >= 0 and self._is_gap_filled(position + size, last):
                self.fault = f"offsets {base} to {last} where {expected} is expected"
                return
            if check_crc and self._compute_crc(position, size) != crc:
                self.fault = "a batch with a wrong CRC"
                return
            self.next_offset = self._expected_offset = last + 1
            self.position = position + size
            yield position, header
            position += size

    def _is_gap_filled(self, position: int, last_offset: int) -> bool:
        """Return whether the batch at `position` has offsets in the gap before a batch that ends with `last_offset`."""
        if position == self._end:
            base = self._next_base_offset
            return base is not None and self._expected_offset < base <= last_offset
        if position + HEADER_SIZE > self._end:
            return False
        pos = position - self._chunk_start
        data = self._chunk[pos : pos + HEADER_SIZE]
        if len(data) < HEADER_SIZE:
            data = self._file.pread(HEADER_SIZE, position)
        if len(data) < HEADER_SIZE:
            return False
        following = _make_header(_unpack(data))
        return following.magic == MAGIC and self._expected_offset < following.base_offset <= last_offset

    def _explain(self, header: BatchHeader, size: int, position: int) -> str:
        if size < HEADER_SIZE or position + size > self._end:
            return f"a batch of {size} bytes where {self._end - position} remain"
        if header.magic != MAGIC:
            return f"a batch of format {header.magic}"
        return f"offsets {header.base_offset} to {header.last_offset} where {self.next_offset} is expected"

    def _load(self, position: int) -> int:
        """Read a chunk that begins at `position`. Returns 0, the position in the chunk."""
        size = _CRC_CHUNK if self._check_crc else _HEADER_CHUNK
        self._chunk = self._file.pread(min(size, self._end - position), position)
        self._chunk_start = position
        return 0

    def _compute_crc(self, position: int, size: int) -> int:
        pos = position - self._chunk_start
        if pos + size > len(self._chunk):
            pos = self._load(position)
        if pos + size <= len(self._chunk):
            return crc32c(memoryview(self._chunk)[pos + CRC_START : pos + size])
        # The batch is larger than a chunk. Read it piece by piece, so that a damaged length costs time but no memory.
        crc = crc32c(memoryview(self._chunk)[pos + CRC_START :])
        done = len(self._chunk)
        while done < size:
            piece = self._file.pread(min(_CRC_CHUNK, size - done), position + done)
            if not piece:
                return -1
            crc = crc32c(piece, crc)
            done += len(piece)
        return crc
