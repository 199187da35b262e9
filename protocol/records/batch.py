"""The record batch of format v2 (KIP-98): reads and patches its 61-byte header, and builds batches.

    base offset 8 | batch length 4 | leader epoch 4 | magic 1 | crc 4 | attributes 2 |
    last offset delta 4 | base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 |
    base sequence 4 | count 4 | records

The batch length counts the bytes that follow it. The CRC-32C covers everything from the attributes on, so that a broker
can set base offset and leader epoch without computing it again.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from protocol.errors import MalformedError
from protocol.records.checksum import crc32c
from protocol.records.compression import NONE, compress, decompress
from protocol.records.record import Headers, Record, encode_record, iter_records

Buffer = bytes | bytearray | memoryview
# A record to be encoded: (timestamp in ms, key, value, headers).
NewRecord = tuple[int, bytes | None, bytes | None, Headers]

HEADER = Struct(">qiiBIhiqqqhii")
HEADER_SIZE = HEADER.size
LENGTH_OVERHEAD = 12
# The fields before the magic byte, which the CRC does not cover: base offset, batch length, leader epoch.
PREFIX = Struct(">qii")
CRC_POS = 17
# The position of the attributes, which are the first bytes that the CRC covers.
CRC_START = 21
MAX_TIMESTAMP_POS = 35
MAGIC = 2
# Equal in batches of format v2 and in the message sets of older formats.
MAGIC_POS = 16

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
# Private to kbroker: consumers do not see the batch. Kafka ignores the bit.
HIDDEN = 0x4000

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

# The default limit for the decompressed records of a batch.
MAX_DECOMPRESSED_BYTES = 256 << 20

_OFFSET = Struct(">q")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")


class BatchHeader(NamedTuple):
    """The fields of a batch header, in wire order. `batch_length` does not count the first 12 bytes of the batch."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]

    @property
    def size(self) -> int:
        """The size of the batch in bytes."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, -1 without sequences. After the largest they continue with 0."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        """The number of the compression codec: compression.py."""
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_hidden(self) -> bool:
        """Whether the batch is for the broker only. It counts only on topics with a read filter."""
        return bool(self.attributes & HIDDEN)


# Faster than NamedTuple._make, which adds a Python frame: each append reads a batch header.
_make = partial(tuple.__new__, BatchHeader)
_unpack = HEADER.unpack_from


def parse_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Read the header at `pos`. Raises MalformedError if there are less than 61 bytes; nothing else is checked."""
    try:
        return _make(_unpack(buf, pos))
    except StructError:
        raise MalformedError(f"{len(buf) - pos} bytes are less than a batch header") from None


def iter_headers(buf: Buffer, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Iterate over (position, header) of the complete batches from `pos` on; an incomplete one at the end is skipped.

    Raises MalformedError for a length that no batch can have. CRC and magic are not checked.
    """
    end = len(buf)
    while end - pos >= HEADER_SIZE:
        header = parse_header(buf, pos)
        size = header.batch_length + LENGTH_OVERHEAD
        if size < HEADER_SIZE:
            raise MalformedError(f"batch of {size} bytes at position {pos}")
        if size > end - pos:
            return
        yield pos, header
        pos += size


def crc_of(buf: Buffer, pos: int, size: int) -> int:
    """Compute the CRC-32C that the header of a batch of `size` bytes at `pos` should have."""
    return crc32c(memoryview(buf)[pos + CRC_START : pos + size])


def body_of(buf: Buffer, pos: int, size: int) -> memoryview:
    """Return a view of the records of a batch of `size` bytes at `pos`, perhaps compressed."""
    return memoryview(buf)[pos + HEADER_SIZE : pos + size]


def iter_batch_records(batch: Buffer, header: BatchHeader, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """Iterate over the records of a complete batch, of at most `max_bytes` uncompressed. Raises MalformedError."""
    body = decompress(header.codec, body_of(batch, 0, header.size), max_bytes)
    return iter_records(body, header.count, header.base_timestamp)


def patch_crc(buf: bytearray | memoryview, pos: int, crc: int) -> None:
    _CRC.pack_into(buf, pos, crc)


def patch_max_timestamp(buf: bytearray | memoryview, pos: int, size: int, attributes: int, timestamp: int) -> None:
    """Set attributes, max timestamp and CRC. With LOG_APPEND_TIME the max timestamp is that of every record."""
    _ATTRIBUTES.pack_into(buf, pos + CRC_START, attributes)
    _OFFSET.pack_into(buf, pos + MAX_TIMESTAMP_POS, timestamp)
    _CRC.pack_into(buf, pos + CRC_POS, crc_of(buf, pos, size))


def assemble_batch(
    body: Buffer,
    *,
    count: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """Build a batch of `body`: encoded records that are already compressed with the codec in `attributes`."""
    size = HEADER_SIZE + len(body)
    out = bytearray(size)
    HEADER.pack_into(
        out, 0, base_offset, size - LENGTH_OVERHEAD, leader_epoch, MAGIC, 0, attributes, last_offset_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    out[HEADER_SIZE:] = body
    _CRC.pack_into(out, CRC_POS, crc_of(out, 0, size))
    return out


def rebuild_batch(
    header: BatchHeader, body: Buffer, *, count: int, base_timestamp: int, max_timestamp: int, attributes: int
) -> bytearray:
    """Build a batch of `body` with the offsets, the leader epoch and the producer fields of another one."""
    return assemble_batch(
        body,
        count=count,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        attributes=attributes,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def build_batch(
    records: Sequence[NewRecord],
    *,
    codec: int = NONE,
    level: int | None = None,
    attributes: int = 0,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """Encode a batch of at least one record; their offsets are consecutive."""
    base_timestamp = records[0][0]
    body = b"".join(
        [
            encode_record(delta, timestamp - base_timestamp, key, value, headers)
            for delta, (timestamp, key, value, headers) in enumerate(records)
        ]
    )
    return assemble_batch(
        compress(codec, body, level),
        count=len(records),
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max([record[0] for record in records]),
        attributes=attributes & ~CODEC_MASK | codec,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
