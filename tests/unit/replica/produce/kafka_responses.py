"""Valid and invalid batches, with the error codes of Apache Kafka 4.3.1's responses to them.

The name of a topic stands for its configs in TOPICS. Timestamps are around NOW.
"""

import zlib
from collections.abc import Callable
from struct import pack_into
from typing import NamedTuple

from protocol.errors import ErrorCode
from protocol.records.batch import CRC_POS, assemble_batch, build_batch, crc_of
from protocol.records.compression import compress
from protocol.records.record import encode_record, encode_varint

NOW = 1_795_000_000_000
HOUR = 3_600_000

TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "small": {"max.message.bytes": "500"},
    "compact": {"cleanup.policy": "compact"},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "compact-append-time": {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"},
    "bounded": {"message.timestamp.before.max.ms": "1000000", "message.timestamp.after.max.ms": "1000000"},
    "lz4": {"compression.type": "lz4"},
    "uncompressed": {"compression.type": "uncompressed"},
    "small-uncompressed": {"compression.type": "uncompressed", "max.message.bytes": "500"},
}


class Case(NamedTuple):
    """`header_code`: the error code if only the header is validated, where it differs from Kafka's."""

    name: str
    topic: str
    records: Callable[[int], bytes]
    code: ErrorCode
    bad_records: tuple[int, ...] = ()
    version: int = 9
    header_code: ErrorCode | None = None


def good(now: int, **fields: int) -> bytearray:
    return build_batch([(now + i, b"k%d" % i, b"v%d" % i, ()) for i in range(3)], **fields)


def stamped(*timestamps: int, codec: int = 0) -> Callable[[int], bytes]:
    """A batch of records with these timestamps, relative to now; -1 for none."""
    return lambda now: build_batch([(now + t if t != -1 else -1, b"k", b"v", ()) for t in timestamps], codec=codec)


def keyed(*keys: bytes | None, codec: int = 0) -> Callable[[int], bytes]:
    return lambda now: build_batch([(now, key, b"v", ()) for key in keys], codec=codec)


def patched(
    *patches: tuple[str, int, int], seal: bool = True, cut: int | None = None, **fields: int
) -> Callable[[int], bytes]:
    """A valid batch with other values at some positions. With `seal` its CRC is correct."""

    def make(now: int) -> bytes:
        batch = good(now, **fields)[:cut]
        for form, pos, value in patches:
            pack_into(form, batch, pos, value)
        if seal:
            pack_into(">I", batch, CRC_POS, crc_of(batch, 0, len(batch)))
        return bytes(batch)

    return make


def body(*records: bytes, count: int | None = None, codec: int = 0, raw: bool = False) -> Callable[[int], bytes]:
    """A batch of encoded records, which may be invalid. `raw`: they are compressed already."""
    count = len(records) if count is None else count
    data = b"".join(records)
    return lambda now: assemble_batch(
        data if raw else compress(codec, data),
        count=count,
        last_offset_delta=count - 1,
        base_timestamp=now,
        max_timestamp=now,
        attributes=codec,
    )


def legacy(magic: int) -> Callable[[int], bytes]:
    """A message of a format before v2."""

    def make(now: int) -> bytes:
        time = now.to_bytes(8, "big") if magic else b""
        message = bytes((magic, 0)) + time + b"\0\0\0\1k" + b"\0\0\0\1v"
        message = zlib.crc32(message).to_bytes(4, "big") + message
        return bytes(8) + len(message).to_bytes(4, "big") + message

    return make


def fields(**values: int) -> Callable[[int], bytes]:
    return lambda now: good(now, **values)


def after(tail: Callable[[bytes], bytes]) -> Callable[[int], bytes]:
    return lambda now: good(now) + tail(good(now))


def some(size: int) -> Callable[[int], bytes]:
    return lambda now: good(now)[:size]


OK = ErrorCode.NONE
CORRUPT = ErrorCode.CORRUPT_MESSAGE
INVALID = ErrorCode.INVALID_RECORD
TIMESTAMP = ErrorCode.INVALID_TIMESTAMP
TOO_LARGE = ErrorCode.MESSAGE_TOO_LARGE
UNEXPECTED = ErrorCode.UNKNOWN_SERVER_ERROR
ZSTD_UNSUPPORTED = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
UNAUTHORIZED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

LENGTH, EPOCH, MAGIC, ATTRIBUTES, LAST_DELTA = 8, 12, 16, 21, 23
BASE_TIMESTAMP, MAX_TIMESTAMP, COUNT = 27, 35, 57

