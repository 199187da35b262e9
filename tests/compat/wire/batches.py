"""Record batches from kafka-python's encoder, valid and damaged, and a description of a batch in one line."""

import struct
import time
from collections.abc import Sequence
from typing import Any

from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder

# Record timestamps of the stories; the normalizer takes timestamps around now for the time of the run.
T0 = 1_700_000_000_000
AN_HOUR_MS = 3_600_000

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
FIELDS = {
    "base_offset": (0, ">q"), "length": (8, ">i"), "leader_epoch": (12, ">i"), "magic": (16, ">b"), "crc": (17, ">I"),
    "attributes": (21, ">h"), "last_offset_delta": (23, ">i"), "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"), "producer_id": (43, ">q"), "producer_epoch": (51, ">h"), "base_sequence": (53, ">i"),
    "count": (57, ">i"),
}  # fmt: skip
HEADER = 61
TRANSACTIONAL, CONTROL = 16, 32

Record = tuple[bytes | None, bytes | None]


def batch(
    *records: Record,
    time_ms: int = T0,
    step_ms: int = 1,
    codec: str = "none",
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
) -> bytes:
    """Build a batch of (key, value) records, `step_ms` apart. `producer`: (id, epoch, base sequence)."""
    builder = DefaultRecordBatchBuilder(2, CODECS[codec], transactional, *producer, 1 << 20)
    for offset, (key, value) in enumerate(records or [(b"k", b"v")]):
        builder.append(offset, time_ms + offset * step_ms, key, value, [])
    return bytes(builder.build())


def values(*texts: str, **options: Any) -> bytes:
    """Build a batch of records without keys."""
    return batch(*((None, text.encode()) for text in texts), **options)


def legacy(magic: int) -> bytes:
    """Build one message of magic 0 or 1, the formats before record batches."""
    builder = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    builder.append(0, T0, b"k", b"v")
    return bytes(builder.build())


def modify(data: bytes, update_crc: bool = True, **changes: int) -> bytes:
    """Return a batch with changed header fields, and with the matching CRC unless the CRC itself is changed."""
    batch = bytearray(data)
    for name, value in changes.items():
        pos, form = FIELDS[name]
        struct.pack_into(form, batch, pos, value)
    if update_crc and "crc" not in changes:
        struct.pack_into(">I", batch, FIELDS["crc"][0], crc32c(bytes(batch[FIELDS["attributes"][0] :])))
    return bytes(batch)


def field(data: Sequence[int], name: str, start: int = 0) -> int:
    """Return a header field of the batch at a position."""
    pos, form = FIELDS[name]
    return int(struct.unpack_from(form, bytes(data), start + pos)[0])


def split(data: bytes) -> list[bytes]:
    """Split adjacent batches; the last one may be truncated."""
    batches, pos = [], 0
    while pos + HEADER <= len(data):
        end = pos + 12 + field(data, "length", pos)
        batches.append(data[pos:end])
        pos = end
    return batches + ([data[pos:]] if pos < len(data) else [])


def describe(data: bytes) -> str:
    """Describe batches with their records as consumers see them, except for values that differ between runs."""
    return " | ".join(_describe_batch(part) for part in split(data))


def _describe_batch(data: bytes) -> str:
    if len(data) < HEADER or len(data) < 12 + field(data, "length"):
        return f"{len(data)} bytes of a batch"
    decoded = DefaultRecordBatch(data)
    assert decoded.validate_crc(), "a response has a batch with a wrong CRC"
    names = [name for name in FIELDS if name not in ("crc", "length", "base_timestamp", "max_timestamp", "producer_id")]
    head = " ".join(f"{name}={field(data, name)}" for name in names)
    head += f" max_timestamp={_time(decoded.max_timestamp)} producer={'no' if decoded.producer_id < 0 else 'yes'}"
    if field(data, "attributes") & CONTROL:
        return head + ": " + ", ".join(f"{r.offset} {_marker(r.key, r.value)} at {_time(r.timestamp)}" for r in decoded)
    return head + ": " + ", ".join(f"{r.offset} {r.key!r}={r.value!r} at {_time(r.timestamp)}" for r in decoded)


def _marker(key: bytes, value: bytes) -> str:
    """Describe the marker of a transaction: version and type, and version without the coordinator epoch."""
    assert len(value) == 6, value
    assert int.from_bytes(value[2:], "big", signed=True) >= -1, value
    return f"marker {key.hex()}={value[:2].hex()}<epoch>"


def _time(ms: int) -> str:
    return "<now>" if abs(ms - time.time() * 1000) < AN_HOUR_MS else f"T{ms - T0:+d}"
