"""Produced record batches, their records and control records, and the codecs."""

from collections.abc import Callable
from functools import partial
from random import Random
from struct import Struct

import pytest
from crc32c import crc32c

from kbroker.common import KafkaError
from kbroker.replica.produce.batch_validation import validate_batch
from protocol.errors import MalformedError
from protocol.records.batch import (
    CRC_POS,
    CRC_START,
    HEADER_SIZE,
    NewRecord,
    assemble_batch,
    build_batch,
    iter_headers,
    parse_header,
)
from protocol.records.compression import CODEC_NAMES, compress, decompress
from protocol.records.control import EndTransactionMarker, build_end_marker, parse_control_type, parse_end_marker
from protocol.records.record import decode_varint, encode_record, iter_records
from tests.unit.fuzz.check import Target
from tests.unit.fuzz.damage import Case, Spot
from tests.unit.protocol.records import java_batches
from tests.unit.support.log_lab import NOW, config
from tests.unit.support.record_validation import validate_completely

# The limit for decompressed bytes in these tests.
MAX_OUTPUT = 1 << 20
# The size of the first output buffer of a codec.
FIRST_OUTPUT = 64 * 1024
# A record header of two bytes becomes a tuple and an entry of a list.
RECORD_MEMORY_PER_BYTE = 60

_FIELDS = (
    (0, 8), (8, 4), (12, 4), (16, 1), (17, 4), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4),
)  # fmt: skip
_KIND_OF_SIZE = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}
HEADER_SPOTS = tuple(Spot(pos, size, _KIND_OF_SIZE[size]) for pos, size in _FIELDS)
_CRC = Struct(">I")
_LENGTH = Struct(">i")


def targets() -> list[Target]:
    sealed = (KafkaError, MalformedError)
    return [
        Target("batch.headers", _headers, (MalformedError,)),
        Target("batch.records", _records, (MalformedError,), memory_per_byte=RECORD_MEMORY_PER_BYTE),
        Target("batch.control", _control, (MalformedError,)),
        Target("batch.legacy", _legacy, sealed, constant=MAX_OUTPUT, weight=2),
        Target(
            "batch.produced",
            _produced,
            sealed,
            constant=4 * MAX_OUTPUT,
            memory_per_byte=RECORD_MEMORY_PER_BYTE,
            weight=3,
        ),
        *(
            Target(f"codec.{name}", partial(_codec, number), (MalformedError,), constant=3 * MAX_OUTPUT, weight=2)
            for number, name in enumerate(CODEC_NAMES)
            if number
        ),
    ]


def random_records(rng: Random) -> list[NewRecord]:
    def some(null: float) -> bytes | None:
        return None if rng.random() < null else rng.randbytes(rng.choice((0, 1, 3, 20, 63, 64, 200)))

    return [
        (
            NOW + rng.randint(-1000, 1000),
            some(0.2),
            some(0.2),
            tuple((some(0) or b"", some(0.3)) for _ in range(rng.choice((0, 0, 1, 3)))),
        )
        for _ in range(rng.choice((1, 1, 2, 5, 12)))
    ]


def random_batch(rng: Random) -> bytes:
    producer_id = rng.choice((-1, -1, 4242))
    return bytes(
        build_batch(
            random_records(rng),
            codec=rng.choice((0, 0, 0, 1, 2, 3, 4)),
            producer_id=producer_id,
            producer_epoch=min(producer_id, 3),
            base_sequence=min(producer_id, 9),
        )
    )


def seal(data: bytearray) -> None:
    """Correct the CRC; and for half of the inputs, the length."""
    if len(data) >= HEADER_SIZE:
        if data[-1] & 1:
            _LENGTH.pack_into(data, 8, len(data) - 12)
        _CRC.pack_into(data, CRC_POS, crc32c(memoryview(data)[CRC_START:]))


# Batches and records.


def _headers(rng: Random) -> Case:
    data = b"".join(random_batch(rng) for _ in range(rng.randint(1, 4)))

    def run(data: bytes) -> None:
        end = 0
        for pos, header in iter_headers(data):
            assert pos == end
            end = pos + header.size
        assert end <= len(data)

    return Case(data, run, HEADER_SPOTS)


def _body(records: list[NewRecord]) -> tuple[bytes, list[Spot]]:
    """Encode records; returns their bytes and the spots of the varints of each."""
    body = bytearray()
    spots = []
    for delta, (timestamp, key, value, headers) in enumerate(records):
        start = len(body)
        body += encode_record(delta, timestamp - NOW, key, value, headers)
        pos, places = start, []
        # The length; after the attributes, timestamp, offset and key length; after the key, the value length.
        for after in (1, 0, 0, len(key or b""), 0):
            size = decode_varint(memoryview(body), pos, 10)[1] - pos
            places.append(Spot(pos, size, "varint"))
            pos += size + after
        pos += len(value or b"")
        places.append(Spot(pos, 1, "varint"))
        spots += places
    return bytes(body), spots


