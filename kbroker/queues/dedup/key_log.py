"""Idempotency keys in append order: as many as clients choose, so that no step takes time for all of them.

Each key has a row of the snapshot format in a chunk. Rows are only appended, and removed at the start: so a snapshot
shares the chunks, and the oldest keys are found without a search. The dict that finds a key is divided, since one dict
of a million keys takes 50 ms each time it grows.
"""

from collections import defaultdict
from collections.abc import Iterator
from struct import Struct

from kbroker.common import Buffer

# Producer id, digest, offset, append time in ms.
ROW = Struct(">q16sqq")
_CHUNK_BYTES = 1024 * ROW.size
_pack = ROW.pack
_SHARD_MASK = 63

TIME_BITS = 44
MAX_TIME_MS = (1 << TIME_BITS) - 1


class KeyLog:
    """Keys by digest. An entry is the offset of the record and its time: one integer, which takes 40 bytes."""

    __slots__ = ("_chunks", "_last", "_producer_id", "_shards", "_start")

    def __init__(self, producer_id: int) -> None:
        self._producer_id = producer_id
        # By some bits of the digest.
        self._shards: defaultdict[int, dict[bytes, int]] = defaultdict(dict)
        # A row whose digest has another entry in the dict is outdated.
        self._last = bytearray()
        self._chunks = [self._last]
        # The position of the first row in the first chunk.
        self._start = 0

    def get(self, digest: bytes) -> int | None:
        return self._shards[digest[0] & _SHARD_MASK].get(digest)

    def put(self, digest: bytes, offset: int, time_ms: int) -> bool:
        """Add a key at the end, or move it there. Returns whether it is new."""
        shard = self._shards[digest[0] & _SHARD_MASK]
        before = len(shard)
        shard[digest] = offset << TIME_BITS | time_ms
        last = self._last
        last += _pack(self._producer_id, digest, offset, time_ms)
        if len(last) == _CHUNK_BYTES:
            self._last = bytearray()
            self._chunks.append(self._last)
        return len(shard) > before

    def first_time_ms(self) -> int | None:
        """Return the time of the first row; None without rows."""
        first = self._chunks[0]
        time_ms: int | None = ROW.unpack_from(first, self._start)[3] if self._start < len(first) else None
        return time_ms

    def pop_first(self) -> tuple[bytes, int] | None:
        """Remove the first row, and return its key with the entry; None if that row was outdated."""
        first = self._chunks[0]
        _, digest, offset, time_ms = ROW.unpack_from(first, self._start)
        self._start += ROW.size
        if self._start == _CHUNK_BYTES:
            del self._chunks[0]
            self._start = 0
        shard, entry = self._shards[digest[0] & _SHARD_MASK], offset << TIME_BITS | time_ms
        if shard.get(digest) != entry:
            return None
        del shard[digest]
        return digest, entry

    def pop_until(self, time_ms: int, limit: int) -> int:
        """Remove at most `limit` first rows that are not later than this. Returns the number of removed keys."""
        removed = 0
        while limit > 0:
            first, start, shards = self._chunks[0], self._start, self._shards
            for _, digest, offset, row_ms in ROW.iter_unpack(memoryview(first)[start : start + limit * ROW.size]):
                if row_ms > time_ms:
                    limit = 0
                    break
                limit -= 1
                start += ROW.size
                shard = shards[digest[0] & _SHARD_MASK]
                if shard.get(digest) == offset << TIME_BITS | row_ms:
                    del shard[digest]
                    removed += 1
            self._start = start
            if start < _CHUNK_BYTES:
                break
            del self._chunks[0]
            self._start = 0
        return removed

    def freeze(self) -> list[Buffer]:
        """Return the rows as they are now. They do not change, so that a thread may read them."""
        frozen: list[Buffer] = [*self._chunks[:-1], bytes(self._last)]
        frozen[0] = memoryview(frozen[0])[self._start :]
        return frozen


def with_producer_id(rows: Buffer, producer_id: int) -> bytearray:
    """Return a copy of the rows of a chunk with another producer id."""
    copy = bytearray(rows)
    for at in range(0, len(copy), ROW.size):
        copy[at : at + 8] = producer_id.to_bytes(8, "big", signed=True)
    return copy


def iter_rows(data: Buffer) -> Iterator[tuple[int, bytes, int]]:
    """Yield (producer id, digest, entry) of each row. Raises struct.error if the last one is cut off."""
    for producer_id, digest, offset, time_ms in ROW.iter_unpack(data):
        yield producer_id, digest, offset << TIME_BITS | time_ms
