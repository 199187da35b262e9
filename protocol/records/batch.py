"""The record batch of format v2 (KIP-98): its 61-byte header, read and patched in place, and new batches.

    base offset 8 | batch length 4 | leader epoch 4 | magic 1 | crc 4 | attributes 2 |
    last offset delta 4 | base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 |
    base sequence 4 | count 4 | records

The length counts what follows it. The CRC-32C covers everything from the attributes on, so that base offset
and leader epoch can be set by a broker without computing it again.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from protocol.errors import MalformedError
from protocol.records.compression import NONE, compress, decompress
from protocol.records.crc import crc32c
from protocol.records.record import Headers, Record, encode_record, iter_records

Buffer = bytes | bytearray | memoryview
# What build_batch takes for one record: (timestamp in ms, key, value, headers).
NewRecord = tuple[int, bytes | None, bytes | None, Headers]

HEADER = Struct(">qiiBIhiqqqhii")
HEADER_SIZE = HEADER.size
LENGTH_OVERHEAD = 12
# What is at the start of a batch and outside its CRC: base offset, batch length, leader epoch.
PREFIX = Struct(">qii")
CRC_POS = 17
# Also where the attributes are: the first bytes that the CRC covers.
CRC_START = 21
MAX_TIMESTAMP_POS = 35
MAGIC = 2
# Where the magic byte is, in batches of format v2 and in message sets of the formats before it alike.
MAGIC_POS = 16

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1

# A batch may decompress to this much where a reader has no limit of its own.
MAX_DECOMPRESSED_BYTES = 256 << 20

_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_LENGTH = Struct(">i")


class BatchHeader(NamedTuple):
    """The fields of a batch's header, in wire order. `batch_length` excludes its first 12 bytes."""

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
        """Bytes of the whole batch."""
        return self.batch_length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record, -1 without sequences; after the largest they begin at 0 again."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        """Number of the compression codec, see compression.py."""
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


# Without the Python frame of NamedTuple._make: a produced batch's header is read once per append.
_make = partial(tuple.__new__, BatchHeader)
_unpack = HEADER.unpack_from


def parse_header(buf: Buffer, pos: int = 0) -> BatchHeader:
    """Read the header at `pos`, checking nothing but that 61 bytes are there; raises MalformedError."""
    try:
        return _make(_unpack(buf, pos))
    except StructError:
        raise MalformedError(f"{len(buf) - pos} bytes are less than a batch header") from None


def iter_headers(buf: Buffer, pos: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Give (position, header) of the whole batches from `pos` on; a batch cut off at the end is left out.

    Raises MalformedError on a length that no batch can have; CRC and magic are not looked at.
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
    """The CRC-32C that a batch of `size` bytes at `pos` should carry."""
    return crc32c(memoryview(buf)[pos + CRC_START : pos + size])


def body_of(buf: Buffer, pos: int, size: int) -> memoryview:
    """The records (perhaps compressed) of a batch of `size` bytes at `pos`, not copied."""
    return memoryview(buf)[pos + HEADER_SIZE : pos + size]


def iter_batch_records(batch: Buffer, header: BatchHeader, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> Iterator[Record]:
    """The records of a complete batch, which may decompress to at most `max_bytes`. Raises MalformedError."""
    body = decompress(header.codec, body_of(batch, 0, header.size), max_bytes)
    return iter_records(body, header.count, header.base_timestamp)


def patch_base_offset(buf: bytearray | memoryview, pos: int, offset: int) -> None:
    _OFFSET.pack_into(buf, pos, offset)


def patch_leader_epoch(buf: bytearray | memoryview, pos: int, epoch: int) -> None:
    _EPOCH.pack_into(buf, pos + LENGTH_OVERHEAD, epoch)


def patch_max_timestamp(buf: bytearray | memoryview, pos: int, size: int, attributes: int, timestamp: int) -> None:
    """Set a batch's attributes and max timestamp, and its CRC anew. With LOG_APPEND_TIME among the attributes
    the max timestamp is that of every record."""
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
    """Put a header before encoded records, compressed as `attributes` say, and seal it with the CRC."""
    size = HEADER_SIZE + len(body)
    out = bytearray(size)
    HEADER.pack_into(
        out, 0, base_offset, size - LENGTH_OVERHEAD, leader_epoch, MAGIC, 0, attributes, last_offset_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    out[HEADER_SIZE:] = body
    _CRC.pack_into(out, CRC_POS, crc_of(out, 0, size))
    return out


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
    """Encode a batch of consecutive records, of which there is at least one."""
    base_timestamp = records[0][0]
    body = b"".join(
        encode_record(delta, timestamp - base_timestamp, key, value, headers)
        for delta, (timestamp, key, value, headers) in enumerate(records)
    )
    return assemble_batch(
        compress(codec, body, level),
        count=len(records),
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max(record[0] for record in records),
        attributes=attributes & ~CODEC_MASK | codec,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
