"""The idempotency keys of a partition that were seen within the window.

A key is kept as a digest of 128 bits, with the offset of its record and the time at which it was appended. At most
`max_keys` are kept: above that, the oldest ones are evicted, and a record with an evicted key is stored again.

The keys of an open transaction are kept separately, by producer id, and only records of the same transaction count as
their duplicates: if another record with the key were dropped and the transaction aborted, neither would remain. When
the transaction is committed, its keys count for all records; when it is aborted, they are removed."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from struct import Struct
from struct import error as StructError

from kbroker.common import Buffer
from kbroker.queues.record_headers import InvalidHeaderError, walk_stored_headers
from kbroker.runtime.turns import yield_if_due
from protocol.records.batch import BatchHeader
from protocol.records.control import parse_end_marker
from protocol.records.record import Header, iter_records

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


IDEMPOTENCY_KEY = b"IDEMPOTENCY_KEY"
MAX_KEY_BYTES = 1024
DIGEST_BYTES = 16
NO_TRANSACTION = -1

# How many keys that are not needed any more are removed with each one that is added, and with each batch: a million
# may expire at the same time, or belong to one transaction.
_TIDIED_PER_ADD, _TIDIED_AT_ONCE = 2, 256
_EXPIRIES_PER_WINDOW = 64


def key_digest(headers: Sequence[Header]) -> bytes | None:
    """Return the digest of the idempotency key in a record's headers; None without one. Raises InvalidHeaderError."""
    found: bytes | None = None
    for name, value in headers:
        if name == IDEMPOTENCY_KEY:
            if found is not None:
                raise InvalidHeaderError("A record must not have more than one header IDEMPOTENCY_KEY.")
            if not value:
                raise InvalidHeaderError("The header IDEMPOTENCY_KEY must not be empty.")
            if len(value) > MAX_KEY_BYTES:
                raise InvalidHeaderError(
                    f"The header IDEMPOTENCY_KEY has {len(value)} bytes; the maximum is {MAX_KEY_BYTES}."
                )
            found = blake2b(value, digest_size=DIGEST_BYTES).digest()
    return found


