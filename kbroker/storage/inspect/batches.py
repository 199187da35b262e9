"""Looking at a segment's file without trusting it: every batch that can be read, and every place that cannot.

Where recovery stops at the first bad batch, this goes on: it steps over what is damaged and looks for the next
sound batch. Nothing is written. Memory is bounded whatever lengths and counts a file claims.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from kbroker.runtime.disk import DiskFile
from kbroker.storage.log.batch_scan import MAX_RELATIVE_OFFSET
from protocol.errors import MalformedError
from protocol.records.batch import (
    CRC_START,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAGIC,
    BatchHeader,
    parse_header,
)
from protocol.records.compression import decompress
from protocol.records.crc import crc32c
from protocol.records.record import Record, iter_records

# A batch larger than this is not looked into, nor one whose records are larger: twice Kafka's socket.request.max.bytes.
MAX_BODY = 1 << 28

_CHUNK = 1 << 20
_WORD = (1 << 64) - 1
# The search for the next sound batch checks the CRC of whatever looks like one. A file made to look like batches at
# every byte must not take for ever: so many bytes are checked for each byte that is searched, and at least the others.
_CHECKED_PER_BYTE = 16
_CHECKED_AT_LEAST = 1 << 26


class Damage(NamedTuple):
    """`size` bytes at `position` of a file are not what they should be; `offset` is the one due there, if any is."""

    position: int
    size: int
    offset: int | None
    reason: str


class BatchAt(NamedTuple):
    """A batch, with what is wrong with it. The header of one whose CRC is wrong says what it can."""

    position: int
    header: BatchHeader
    fault: str | None = None

    @property
    def end(self) -> int:
        return self.position + self.header.size


def batches(file: DiskFile, end: int, base_offset: int) -> Iterator[BatchAt | Damage]:
    """The batches in the first `end` bytes of a segment, in order of position, and the damage between them."""
    return _Walk(file, end, base_offset).run()


def crc_is_right(file: DiskFile, position: int, header: BatchHeader) -> bool:
    """Whether a batch that lies whole in the file is what was written."""
    at, end = position + CRC_START, position + header.size
    crc = 0
    while at < end:
        piece = file.pread(min(_CHUNK, end - at), at)
        if not piece:
            return False
        crc = crc32c(piece, crc)  # type: ignore[call-arg]
        at += len(piece)
    return crc == header.crc


class _Walk:
    """One way through a file, by a chunk of it that is read ahead."""

    def __init__(self, file: DiskFile, end: int, base_offset: int) -> None:
        self._file = file
        self._end = end
        self._base = base_offset
        self._due = base_offset
        self._chunk = b""
        self._chunk_start = 0
        self._budget = max(_CHECKED_AT_LEAST, _CHECKED_PER_BYTE * end)

    def run(self) -> Iterator[BatchAt | Damage]:
        position = 0
        while position < self._end:
            header = self._header(position)
            fault = self._frame_fault(header, position)
            if header is not None and fault is None:
                sound = self._is_sound(position, header)
                if sound or self._begins_batch(position + header.size):
                    yield BatchAt(position, header, self._offset_fault(header) if sound else "its CRC is wrong")
                    self._pass(header)
                    position += header.size
                    continue
                fault = "a batch whose CRC is wrong"
            found, clear = self._search(position + 1)
            yield Damage(position, found - position, self._due, clear or fault or "")
            position = found

    def _header(self, position: int) -> BatchHeader | None:
        pos = self._load(position, HEADER_SIZE)
        return parse_header(self._chunk, pos) if len(self._chunk) - pos >= HEADER_SIZE else None

    def _load(self, position: int, size: int) -> int:
        """Have `size` bytes at `position` in the chunk, if the file does; gives where they are in it."""
        pos = position - self._chunk_start
        if pos >= 0 and pos + size <= len(self._chunk):
            return pos
        self._chunk = self._file.pread(min(_CHUNK, self._end - position), position)
        self._chunk_start = position
        return 0

    def _frame_fault(self, header: BatchHeader | None, position: int) -> str | None:
        rest = self._end - position
        if header is None:
            return f"{rest} bytes are less than a batch header"
        if not HEADER_SIZE <= header.size <= rest:
            return f"a batch of {header.size} bytes where {rest} remain"
        return None if header.magic == MAGIC else f"a batch of format {header.magic}"

    def _is_sound(self, position: int, header: BatchHeader) -> bool:
        if header.size > _CHUNK:
            return crc_is_right(self._file, position, header)
        pos = self._load(position, header.size)
        return crc32c(memoryview(self._chunk)[pos + CRC_START : pos + header.size]) == header.crc

    def _begins_batch(self, position: int) -> bool:
        """Whether what is at `position` looks like a batch, or the file ends there."""
        if position == self._end:
            return True
        header = self._header(position)
        return header is not None and self._frame_fault(header, position) is None and header_fault(header) is None

    def _offset_fault(self, header: BatchHeader) -> str | None:
        first, last = header.base_offset, header.last_offset
        if self._due <= first <= last <= self._base + MAX_RELATIVE_OFFSET:
            return header_fault(header)
        return f"offsets {first} to {last} where {self._due} is due"

    def _pass(self, header: BatchHeader) -> None:
        """What follows is measured by this batch, so that one that is out of order is told once."""
        if header.last_offset - self._base > MAX_RELATIVE_OFFSET or header.base_offset < self._base:
            self._base = max(header.base_offset, 0)
        self._due = max(header.next_offset, self._base)

    def _search(self, start: int) -> tuple[int, str | None]:
        """Where the next sound batch begins, the end if none does; and what lies before it, if that is clear."""
        # A file's name may claim more than an offset can be.
        ends = (self._base & _WORD, (self._base + MAX_RELATIVE_OFFSET) & _WORD)
        high = {end.to_bytes(8, "big")[:4] for end in ends}
        # An offset that is near, and format v2 where the magic byte is.
        pattern = re.compile(b"(?=(?:" + b"|".join(map(re.escape, high)) + rb").{12}\x02)", re.DOTALL)
        zeros = self._chunk[start - 1 - self._chunk_start : start - self._chunk_start] == b"\0"
        position = start
        while position < self._end:
            pos = self._load(position, HEADER_SIZE)
            chunk, origin = self._chunk, self._chunk_start
            for match in pattern.finditer(chunk, pos):
                found = self._accept(origin + match.start())
                if found or self._budget < 0:
                    return (origin + match.start(), None) if found else (self._end, "too much that is no batch")
            zeros = zeros and not chunk[pos:].strip(b"\0")
            # A header that crosses the end of the chunk is seen with the next one.
            done = origin + len(chunk)
            position = done if done >= self._end or not chunk else max(done - HEADER_SIZE, position + 1)
            if not chunk:
                break
        return self._end, f"{self._end - start + 1} bytes of zeros" if zeros else None

    def _accept(self, position: int) -> bool:
        header = self._header(position)
        if header is None or self._frame_fault(header, position) is not None or header_fault(header) is not None:
            return False
        if not 0 <= header.base_offset - self._base <= MAX_RELATIVE_OFFSET:
            return False
        self._budget -= header.size
        # Not by way of the chunk: others may follow that begin before the end of this one.
        return self._budget >= 0 and crc_is_right(self._file, position, header)


def records_of(file: DiskFile, position: int, header: BatchHeader, max_body: int = MAX_BODY) -> Iterator[Record]:
    """The records of a batch. Raises MalformedError, perhaps after some of them, for what contradicts its header."""
    if header.size > max_body:
        raise MalformedError(f"a batch of {header.size} bytes is not looked into")
    body = file.pread(header.size - HEADER_SIZE, position + HEADER_SIZE)
    previous = -1
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    for record in iter_records(decompress(header.codec, body, max_body), header.count, header.base_timestamp):
        if not previous < record.offset_delta <= header.last_offset_delta:
            raise MalformedError(
                f"a record of offset delta {record.offset_delta} after {previous} in a batch of "
                f"{header.last_offset_delta + 1} offsets"
            )
        previous = record.offset_delta
        yield record if append_time is None else record._replace(timestamp=append_time)


def header_fault(header: BatchHeader) -> str | None:
    """What no writer of Kafka's format writes, in a header whose CRC is right."""
    if not 0 <= header.count <= header.last_offset_delta + 1:
        return f"{header.count} records for {header.last_offset_delta + 1} offsets"
    if header.codec > 4:
        return f"unknown compression codec {header.codec}"
    if header.producer_id >= 0 and not header.is_control and (header.producer_epoch < 0 or header.base_sequence < 0):
        return f"producer {header.producer_id} with epoch {header.producer_epoch}, sequence {header.base_sequence}"
    return None