THREE = [encode_record(i, 0, b"k", b"v") for i in range(3)]
NEGATIVE_HEADERS = encode_varint(7) + b"\0\0\0\1\1\1\0"
FUTURE = NOW + 20 * HOUR

FRAMING = [
    Case("good", "plain", good, OK),
    Case("good in the oldest version", "plain", good, OK, version=3),
    Case("nothing", "plain", some(0), INVALID),
    Case("11 bytes", "plain", some(11), INVALID),
    Case("16 bytes", "plain", some(16), INVALID),
    Case("17 bytes", "plain", some(17), INVALID),
    Case("60 bytes", "plain", some(60), INVALID),
    Case("one byte short", "plain", some(-1), INVALID),
    Case("two batches", "plain", after(bytes), INVALID),
    Case("a byte after", "plain", after(lambda _: b"\0"), OK),
    Case("half a batch after", "plain", after(lambda batch: batch[:70]), OK),
    Case("17 zeros after", "plain", after(lambda _: bytes(17)), CORRUPT),
    Case("length -1", "plain", patched((">i", LENGTH, -1), seal=False), CORRUPT),
    Case("length 0", "plain", patched((">i", LENGTH, 0), seal=False), CORRUPT),
    Case("length 13", "plain", patched((">i", LENGTH, 13), seal=False), CORRUPT),
    Case("length 14", "plain", patched((">i", LENGTH, 14), seal=False), CORRUPT),
    Case("length 48", "plain", patched((">i", LENGTH, 48), seal=False), CORRUPT),
    Case("length 48 and no more", "plain", patched((">i", LENGTH, 48), seal=False, cut=60), CORRUPT),
    Case("length too long", "plain", patched((">i", LENGTH, 1000), seal=False), INVALID),
    Case("only a header", "plain", patched((">i", LENGTH, 49), cut=61), INVALID),
    Case("CRC", "plain", patched((">I", CRC_POS, 1), seal=False), CORRUPT),
    Case("CRC in the oldest version", "plain", patched((">I", CRC_POS, 1), seal=False), CORRUPT, version=3),
    Case("base offset 5", "plain", patched((">q", 0, 5)), INVALID),
    Case("leader epoch 77", "plain", patched((">i", EPOCH, 77)), OK),
    *(Case(f"magic {m}", "plain", patched((">b", MAGIC, m), seal=False), INVALID) for m in (0, 1)),
    *(Case(f"magic {m}", "plain", patched((">b", MAGIC, m), seal=False), CORRUPT) for m in (3, 127, -1)),
    *(Case(f"message of format v{m}", "plain", legacy(m), INVALID) for m in (0, 1)),
    Case("message of format v1 in the oldest version", "plain", legacy(1), INVALID, version=3),
]

HEADERS = [
    Case("count -1", "plain", patched((">i", COUNT, -1)), INVALID),
    Case("count 0", "plain", patched((">i", COUNT, 0)), INVALID),
    Case("count 0 of nothing", "plain", body(), INVALID),
    Case("count too small", "plain", patched((">i", COUNT, 2)), INVALID),
    Case("count too large", "plain", patched((">i", COUNT, 4)), INVALID),
    Case("last offset delta -1", "plain", patched((">i", LAST_DELTA, -1)), INVALID),
    Case("last offset delta 1", "plain", patched((">i", LAST_DELTA, 1)), INVALID),
    Case("last offset delta 3", "plain", patched((">i", LAST_DELTA, 3)), INVALID),
    Case("control", "plain", patched((">h", ATTRIBUTES, 32)), INVALID),
    Case("control, transactional", "plain", patched((">h", ATTRIBUTES, 48)), UNAUTHORIZED),
    Case("transactional", "plain", patched((">h", ATTRIBUTES, 16)), UNAUTHORIZED),
    Case("codec 5", "plain", patched((">h", ATTRIBUTES, 5)), UNEXPECTED),
    Case("codec 7", "plain", patched((">h", ATTRIBUTES, 7)), UNEXPECTED),
    Case("unknown attribute", "plain", patched((">h", ATTRIBUTES, 128)), OK),
    Case("delete horizon", "plain", patched((">h", ATTRIBUTES, 64)), OK),
    Case("sequence -1", "plain", fields(producer_id=7, producer_epoch=0, base_sequence=-1), INVALID),
    Case("sequence -5", "plain", fields(producer_id=7, producer_epoch=0, base_sequence=-5), INVALID),
    Case("sequence without producer", "plain", fields(producer_epoch=5, base_sequence=3), OK),
    Case("producer -2", "plain", fields(producer_id=-2, producer_epoch=0, base_sequence=0), OK),
    Case("zstd", "plain", fields(codec=4), OK, version=7),
    Case("zstd before version 7", "plain", fields(codec=4), ZSTD_UNSUPPORTED, version=6),
    Case("zstd in the oldest version", "plain", fields(codec=4), ZSTD_UNSUPPORTED, version=3),
    Case("too large", "small", lambda now: build_batch([(now, b"k", b"x" * 600, ())]), TOO_LARGE),
    Case("not too large compressed", "small", lambda now: build_batch([(now, b"k", b"x" * 600, ())], codec=1), OK),
    Case(
        "too large when converted",
        "small-uncompressed",
        lambda now: build_batch([(now, b"k", b"x" * 600, ())], codec=1),
        TOO_LARGE,
    ),
]

