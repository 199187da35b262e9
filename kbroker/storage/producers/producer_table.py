"""The producers of a partition, packed into rows: as many as clients choose, in at most 300 bytes each.

A row is an entry of a producer snapshot (`.snapshot`, in Kafka's format): the last batch and the open transaction of a
producer. So a snapshot of hundreds of thousands of producers takes neither a loop over them nor a copy of their rows on
the event loop: it shares the chunks of rows, and the table copies a chunk before it changes it again. The batches
before a producer's last one, which a snapshot does not have, are in chunks of their own.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kbroker.common import Buffer
from protocol.records.batch import TRANSACTIONAL
from protocol.records.checksum import crc32c

NO_EPOCH = -1
NO_SEQUENCE = -1
NO_OFFSET = -1
NO_TIMESTAMP = -1
NO_COORDINATOR_EPOCH = -1
MAX_SEQUENCE = 0x7FFFFFFF

# A producer may have this many batches in flight.
MAX_BATCHES = 5

# A batch in the log: (first sequence, last sequence, last offset, offset delta, max timestamp in ms).
StoredBatch = tuple[int, int, int, int, int]

# A packed batch: last sequence, last offset, offset delta, timestamp.
_BATCH = Struct(">iqiq")
OLDER_BYTES = _BATCH.size * (MAX_BATCHES - 1)
NO_OLDER = _BATCH.pack(0, NO_OFFSET, 0, 0) * (MAX_BATCHES - 1)


class ActiveProducer(NamedTuple):
    """A producer in the response of DescribeProducers (KIP-664)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_txn_start_offset: int


class ProducerStateEntry:
    """The state of one producer id.

    `batches`: the last ones, with those that are packed in `older` the last five. `last_timestamp`: the timestamp of
    its last batch, which determines its expiration. `open_bit`: while a transaction is open, the attribute bit
    TRANSACTIONAL, which its batches must have; otherwise 0.
    """

    __slots__ = (
        "batches", "coordinator_epoch", "epoch", "last_timestamp", "next_sequence", "older", "open_bit",
        "txn_first_offset",
    )  # fmt: skip

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        # A list: a deque takes 760 bytes even if it is empty.
        self.batches: list[StoredBatch] = []
        self.older = b""
        # The sequence of the next batch. After a marker with a new epoch there are no batches yet, and the first has 0.
        self.next_sequence = 0
        self.last_timestamp = NO_TIMESTAMP
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.open_bit = 0
        self.txn_first_offset = NO_OFFSET

    def begin_epoch(self, epoch: int) -> None:
        """Begin a new epoch: older batches no longer count."""
        self.epoch = epoch
        self.batches.clear()
        self.older = b""
        self.next_sequence = 0

    def last_batches(self) -> list[StoredBatch]:
        """Return the last five batches, the oldest first."""
        return [*unpack_batches(self.older), *self.batches][-MAX_BATCHES:]

    def packed_older(self) -> bytes:
        """Return the batches before the last one, packed: at most four."""
        packed = self.older
        for _, last_sequence, last_offset, offset_delta, timestamp in self.batches[:-1]:
            packed += _BATCH.pack(last_sequence, last_offset, offset_delta, timestamp)
        return packed[-OLDER_BYTES:]


def unpack_batches(packed: bytes) -> Iterator[StoredBatch]:
    for last_sequence, last_offset, offset_delta, timestamp in _BATCH.iter_unpack(packed):
        if last_offset != NO_OFFSET:
            yield stored_batch(last_sequence, last_offset, offset_delta, timestamp)


def stored_batch(last_sequence: int, last_offset: int, offset_delta: int, timestamp: int) -> StoredBatch:
    """Return a batch from the fields that are stored. Those of coordinators have no sequences."""
    first = add_sequence(last_sequence, -offset_delta) if last_sequence >= 0 else NO_SEQUENCE
    return first, last_sequence, last_offset, offset_delta, timestamp


