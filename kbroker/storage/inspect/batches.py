"""Reads a segment file without trusting it: every batch that can be read, and every damaged range between them.

Recovery stops at the first bad batch. This reader skips damage and continues with the next valid batch. Nothing is
written, and memory is bounded, whatever lengths and counts a file claims.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from kbroker.runtime.disk import DiskFile
from kbroker.storage.log.batch_scan import MAX_RELATIVE_OFFSET
from protocol.errors import MalformedError
from protocol.records.batch import CRC_START, HEADER_SIZE, MAGIC, BatchHeader, parse_header
from protocol.records.checksum import crc32c
from protocol.records.compression import decompress
from protocol.records.record import Record, iter_records

# Larger batches are not decoded, nor batches with more bytes of records: twice Kafka's socket.request.max.bytes.
MAX_BODY = 1 << 28

_CHUNK = 1 << 20
_MAX_UINT64 = (1 << 64) - 1
_MAX_CODEC = 4
# The search for the next valid batch computes the CRC of everything that looks like a batch. A file that looks like a
# batch at every byte must not take hours, so CRCs are computed for at most this many bytes per byte of the file, or for
# _MIN_CRC_BYTES if that is more.
_CRC_BYTES_PER_BYTE = 16
_MIN_CRC_BYTES = 1 << 26


class Damage(NamedTuple):
    """`size` bytes at `position` of a file that are not valid. `offset`: the log offset expected there, if any."""

    position: int
    size: int
    offset: int | None
    reason: str

    @property
    def end(self) -> int:
        return self.position + self.size


class BatchAt(NamedTuple):
    """A batch in a file. `fault`: what is wrong with it. If the CRC is wrong, the header may be wrong as well."""

    position: int
    header: BatchHeader
    fault: str | None = None

    @property
    def end(self) -> int:
        return self.position + self.header.size


def iter_batches(file: DiskFile, end: int, base_offset: int) -> Iterator[BatchAt | Damage]:
    """Yield the batches in the first `end` bytes of a segment, and the damage between them."""
    return _BatchReader(file, end, base_offset).read()


def has_valid_crc(file: DiskFile, position: int, header: BatchHeader) -> bool:
    """Return whether the CRC of a complete batch is valid."""
    at, end = position + CRC_START, position + header.size
    crc = 0
    while at < end:
        piece = file.pread(min(_CHUNK, end - at), at)
        if not piece:
            return False
        crc = crc32c(piece, crc)
        at += len(piece)
    return crc == header.crc


class _BatchReader:
    """Reads one file from its start, chunk by chunk."""

    def __init__(self, file: DiskFile, end: int, base_offset: int) -> None:
        self._file = file
        self._end = end
        self._base_offset = base_offset
        self._expected_offset = base_offset
        self._chunk = b""
        self._chunk_start = 0
        self._crc_budget = max(_MIN_CRC_BYTES, _CRC_BYTES_PER_BYTE * end)

    def read(self) -> Iterator[BatchAt | Damage]:
        position = 0
        while position < self._end:
            header = self._header_at(position)
            fault = self._find_frame_fault(header, position)
            if header is not None and fault is None:
                is_sound = self._is_sound(position, header)
                if is_sound or self._is_one_batch(position, header):
                    yield BatchAt(position, header, self._find_offset_fault(header) if is_sound else "its CRC is wrong")
                    self._expect_after(header)
                    position += header.size
                    continue
                fault = "a batch with a wrong CRC"
            found, reason = self._search(position + 1)
            yield Damage(position, found - position, self._expected_offset, reason or fault or "")
            position = found

    def _header_at(self, position: int) -> BatchHeader | None:
        pos = self._load(position, HEADER_SIZE)
        return parse_header(self._chunk, pos) if len(self._chunk) - pos >= HEADER_SIZE else None

    def _load(self, position: int, size: int) -> int:
        """Load `size` bytes at `position` into the chunk, if the file has them. Returns their position in the chunk."""
        pos = position - self._chunk_start
        if pos >= 0 and pos + size <= len(self._chunk):
            return pos
        self._chunk = self._file.pread(min(_CHUNK, self._end - position), position)
        self._chunk_start = position
        return 0

    def _find_frame_fault(self, header: BatchHeader | None, position: int) -> str | None:
        """Return why there cannot be a complete batch at `position`; None if there can be."""
        remaining = self._end - position
        if header is None:
            return f"{remaining} bytes are less than a batch header"
        if not HEADER_SIZE <= header.size <= remaining:
            return f"a batch of {header.size} bytes where {remaining} remain"
        return None if header.magic == MAGIC else f"a batch of format {header.magic}"

    def _is_sound(self, position: int, header: BatchHeader) -> bool:
        if header.size > _CHUNK:
            return has_valid_crc(self._file, position, header)
        pos = self._load(position, header.size)
        return crc32c(memoryview(self._chunk)[pos + CRC_START : pos + header.size]) == header.crc

    def _is_one_batch(self, position: int, header: BatchHeader) -> bool:
        """Return whether a batch with a wrong CRC probably has the size that its header says.

        It does if a plausible batch follows, or the file ends there, and no valid batch begins within it: a damaged
        length may be that of two batches.
        """
        return self._begins_batch(position + header.size) and self._search(position + 1)[0] >= position + header.size

    def _begins_batch(self, position: int) -> bool:
        """Return whether a plausible batch begins at `position`, or the file ends there."""
        if position == self._end:
            return True
        header = self._header_at(position)
        return (
            header is not None
            and self._find_frame_fault(header, position) is None
            and find_header_fault(header) is None
        )

    def _find_offset_fault(self, header: BatchHeader) -> str | None:
        first, last = header.base_offset, header.last_offset
        if self._expected_offset <= first <= last <= self._base_offset + MAX_RELATIVE_OFFSET:
            return find_header_fault(header)
        return f"offsets {first} to {last} where {self._expected_offset} is expected"

    def _expect_after(self, header: BatchHeader) -> None:
        """Expect the offset after this batch, even if the batch is out of order, so that this is reported only once."""
        if header.last_offset - self._base_offset > MAX_RELATIVE_OFFSET or header.base_offset < self._base_offset:
            self._base_offset = max(header.base_offset, 0)
        self._expected_offset = max(header.next_offset, self._base_offset)

    def _search(self, start: int) -> tuple[int, str | None]:
        """Return the position of the next valid batch, or of the end, and a description of the bytes before it."""
        # The base offset in a file name may exceed the largest offset.
        limits = (self._base_offset & _MAX_UINT64, (self._base_offset + MAX_RELATIVE_OFFSET) & _MAX_UINT64)
        high_halves = {limit.to_bytes(8, "big")[:4] for limit in limits}
        # A batch has a base offset near the expected one, and format v2 in the magic byte.
        pattern = re.compile(b"(?=(?:" + b"|".join(map(re.escape, high_halves)) + rb").{12}\x02)", re.DOTALL)
        only_zeros = self._chunk[start - 1 - self._chunk_start : start - self._chunk_start] == b"\0"
        position = start
        while position < self._end:
            pos = self._load(position, HEADER_SIZE)
            chunk, chunk_start = self._chunk, self._chunk_start
            for match in pattern.finditer(chunk, pos):
                found = self._is_sound_batch_at(chunk_start + match.start())
                if found or self._crc_budget < 0:
                    if found:
                        return chunk_start + match.start(), None
                    return self._end, "too many bytes that only look like batches"
            only_zeros = only_zeros and not chunk[pos:].strip(b"\0")
            # A header that crosses the end of this chunk is found in the next chunk.
            chunk_end = chunk_start + len(chunk)
            position = chunk_end if chunk_end >= self._end or not chunk else max(chunk_end - HEADER_SIZE, position + 1)
            if not chunk:
                break
        return self._end, f"{self._end - start + 1} bytes of zeros" if only_zeros else None

    def _is_sound_batch_at(self, position: int) -> bool:
        header = self._header_at(position)
        if (
            header is None
            or self._find_frame_fault(header, position) is not None
            or find_header_fault(header) is not None
            or not 0 <= header.base_offset - self._base_offset <= MAX_RELATIVE_OFFSET
        ):
            return False
        self._crc_budget -= header.size
        # Read from the file, since the search continues in the chunk.
        return self._crc_budget >= 0 and has_valid_crc(self._file, position, header)


def read_records(file: DiskFile, position: int, header: BatchHeader, max_body: int = MAX_BODY) -> Iterator[Record]:
    """Yield the records of a batch. Raises MalformedError, perhaps after some, if they contradict its header."""
    if header.size > max_body:
        raise MalformedError(f"a batch of {header.size} bytes is too large to be decoded")
    body = file.pread(header.size - HEADER_SIZE, position + HEADER_SIZE)
    append_time = header.max_timestamp if header.is_log_append_time else None
    previous_delta = -1
    for record in iter_records(decompress(header.codec, body, max_body), header.count, header.base_timestamp):
        if not previous_delta < record.offset_delta <= header.last_offset_delta:
            raise MalformedError(
                f"a record of offset delta {record.offset_delta} after {previous_delta} in a batch of "
                f"{header.last_offset_delta + 1} offsets"
            )
        previous_delta = record.offset_delta
        yield record if append_time is None else record._replace(timestamp=append_time)


def find_header_fault(header: BatchHeader) -> str | None:
    """Return the fault in a header with a valid CRC, or None."""
    if not 0 <= header.count <= header.last_offset_delta + 1:
        return f"{header.count} records for {header.last_offset_delta + 1} offsets"
    if header.codec > _MAX_CODEC:
        return f"unknown compression codec {header.codec}"
    if header.producer_id >= 0 and not header.is_control and (header.producer_epoch < 0 or header.base_sequence < 0):
        return f"producer {header.producer_id} with epoch {header.producer_epoch}, sequence {header.base_sequence}"
    return None
