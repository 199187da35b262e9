"""Record batches by kafka-python's encoder, whole and broken, and what a batch holds in one line."""

import struct
import time
from collections.abc import Sequence
from typing import Any

from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder

# Record timestamps of the stories, far enough in the past that nobody takes them for the time of day.
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
    """A batch of (key, value) records; their times go up by `step_ms`. `producer`: id, epoch, base sequence."""
    builder = DefaultRecordBatchBuilder(2, CODECS[codec], transactional, *producer, 1 << 20)
    for offset, (key, value) in enumerate(records or [(b"k", b"v")]):
        builder.append(offset, time_ms + offset * step_ms, key, value, [])
    return bytes(builder.build())


def values(*texts: str, **how: Any) -> bytes:
    """A batch of records without keys."""
    return batch(*((None, text.encode()) for text in texts), **how)


def legacy(magic: int) -> bytes:
    """One message of the formats before record batches: magic 0 or 1."""
    builder = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    builder.append(0, T0, b"k", b"v")
    return bytes(builder.build())


def broken(data: bytes, seal: bool = True, **changes: int) -> bytes:
    """The batch with fields of its header changed, and a CRC that fits (unless the CRC is what was changed)."""
    made = bytearray(data)
    for name, value in changes.items():
        pos, form = FIELDS[name]
        struct.pack_into(form, made, pos, value)
    if seal and "crc" not in changes:
        struct.pack_into(">I", made, FIELDS["crc"][0], crc32c(bytes(made[FIELDS["attributes"][0] :])))
    return bytes(made)


def field(data: Sequence[int], name: str, start: int = 0) -> int:
    """One field of the header of the batch at a position."""
    pos, form = FIELDS[name]
    return int(struct.unpack_from(form, bytes(data), start + pos)[0])


def split(data: bytes) -> list[bytes]:
    """The batches that lie one after the other; the last one may not be whole."""
    found, pos = [], 0
    while pos + HEADER <= len(data):
        end = pos + 12 + field(data, "length", pos)
        found.append(data[pos:end])
        pos = end
    return found + ([data[pos:]] if pos < len(data) else [])


def describe(data: bytes) -> str:
    """What consumers see of the batches: one part for each, with its records."""
    return " | ".join(_describe_one(part) for part in split(data))


def _describe_one(data: bytes) -> str:
    if len(data) < HEADER or len(data) < 12 + field(data, "length"):
        return f"{len(data)} bytes of a batch"
    found = DefaultRecordBatch(data)
    assert found.validate_crc(), "a batch with a wrong CRC was answered"
    names = [name for name in FIELDS if name not in ("crc", "length", "base_timestamp", "max_timestamp", "producer_id")]
    head = " ".join(f"{name}={field(data, name)}" for name in names)
    head += f" max_timestamp={_time(found.max_timestamp)} producer={'no' if found.producer_id < 0 else 'yes'}"
    if field(data, "attributes") & CONTROL:
        return head + ": " + ", ".join(f"{r.offset} {_marker(r.key, r.value)} at {_time(r.timestamp)}" for r in found)
    return head + ": " + ", ".join(f"{r.offset} {r.key!r}={r.value!r} at {_time(r.timestamp)}" for r in found)


def _marker(key: bytes, value: bytes) -> str:
    """The end of a transaction: version and type, and version and the coordinator's epoch, which is anything."""
    assert len(value) == 6, value
    assert int.from_bytes(value[2:], "big", signed=True) >= -1, value
    return f"marker {key.hex()}={value[:2].hex()}<epoch>"


def _time(ms: int) -> str:
    return "<now>" if abs(ms - time.time() * 1000) < AN_HOUR_MS else f"T{ms - T0:+d}"
