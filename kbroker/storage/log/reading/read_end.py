"""Finds the end of a read that is limited in bytes: the end of the last complete batch.

The offset index is used to find the last batches, so only the headers of about one index interval are read.
"""

from kbroker.common import Buffer, KafkaError
from kbroker.storage.indexes.index_file import WouldBlock
from kbroker.storage.indexes.offset_index import position_of, relative_offset_of
from kbroker.storage.log.batch_scan import STEP
from kbroker.storage.log.segment import LogSegment
from protocol.errors import ErrorCode
from protocol.records.batch import HEADER_SIZE, LENGTH_OVERHEAD

# Headers are read in at most _MAX_CHUNKS chunks of this size.
_CHUNK_BYTES = 4096
_MAX_CHUNKS = 64
# In more data than this the offset index is used to find the last batches; in less, every header is read.
_INDEXED_BYTES = 8192


def find_read_end(segment: LogSegment, position: int, max_bytes: int, available: int) -> tuple[int, int] | None:
    """Return the size of the complete batches in `max_bytes` at `position`, and the offset that follows them.

    If the first batch is larger, the result is for that batch. Reads only headers near the end. Returns None if they
    contradict the index, exceed the `available` bytes or are too many. Raises WouldBlock.
    """
    end, last = position + max_bytes, position + available
    pos, expected_last_offset = position, None
    try:
        entry = segment.indexes.entry_at_position(end - HEADER_SIZE, False)
    except ValueError:
        return None
    if entry is not None and position_of(entry) > position:
        pos, expected_last_offset = position_of(entry), segment.base_offset + relative_offset_of(entry)
    next_offset = -1
    chunk: Buffer = b""
    chunk_start = pos
    chunks = 0
    while end - pos >= HEADER_SIZE or pos == position:
        at = pos - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunks += 1
            chunk = segment.read(min(_CHUNK_BYTES, last - pos), pos, False)
            chunk_start, at = pos, 0
            if len(chunk) < HEADER_SIZE or chunks > _MAX_CHUNKS:
                return None
        base, length, delta = STEP.unpack_from(chunk, at)
        size = length + LENGTH_OVERHEAD
        if expected_last_offset not in (None, base + delta) or size < HEADER_SIZE or delta < 0 or pos + size > last:
            return None
        expected_last_offset = None
        if pos + size > end and pos > position:
            return pos - position, base
        pos += size
        next_offset = base + delta + 1
    return pos - position, next_offset


def measure_complete_batches(segment: LogSegment, data: Buffer, start: int, wait: bool) -> tuple[int, int]:
    """Return the size of the complete batches in `data`, read at `start`, and the offset that follows them."""
    size = len(data)
    pos, next_offset = 0, -1
    if size > _INDEXED_BYTES:
        try:
            entry = segment.indexes.entry_at_position(start + size - HEADER_SIZE, wait)
        except ValueError:
            entry = None
        if entry is not None and position_of(entry) > start:
            pos = position_of(entry) - start
            base, _, delta = STEP.unpack_from(data, pos)
            next_offset = base
            if base + delta != segment.base_offset + relative_offset_of(entry):
                pos, next_offset = 0, -1
    while size - pos >= HEADER_SIZE:
        base, length, delta = STEP.unpack_from(data, pos)
        batch_size = length + LENGTH_OVERHEAD
        if batch_size < HEADER_SIZE:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.path()} is damaged at {start + pos}")
        if batch_size > size - pos:
            break
        pos += batch_size
        next_offset = base + delta + 1
    return pos, next_offset


def measure_first_batch(
    segment: LogSegment, data: Buffer, position: int, available: int, wait: bool
) -> tuple[int, int]:
    """Return the size of the batch at `position`, and the offset that follows it. `data` was read there."""
    header = data if len(data) >= HEADER_SIZE else segment.read(HEADER_SIZE, position, wait)
    if len(header) >= HEADER_SIZE:
        base, length, delta = STEP.unpack_from(header, 0)
        if HEADER_SIZE <= length + LENGTH_OVERHEAD <= available:
            return length + LENGTH_OVERHEAD, base + delta + 1
    if not wait:
        raise WouldBlock
    raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{segment.path()} is damaged at {position}")