TIMESTAMPS = [
    Case("too old", "bounded", stamped(0, -2_000_000, -2_000_001), TIMESTAMP, (1, 2), header_code=OK),
    Case("too old, compressed", "bounded", stamped(0, -2_000_000, codec=1), TIMESTAMP, (1,), header_code=OK),
    Case("too old from the first", "bounded", stamped(-2_000_000, 0), TIMESTAMP, (0,)),
    Case("too new", "bounded", stamped(0, 2_000_000), TIMESTAMP, (1,)),
    Case("too new, compressed", "bounded", stamped(0, 2_000_000, codec=1), TIMESTAMP, (1,)),
    Case("none, bounded", "bounded", stamped(-1), OK),
    Case("in half an hour", "plain", stamped(HOUR // 2), OK),
    Case("in two hours", "plain", stamped(2 * HOUR), TIMESTAMP, (0,)),
    Case("none", "plain", stamped(-1), OK),
    Case("in the future, append time", "append-time", stamped(20 * HOUR), OK),
    Case("max timestamp too low", "plain", patched((">q", MAX_TIMESTAMP, NOW - 5000)), OK),
    Case("max timestamp too high", "plain", patched((">q", MAX_TIMESTAMP, FUTURE)), OK),
    Case("max timestamp too high, compressed", "plain", patched((">q", MAX_TIMESTAMP, FUTURE), codec=1), OK),
    Case("no max timestamp", "plain", patched((">q", MAX_TIMESTAMP, -1)), OK),
    Case("no base timestamp", "plain", patched((">q", BASE_TIMESTAMP, -1)), OK),
    Case("append-time bit", "plain", patched((">h", ATTRIBUTES, 8)), OK),
    Case("append-time bit, append time", "append-time", patched((">h", ATTRIBUTES, 8)), TIMESTAMP, (0, 1, 2)),
]

RECORDS = [
    Case("null key", "compact", keyed(b"k", None), INVALID, (1,)),
    Case("null keys, compressed", "compact", keyed(b"k", None, None, codec=1), INVALID, (1, 2)),
    Case("null key, append time", "compact-append-time", keyed(None), INVALID, (0,)),
    Case("tombstone", "compact", lambda now: build_batch([(now, b"k", None, ())]), OK),
    Case("to lz4", "lz4", good, OK),
    Case("gzip to lz4", "lz4", fields(codec=1), OK),
    Case("gzip to uncompressed", "uncompressed", fields(codec=1), OK),
    Case("header key that is no UTF-8", "plain", body(encode_record(0, 0, b"k", b"v", [(b"\xff", b"")])), OK),
    Case("offsets out of order", "plain", body(THREE[0], THREE[2], THREE[1]), OK),
    Case("fewer records counted", "plain", body(*THREE, count=2), INVALID, header_code=OK),
    Case("more records counted", "plain", body(*THREE, count=4), INVALID),
    Case("fewer records counted, gzip", "plain", body(*THREE, count=2, codec=1), INVALID, header_code=OK),
    Case("more records counted, gzip", "plain", body(*THREE, count=4, codec=1), INVALID, header_code=OK),
    Case("garbage", "plain", body(b"\xff\xff\xff"), INVALID),
    Case("garbage, append time", "append-time", body(b"\xff\xff\xff"), INVALID),
    Case("garbage in gzip", "plain", body(b"\xff\xff\xff", codec=1), INVALID, header_code=OK),
    Case("empty record", "plain", body(b"\0"), INVALID),
    Case("bytes after the records", "plain", body(*THREE, b"\0\0", count=3), INVALID, header_code=OK),
    Case("negative header count", "plain", body(NEGATIVE_HEADERS), INVALID, header_code=OK),
    *(
        Case(f"no {name}", "plain", body(b"garbage!", codec=codec, raw=True), UNEXPECTED, header_code=OK)
        for codec, name in ((1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd"))
    ),
]

CASES = FRAMING + HEADERS + TIMESTAMPS + RECORDS
