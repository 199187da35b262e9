"""The idempotency keys of a partition that were seen within the window.

A key is kept as a digest of 128 bits, with the offset of its record and the time at which it was appended. At most
`max_keys` are kept: above that, the oldest ones are evicted, and a record with an evicted key is stored again.

The keys of an open transaction are kept separately, by producer id, and only records of the same transaction count as
their duplicates: if another record with the key were dropped and the transaction aborted, neither would remain. When
the transaction is committed, its keys count for all records; when it is aborted, they are removed.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import chain, islice
from struct import Struct
from struct import error as StructError

from kbroker.common import Buffer
from kbroker.queues.record_headers import InvalidHeaderError, walk_stored_headers
from protocol.records.batch import BatchHeader
from protocol.records.control import parse_end_marker
from protocol.records.record import Header, iter_records

IDEMPOTENCY_KEY = b"IDEMPOTENCY_KEY"
MAX_KEY_BYTES = 1024
DIGEST_BYTES = 16
NO_TRANSACTION = -1

_TIME_BITS = 44
_MAX_TIME_MS = (1 << _TIME_BITS) - 1
# The fraction of all keys that is evicted at once when there are too many. Evicting them one by one would scan the free
# slots of removed keys in the dict again and again.
_EVICTED_PART = 64
_MIN_EVICTED = 16
_ENTRY = Struct(">q16sqq")


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
    """A DerivedState. `evicted`: how many keys were removed because there were too many."""

    def __init__(self, window_ms: int, max_keys: int) -> None:
        self.window_ms = window_ms
        self.max_keys = max_keys
        self.evicted = 0
        # By digest, in append order. Offset and time share one integer, which takes 40 bytes.
        self._keys: dict[bytes, int] = {}
        self._open: dict[int, dict[bytes, int]] = {}
        self._open_count = 0
        # No key expires before this time.
        self._next_expiry_ms = 0

    def __len__(self) -> int:
        return len(self._keys) + self._open_count

    # Appends.

    def find(self, digest: bytes, producer_id: int, now_ms: int) -> tuple[int, int] | None:
        """Return (offset, append time in ms) of the record with this key; None if there was none within the window.

        `producer_id`: the producer of the transaction that the new record belongs to, else NO_TRANSACTION.
        """
        tables = [self._keys]
        if producer_id in self._open:
            tables.append(self._open[producer_id])
        for keys in tables:
            entry = keys.get(digest)
            if entry is not None and now_ms - (entry & _MAX_TIME_MS) < self.window_ms:
                return entry >> _TIME_BITS, entry & _MAX_TIME_MS
        return None

    def add(self, digest: bytes, offset: int, time_ms: int, producer_id: int) -> None:
        """Add the key of a record that was appended at `offset`."""
        entry = offset << _TIME_BITS | min(max(time_ms, 0), _MAX_TIME_MS)
        if producer_id == NO_TRANSACTION:
            # Removed first, so that the key moves to the end of the append order.
            self._keys.pop(digest, None)
            self._keys[digest] = entry
            return
        keys = self._open.setdefault(producer_id, {})
        self._open_count += digest not in keys
        keys[digest] = entry

    def end_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply a transaction marker of the partition."""
        keys = self._open.pop(producer_id, None)
        if keys is None:
            return
        self._open_count -= len(keys)
        if committed:
            for digest, entry in keys.items():
                # An older entry has expired; otherwise the record would have been dropped.
                known = self._keys.get(digest)
                if known is None or known & _MAX_TIME_MS < entry & _MAX_TIME_MS:
                    self._keys.pop(digest, None)
                    self._keys[digest] = entry

    def forget_expired(self, now_ms: int) -> None:
        """Remove the keys whose window has passed, and evict the oldest ones if there are too many."""
        keys = self._keys
        if now_ms >= self._next_expiry_ms:
            expired = []
            self._next_expiry_ms = now_ms + self.window_ms
            for digest, entry in keys.items():
                expiry_ms = (entry & _MAX_TIME_MS) + self.window_ms
                if expiry_ms > now_ms:
                    # At most _EVICTED_PART times in a window, since each time the free slots of the dict are scanned.
                    self._next_expiry_ms = max(expiry_ms, now_ms + self.window_ms // _EVICTED_PART)
                    break
                expired.append(digest)
            for digest in expired:
                del keys[digest]
        excess = len(self) - self.max_keys
        if excess > 0:
            self._evict(max(excess, min(self.max_keys // _EVICTED_PART, _MIN_EVICTED * _EVICTED_PART)))

    def _evict(self, count: int) -> None:
        self.evicted += count
        oldest = list(islice(self._keys, count))
        for digest in oldest:
            del self._keys[digest]
        count -= len(oldest)
        while count > 0 and self._open:
            # The transactions that have been open for the longest time.
            producer_id = next(iter(self._open))
            open_keys = self._open[producer_id]
            removed = list(islice(open_keys, count))
            for digest in removed:
                del open_keys[digest]
            if not open_keys:
                del self._open[producer_id]
            self._open_count -= len(removed)
            count -= len(removed)

    # DerivedState.

    def wants(self, header: BatchHeader) -> bool:
        return header.count > 0

    def first_timestamp(self, now_ms: int) -> int | None:
        return max(now_ms - self.window_ms, 0)

    def replay(self, header: BatchHeader, body: Buffer, now_ms: int) -> None:
        """Add the keys of a batch, with its timestamp, or `now_ms` if that is earlier: the log has no append times."""
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

    def to_snapshot(self) -> Callable[[], bytes]:
        committed = self._keys.copy()
        transactions = {producer_id: keys.copy() for producer_id, keys in self._open.items()}

        def encode() -> bytes:
            rows = chain(
                ((NO_TRANSACTION, digest, entry) for digest, entry in committed.items()),
                ((id, digest, entry) for id, keys in transactions.items() for digest, entry in keys.items()),
            )
            return b"".join(
                [_ENTRY.pack(id, digest, entry >> _TIME_BITS, entry & _MAX_TIME_MS) for id, digest, entry in rows]
            )

        return encode

    def load_snapshot(self, data: bytes) -> None:
        try:
            rows = list(_ENTRY.iter_unpack(data))
        except StructError as error:
            raise ValueError(str(error)) from None
        for producer_id, digest, offset, time_ms in rows:
            self.add(digest, offset, time_ms, producer_id)