def _records(rng: Random) -> Case:
    records = random_records(rng)
    body, spots = _body(records)
    count = len(records)

    def run(data: bytes) -> None:
        decoded = 0
        for record in iter_records(data, count, NOW):
            assert record.headers is not None
            decoded += 1
        assert decoded == count
        # Bytes after the records are an error.
        with pytest.raises(MalformedError):
            list(iter_records(data + b"\0", count, NOW))

    return Case(body, run, spots)


def _control(rng: Random) -> Case:
    batch = build_end_marker(EndTransactionMarker(rng.random() < 0.5, rng.randint(0, 99)), 7, 1, NOW)
    record = next(iter_records(memoryview(batch)[HEADER_SIZE:], 1, NOW))
    key, value = record.key or b"", record.value or b""

    def run(data: bytes) -> None:
        assert isinstance(parse_control_type(data[: len(key)]), int)
        assert parse_end_marker(data[: len(key)], data[len(key) :]).coordinator_epoch is not None

    return Case(key + value, run, (Spot(0, 2, "i16"), Spot(2, 2, "i16"), Spot(4, 2, "i16"), Spot(6, 4, "i32")))


_CONFIGS = (
    config(),
    config(kbroker_record_validation="full"),
    config(cleanup_policy=("compact",)),
    config(message_timestamp_type="LogAppendTime"),
    config(compression_type="lz4"),
    config(compression_type="zstd", message_timestamp_type="LogAppendTime"),
    config(message_timestamp_before_max_ms=1000),
)


def _run_produced(rng: Random) -> tuple[Callable[[bytes], None], bool]:
    """Return the check of a produced batch, and whether it accepts every valid batch."""
    topic = rng.choice(_CONFIGS)
    version = rng.choice((3, 7, 13))

    def run(data: bytes) -> None:
        produced = memoryview(bytearray(data))
        batch, header, _ = validate_completely(lambda: validate_batch(produced, topic, NOW, produce_version=version))
        assert header == parse_header(batch)
        assert header.size == len(batch)
        assert header.crc == crc32c(memoryview(batch)[CRC_START:])
        assert header.last_offset_delta == header.count - 1 >= 0
        if topic.kbroker_record_validation == "full":
            body = decompress(header.codec, memoryview(batch)[HEADER_SIZE:], 64 << 20)
            assert sum(1 for _ in iter_records(body, header.count, header.base_timestamp)) == header.count

    return run, version >= 7 and topic in _CONFIGS[:2]


def _produced(rng: Random) -> Case:
    """A batch, or its records, which are damaged before they are compressed."""
    run, good = _run_produced(rng)
    if rng.random() < 0.6:
        return Case(random_batch(rng), run, HEADER_SPOTS, seal, good)
    records = random_records(rng)
    body, spots = _body(records)
    codec = rng.choice((0, 1, 2, 3, 4))

    def run_body(data: bytes) -> None:
        run(
            bytes(
                assemble_batch(
                    compress(codec, data),
                    count=len(records),
                    last_offset_delta=len(records) - 1,
                    base_timestamp=NOW,
                    max_timestamp=NOW,
                    attributes=codec,
                )
            )
        )

    return Case(body, run_body, spots, None, good)


def _legacy(rng: Random) -> Case:
    """Message sets of the formats before v2, which are always rejected."""
    magic = rng.randint(0, 1)
    key, value = rng.randbytes(rng.randint(0, 9)), rng.randbytes(rng.randint(0, 50))
    rest = bytes((magic, rng.randint(0, 3))) + (bytes(8) if magic else b"")
    rest += _LENGTH.pack(len(key)) + key + _LENGTH.pack(len(value)) + value
    message = _CRC.pack(0) + rest
    data = (bytes(8) + _LENGTH.pack(len(message)) + message) * rng.randint(1, 3)
    run, _ = _run_produced(rng)

    def run_legacy(data: bytes) -> None:
        run(data)
        assert data[16] == 2, "a batch of an old format was accepted"

    return Case(data + bytes(40), run_legacy, HEADER_SPOTS[:5], seal, False)


# Codecs.


def _codec(number: int, rng: Random) -> Case:
    kind = rng.randrange(5)
    if kind == 0:
        body = bytes(rng.choice((0, 100, MAX_OUTPUT, 4 * MAX_OUTPUT)))
    elif kind == 1:
        body = rng.randbytes(rng.choice((1, 1000, 40_000)))
    else:
        body = b"".join(encode_record(n, n, b"key", b"value %d" % n, ()) for n in range(rng.choice((1, 50, 2000))))
    if kind == 2:
        data = memoryview(getattr(java_batches, CODEC_NAMES[number].upper()))[HEADER_SIZE:].tobytes()
    elif kind == 3 and CODEC_NAMES[number] == "snappy":
        from cramjam import snappy

        data = bytes(snappy.compress_raw(body))
    else:
        data = compress(number, body)
    limit = rng.choice((100, FIRST_OUTPUT, MAX_OUTPUT))

    def run(data: bytes) -> None:
        assert len(decompress(number, data, limit)) <= limit

    good = len(body) <= limit and (kind != 2 or limit > 1000)
    widths = ((1, "uvarint"), (2, "i16"), (4, "i32"))
    spots = [Spot(pos, size, written) for pos in range(0, 32, 4) for size, written in widths]
    return Case(data, run, spots, None, good)
