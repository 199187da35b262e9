"""The producers of a partition, packed into rows: as many as clients choose, in at most 300 bytes each.

A row is an entry of a producer snapshot. So a snapshot of hundreds of thousands of producers takes neither a loop over
them nor a copy of their rows on the event loop: it shares the chunks of rows, and the table copies a chunk before it
changes it again. The batches before a producer's last one, which a snapshot does not have, are in chunks of their own.
"""

from collections.abc import Iterator, Sequence
from struct import Struct

from kbroker.common import Buffer
from kbroker.storage.producers.producer_state_entry import (
    NO_OFFSET,
    NO_OLDER,
    NO_SEQUENCE,
    OLDER_BYTES,
    ProducerStateEntry,
    add_sequence,
    stored_batch,
)
from kbroker.storage.producers.snapshot import (
    ENTRY,
    SnapshotEntry,
    begin_snapshot,
    decode_snapshot,
    end_snapshot,
    iter_entries,
)
from protocol.records.batch import TRANSACTIONAL
from protocol.records.checksum import crc32c

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
