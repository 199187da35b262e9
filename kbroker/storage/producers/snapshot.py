"""The producer snapshot (`.snapshot`) in Kafka's format: the last batch and the open transaction of each producer."""

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kbroker.common import Buffer
from protocol.records.checksum import crc32c

_VERSION = 1
# The version, and the CRC-32C of the bytes that follow.
_PREFIX = Struct(">hI")
_COUNT = Struct(">i")
ENTRY = Struct(">qhiqiqiq")


class SnapshotEntry(NamedTuple):
    """A producer. Its last batch has the sequences up to `last_sequence`, and `offset_delta` + 1 offsets up to
    `last_offset`; -1 if it has none. `txn_first_offset`: the first offset of its open transaction, or -1."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


def begin_snapshot(data: bytearray, count: int) -> int:
    """Append what precedes the entries. Returns the checksum with which theirs begins."""
    data += bytes(_PREFIX.size) + _COUNT.pack(count)
    return crc32c(_COUNT.pack(count))


def end_snapshot(data: bytearray, start: int, crc: int) -> None:
    """Write the checksum of the snapshot that begins at `start`."""
    _PREFIX.pack_into(data, start, _VERSION, crc)


def decode_snapshot(data: Buffer) -> tuple[Iterator[SnapshotEntry], memoryview]:
    """Return the entries of a snapshot, decoded and as bytes. Raises ValueError if it is damaged."""
    try:
        version, crc = _PREFIX.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _PREFIX.size)
    except StructError:
        raise ValueError(f"producer snapshot of {len(data)} bytes") from None
    if version != _VERSION:
        raise ValueError(f"producer snapshot of unknown version {version}")
    if crc32c(memoryview(data)[_PREFIX.size :]) != crc:
        raise ValueError("producer snapshot with a wrong CRC")
    start = _PREFIX.size + _COUNT.size
    if count * ENTRY.size != len(data) - start:
        raise ValueError(f"producer snapshot of {count} entries in {len(data) - start} bytes")
    rows = memoryview(data)[start:]
    return iter_entries(rows), rows


def decode_damaged_snapshot(data: bytes) -> Iterator[SnapshotEntry]:
    """Decode the complete entries of a damaged snapshot, for display."""
    body = memoryview(data)[_PREFIX.size + _COUNT.size :]
    return iter_entries(body[: len(body) - len(body) % ENTRY.size])


def iter_entries(body: memoryview) -> Iterator[SnapshotEntry]:
    return map(SnapshotEntry._make, ENTRY.iter_unpack(body))