class KeyTable:
    """All methods run on the event loop. `evicted`: how many keys were removed because there were too many."""

    def __init__(self, window_ms: int, max_keys: int) -> None:
        self.window_ms = window_ms
        self.max_keys = max_keys
        self.evicted = 0
        self._keys = KeyLog(NO_TRANSACTION)
        self._open: dict[int, KeyLog] = {}
        # Large transactions that have ended, and whether they were committed, until `_tidy` has emptied them.
        self._ended: list[tuple[KeyLog, bool]] = []
        self._count = 0
        # No key expires before this time.
        self._next_expiry_ms = 0

    def __len__(self) -> int:
        return self._count

    # Appends.

    def find(self, digest: bytes, producer_id: int, now_ms: int) -> tuple[int, int] | None:
        """Return (offset, append time in ms) of the record with this key; None if there was none within the window.

        `producer_id`: the producer of the transaction that the new record belongs to, else NO_TRANSACTION.
        """
        entry = self._keys.get(digest)
        if entry is not None and now_ms - (entry & MAX_TIME_MS) < self.window_ms:
            return entry >> TIME_BITS, entry & MAX_TIME_MS
        for keys in self._others(producer_id):
            entry = keys.get(digest)
            if entry is not None and now_ms - (entry & MAX_TIME_MS) < self.window_ms:
                return entry >> TIME_BITS, entry & MAX_TIME_MS
        return None

    def _others(self, producer_id: int) -> list[KeyLog]:
        """Return the keys that count for records of this transaction and are not among the committed ones yet."""
        others = [keys for keys, committed in self._ended if committed] if self._ended else []
        if producer_id in self._open:
            others.append(self._open[producer_id])
        return others

    def add(self, digest: bytes, offset: int, time_ms: int, producer_id: int) -> None:
        """Add the key of a record that was appended at `offset`. Removes at most _TIDIED_PER_ADD others."""
        keys = self._keys if producer_id == NO_TRANSACTION else self._open.get(producer_id)
        if keys is None:
            keys = self._open[producer_id] = KeyLog(producer_id)
        if not 0 <= time_ms <= MAX_TIME_MS:
            time_ms = min(max(time_ms, 0), MAX_TIME_MS)
        self._count += keys.put(digest, offset, time_ms)
        if time_ms >= self._next_expiry_ms or self._count > self.max_keys or self._ended:
            self._tidy(time_ms, _TIDIED_PER_ADD)

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply a transaction marker of the partition."""
        keys = self._open.pop(producer_id, None)
        if keys is not None:
            self._ended.append((keys, committed))
            self._settle(_TIDIED_AT_ONCE)

    def forget_expired(self, now_ms: int) -> None:
        """Remove keys whose window has passed, and evict the oldest ones if there are too many: some of them."""
        if now_ms >= self._next_expiry_ms or self._count > self.max_keys or self._ended:
            self._tidy(now_ms, _TIDIED_AT_ONCE)

    def _tidy(self, now_ms: int, limit: int) -> None:
        """Remove at most `limit` rows that are not needed any more for each reason."""
        self._settle(limit)
        expired_at = now_ms - self.window_ms
        self._count -= self._keys.pop_until(expired_at, limit)
        first_ms = self._keys.first_time_ms()
        if first_ms is None or first_ms > expired_at:
            # Then some at once: a step for each would take longer.
            next_ms = (now_ms if first_ms is None else first_ms) + self.window_ms
            self._next_expiry_ms = max(next_ms, now_ms + self.window_ms // _EXPIRIES_PER_WINDOW)
        for _ in range(limit):
            if self._count <= self.max_keys or not self._evict_first():
                break

    def _settle(self, limit: int) -> None:
        """Empty transactions that have ended, the last one first: so small ones do not wait for a large one."""
        while limit > 0 and self._ended:
            keys, committed = self._ended[-1]
            while limit > 0 and keys.first_time_ms() is not None:
                limit -= 1
                row = keys.pop_first()
                if row is not None:
                    self._count -= 1
                    if committed:
                        self._put_later(*row)
            if keys.first_time_ms() is None:
                self._ended.pop()

    def _put_later(self, digest: bytes, entry: int) -> None:
        """Add a key unless a later record has it. An older one has expired; else the record would have been dropped."""
        known = self._keys.get(digest)
        if known is None or known & MAX_TIME_MS < entry & MAX_TIME_MS:
            self._count += self._keys.put(digest, entry >> TIME_BITS, entry & MAX_TIME_MS)

    def _evict_first(self) -> bool:
        """Remove the first row of the keys, or else of the transaction that has been open for the longest time."""
        oldest = next(iter(self._open), None)
        logs = [self._keys, *(keys for keys, _ in self._ended[:1])]
        if oldest is not None:
            logs.append(self._open[oldest])
        for keys in logs:
            if keys.first_time_ms() is not None:
                if keys.pop_first() is not None:
                    self._count -= 1
                    self.evicted += 1
                return True
        if oldest is not None:
            del self._open[oldest]
        return oldest is not None

    # The log and its snapshots.

    def replay(self, header: BatchHeader, body: Buffer, now_ms: int) -> None:
        """Add the keys of a batch of the log, in turns, with its timestamp, or `now_ms` if that is earlier.

        The log has no append times. Raises MalformedError after it has added the keys before the damage.
        """
        if header.is_control:
            for record in iter_records(bytes(body), header.count, header.base_timestamp):
                self.end_transaction(header.producer_id, parse_end_marker(record.key, record.value).committed)
            return
        producer_id = header.producer_id if header.is_transactional else NO_TRANSACTION
        time_ms = min(header.max_timestamp, now_ms)

        def visit(offset_delta: int, headers: Sequence[Header], start: int, end: int) -> None:
            digest = key_digest(headers)
            if digest is not None:
                self.add(digest, header.base_offset + offset_delta, time_ms, producer_id)

        walk_stored_headers(body, header, visit)
        self.forget_expired(now_ms)

    def to_snapshot(self) -> Iterator[Buffer]:
        """Return the parts of the encoded table as it is now. They are computed in a thread."""
        rows = self._keys.freeze()
        ended = [keys.freeze() for keys, committed in self._ended if committed]
        rows_of_open = [keys.freeze() for keys in self._open.values()]

        def encode() -> Iterator[Buffer]:
            yield from rows
            for chunk in chain.from_iterable(ended):
                yield with_producer_id(chunk, NO_TRANSACTION)
            yield from chain.from_iterable(rows_of_open)

        return encode()

    def load_snapshot(self, data: Buffer) -> None:
        """Load an encoded table into this one, which is empty, in turns. Raises ValueError."""
        try:
            for producer_id, digest, entry in iter_rows(data):
                if producer_id == NO_TRANSACTION:
                    self._put_later(digest, entry)
                else:
                    self.add(digest, entry >> TIME_BITS, entry & MAX_TIME_MS, producer_id)
                yield_if_due()
        except StructError as error:
            raise ValueError(str(error)) from None
