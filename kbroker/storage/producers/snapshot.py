"""The .snapshot file, in Kafka's format: of each producer its last batch and its open transaction."""

from collections.abc import Iterable, Iterator
from struct import Struct
from struct import error as StructError

from protocol.records.crc import crc32c

SNAPSHOT_VERSION = 1

# Version and CRC-32C of what follows; the number of entries; one entry: producer id, epoch, last sequence,
# last offset, offset delta, timestamp, coordinator epoch, first offset of the open transaction.
_PREFIX = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
SnapshotEntry = tuple[int, int, int, int, int, int, int, int]


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    packed = [_ENTRY.pack(*entry) for entry in entries]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _PREFIX.pack(SNAPSHOT_VERSION, crc32c(body)) + body


def snapshot_entries(data: bytes) -> Iterator[SnapshotEntry]:
    """What is in a .snapshot file; raises ValueError if it is damaged."""
    try:
        version, crc = _PREFIX.unpack_from(data)
        (count,) = _COUNT.unpack_from(data, _PREFIX.size)
    except StructError:
        raise ValueError(f"producer snapshot of {len(data)} bytes") from None
    if version != SNAPSHOT_VERSION:
        raise ValueError(f"producer snapshot of unknown version {version}")
    if crc32c(memoryview(data)[_PREFIX.size :]) != crc:
        raise ValueError("producer snapshot whose CRC is wrong")
    start = _PREFIX.size + _COUNT.size
    if count * _ENTRY.size != len(data) - start:
        raise ValueError(f"producer snapshot of {count} entries in {len(data) - start} bytes")
    return _ENTRY.iter_unpack(memoryview(data)[start:])


def read_snapshot_entries(data: bytes) -> Iterator[SnapshotEntry]:
    """As much of a damaged .snapshot file as has the form of entries, for people to look at."""
    body = memoryview(data)[_PREFIX.size + _COUNT.size :]
    return _ENTRY.iter_unpack(body[: len(body) - len(body) % _ENTRY.size])