def add_sequence(sequence: int, increment: int) -> int:
    """Add to a sequence. After 2^31 - 1 sequences continue with 0."""
    return (sequence + increment) & MAX_SEQUENCE


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


# A chunk has 46 KiB: its copy takes microseconds, and its checksum lets other threads run.
ROWS_PER_CHUNK = 1024
_ROW_BYTES = ENTRY.size
# The producer id, the timestamp, and the first offset of the open transaction.
_EXPIRY = Struct(">q18xq4xq")
_OLDER = Struct(f"{OLDER_BYTES}s")
_NO_BATCH = (NO_SEQUENCE, NO_SEQUENCE, NO_OFFSET, 0, 0)


class FrozenProducers:
    """The rows of a table at one moment. They do not change, so that a thread may read them."""

    __slots__ = ("_chunks", "_count")

    def __init__(self, chunks: Sequence[Buffer] = (), count: int = 0) -> None:
        self._chunks = chunks
        self._count = count

    @classmethod
    def decode(cls, data: Buffer) -> "FrozenProducers":
        """Read what `encode` has written. Raises ValueError if it is damaged."""
        rows = decode_snapshot(data)[1]
        return cls([rows], len(rows) // _ROW_BYTES)

    def __iter__(self) -> Iterator[SnapshotEntry]:
        for chunk in self._chunks:
            yield from iter_entries(memoryview(chunk))

    def encode(self, data: bytearray | None = None) -> bytearray:
        """Append a .snapshot file in Kafka's format to `data`, and return it.

        Between two chunks the event loop may run: the checksum of one does not hold Python's lock.
        """
        data = bytearray() if data is None else data
        start = len(data)
        crc = begin_snapshot(data, self._count)
        for chunk in self._chunks:
            crc = crc32c(chunk, crc)
            data += chunk
        end_snapshot(data, start, crc)
        return data


class ProducerTable:
    """Producers by id. A method that changes one takes constant time, and copies at most one chunk."""

    __slots__ = ("_chunks", "_older", "_shared", "_slots")

    def __init__(self) -> None:
        # The number of each producer's row.
        self._slots: dict[int, int] = {}
        self._chunks: list[bytearray] = []
        # By number of the chunk, for those with a producer that has several batches.
        self._older: dict[int, bytearray] = {}
        # The numbers of the chunks that `freeze` has returned.
        self._shared: set[int] = set()

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, producer_id: int) -> bool:
        return producer_id in self._slots

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        slot = self._slots.get(producer_id)
        if slot is None:
            return None
        number, row = divmod(slot, ROWS_PER_CHUNK)
        fields = ENTRY.unpack_from(self._chunks[number], row * _ROW_BYTES)
        _, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first_offset = fields
        entry = ProducerStateEntry(epoch)
        if offset >= 0:
            entry.batches.append(stored_batch(sequence, offset, delta, timestamp))
            entry.next_sequence = add_sequence(sequence, 1)
        entry.last_timestamp = timestamp
        entry.coordinator_epoch = coordinator_epoch
        if txn_first_offset >= 0:
            entry.txn_first_offset = txn_first_offset
            entry.open_bit = TRANSACTIONAL
        older = self._older.get(number)
        if older is not None:
            start = row * OLDER_BYTES
            entry.older = _OLDER.unpack_from(older, start)[0] if start < len(older) else b""
        return entry

    def put(self, producer_id: int, entry: ProducerStateEntry) -> None:
        """Add a producer, or replace its state."""
        slot = self._slots.get(producer_id)
        if slot is None:
            slot = self._add(producer_id)
        number, row = divmod(slot, ROWS_PER_CHUNK)
        batches = entry.batches
        _, sequence, offset, delta, _ = batches[-1] if batches else _NO_BATCH
        ENTRY.pack_into(
            self._writable(number) if number in self._shared else self._chunks[number],
            row * _ROW_BYTES,
            producer_id,
            entry.epoch,
            sequence,
            offset,
            delta,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.txn_first_offset,
        )
        if number in self._older or entry.older or len(batches) > 1:
            self._put_older(number, row, entry.packed_older())

    def _add(self, producer_id: int) -> int:
        """Add a row. Returns its number."""
        slot = self._slots[producer_id] = len(self._slots)
        number, row = divmod(slot, ROWS_PER_CHUNK)
        if not row:
            self._chunks.append(bytearray())
        chunk = self._writable(number)
        chunk += bytes(_ROW_BYTES)
        return slot

    def _put_older(self, number: int, row: int, packed: bytes) -> None:
        older = self._older.get(number)
        if older is None:
            older = self._older[number] = bytearray()
        start = row * OLDER_BYTES
        if len(older) <= start:
            older += NO_OLDER * (row + 1 - len(older) // OLDER_BYTES)
        _OLDER.pack_into(older, start, packed if len(packed) == OLDER_BYTES else (NO_OLDER + packed)[-OLDER_BYTES:])

    def _writable(self, number: int) -> bytearray:
        """Return a chunk that may be changed."""
        if number in self._shared:
            self._shared.discard(number)
            self._chunks[number] = self._chunks[number][:]
        return self._chunks[number]

    def expired(self, slot: int, expired_at: int) -> int | None:
        """Return the producer of a row if its last batch is not later than `expired_at` (ms), and it has no open
        transaction."""
        number, row = divmod(slot, ROWS_PER_CHUNK)
        producer_id, timestamp, txn_first_offset = _EXPIRY.unpack_from(self._chunks[number], row * _ROW_BYTES)
        return producer_id if timestamp <= expired_at and txn_first_offset < 0 else None

    def remove(self, producer_id: int) -> None:
        """Remove a producer. The last row takes the place of its row."""
        slot, last = self._slots.pop(producer_id), len(self._slots)
        number, row = divmod(last, ROWS_PER_CHUNK)
        chunk = self._writable(number)
        if slot != last:
            moved = ENTRY.unpack_from(chunk, row * _ROW_BYTES)[0]
            entry = self.get(moved)
            assert entry is not None
            self._slots[moved] = slot
            self.put(moved, entry)
        del chunk[row * _ROW_BYTES :]
        older = self._older.get(number)
        if older is not None:
            del older[row * OLDER_BYTES :]
        if not row:
            del self._chunks[number]
            self._older.pop(number, None)

    def freeze(self) -> FrozenProducers:
        """Return the rows as they are now."""
        self._shared = set(range(len(self._chunks)))
        return FrozenProducers(self._chunks.copy(), len(self._slots))

    @classmethod
    def from_snapshot(cls, data: bytes, end_offset: int | None) -> tuple["ProducerTable", list[tuple[int, int]], bool]:
        """Read a .snapshot file. Returns also the open transactions: (first offset, producer id), and whether any
        producer has used transactions.

        Raises ValueError if it is damaged, or has an offset that is not below `end_offset`.
        """
        table, slots, transactions, had_transactions = cls(), {}, [], False
        entries, rows = decode_snapshot(data)
        for slot, (producer_id, _, _, last_offset, _, _, coordinator_epoch, txn_first_offset) in enumerate(entries):
            slots[producer_id] = slot
            if end_offset is not None and max(last_offset, txn_first_offset) >= end_offset:
                later = max(last_offset, txn_first_offset)
                raise ValueError(f"producer snapshot with the later offset {later}")
            had_transactions = had_transactions or coordinator_epoch >= 0 or txn_first_offset >= 0
            if txn_first_offset >= 0:
                transactions.append((txn_first_offset, producer_id))
        if len(slots) * _ROW_BYTES != len(rows):
            raise ValueError("producer snapshot with a producer twice")
        chunk_bytes = ROWS_PER_CHUNK * _ROW_BYTES
        table._slots = slots
        table._chunks = [bytearray(rows[at : at + chunk_bytes]) for at in range(0, len(rows), chunk_bytes)]
        return table, transactions, had_transactions
