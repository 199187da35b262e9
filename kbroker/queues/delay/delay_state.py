"""The pending records of a partition: delayed records in the log that the log has neither delivered nor cancelled.

The state follows from the batches of the log, in their order: only `replay` changes it. So every leader arrives at the
same state, whatever the former leader had done before its leadership ended.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import itemgetter
from struct import Struct
from struct import error as StructError

from kbroker.queues.delay.delay_batches import Effects, is_transactional
from kbroker.queues.delay.pending_records import Pending, PendingRecords
from kbroker.runtime.turns import yield_if_due
from protocol.records.batch import BatchHeader
from protocol.records.checksum import crc32c

_VERSION = 1
# Version, next offset, leader epoch of the last replayed batch, number of chunks, number of open transactions.
_HEADER = Struct(">hqiii")
_COUNT = Struct(">i")
_TRANSACTION = Struct(">qi")
_PAIR = Struct(">qq")
_CRC = Struct(">I")
# What is read, written or added without a pause.
_STEP_BYTES, _STEP_ENTRIES = 1 << 17, 256
_ADDED_AT_ONCE = 64


@dataclass(slots=True, eq=False)
class DelayState:
    """`pending`: records to deliver when they are due. `open`: delayed records of open transactions, by producer id.

    Everything below `next_offset` was replayed; `leader_epoch` is the epoch of the last replayed batch.
    """

    next_offset: int = 0
    pending: PendingRecords = field(default_factory=PendingRecords)
    open: dict[int, list[Pending]] = field(default_factory=dict)
    leader_epoch: int = -1

    @property
    def count(self) -> int:
        """The number of pending records, including those of open transactions."""
        return len(self.pending) + sum(map(len, self.open.values()))

    def replay(self, header: BatchHeader, effects: Effects) -> None:
        """Apply the next batch of the log."""
        if effects.ends:
            stored = self.open.pop(header.producer_id, [])
            if effects.committed:
                self._add(stored)
        self.pending.discard_all(effects.removed)
        if is_transactional(header):
            if effects.added:
                self.open.setdefault(header.producer_id, []).extend(effects.added)
        else:
            self._add(effects.added)
        self.next_offset = header.next_offset
        self.leader_epoch = header.leader_epoch

    def is_open(self, producer_id: int, entry: Pending) -> bool:
        """Return whether an open transaction of this producer has the record."""
        entries = self.open.get(producer_id, [])
        at = bisect_left(entries, entry[1], key=itemgetter(1))
        return at < len(entries) and entries[at] == entry

    def add_some(self, entries: list[Pending], base_offset: int = 0) -> None:
        """Add records of the next batch, in turns; `replay` need not add them again.

        `base_offset`: to which the offsets of the entries are relative.
        """
        for at in range(0, len(entries), _ADDED_AT_ONCE):
            self._add([(due, base_offset + offset) for due, offset in entries[at : at + _ADDED_AT_ONCE]])
            yield_if_due()

    def commit_some(self, producer_id: int, limit: int) -> bool:
        """Add at most `limit` records of a transaction whose commit is the next batch. Returns whether more are left.

        `replay` adds the rest. A transaction may have any number of records.
        """
        stored = self.open.get(producer_id, [])
        some = stored[-limit:]
        del stored[-limit:]
        self._add(some)
        return bool(stored)

    def _add(self, entries: list[Pending]) -> None:
        for entry in entries:
            self.pending.add(entry)

    def lowest_offset(self) -> int | None:
        """Return the lowest offset of a pending record, including those of open transactions."""
        # Those of a transaction are in the order of their offsets.
        offsets = [entries[0][1] for entries in self.open.values() if entries]
        lowest = self.pending.lowest_offset()
        if lowest is not None:
            offsets.append(lowest)
        return min(offsets, default=None)

    def drop_below(self, log_start_offset: int) -> None:
        """Remove records that DeleteRecords has deleted, in turns."""
        self.pending.drop_below(log_start_offset)
        for producer_id, entries in list(self.open.items()):
            if any(entry[1] < log_start_offset for entry in entries):
                self.open[producer_id] = [entry for entry in entries if entry[1] >= log_start_offset]
                yield_if_due()

    # Snapshots.

    def to_snapshot(self, prefix: bytes) -> bytearray:
        """Encode the state as it is now, after `prefix`, in turns.

        Later changes do not matter, except that no transaction may end.
        """
        chunks = self.pending.share_chunks()
        transactions = [(producer_id, entries, len(entries)) for producer_id, entries in self.open.items()]
        out = bytearray(prefix + bytes(_CRC.size))
        out += _HEADER.pack(_VERSION, self.next_offset, self.leader_epoch, len(chunks), len(transactions))
        for dues, offsets in chunks:
            out += _COUNT.pack(len(dues) * dues.itemsize)
            out += memoryview(dues).cast("B")
            out += memoryview(offsets).cast("B")
            yield_if_due()
        for producer_id, entries, count in transactions:
            out += _TRANSACTION.pack(producer_id, count)
            for at in range(0, count, _STEP_ENTRIES):
                out += b"".join([_PAIR.pack(*entry) for entry in entries[at : min(at + _STEP_ENTRIES, count)]])
                yield_if_due()
        crc = _crc_of(out, len(prefix) + _CRC.size)
        _CRC.pack_into(out, len(prefix), crc)
        return out

    @classmethod
    def from_snapshot(cls, data: bytes, start: int = 0) -> "DelayState":
        """Read the snapshot at `start`, in turns. Raises ValueError if it is damaged."""
        try:
            pos = start + _CRC.size
            crc = _crc_of(data, pos)
            if _CRC.unpack_from(data, start)[0] != crc:
                raise ValueError("the snapshot does not match its CRC")
            version, next_offset, leader_epoch, chunk_count, open_count = _HEADER.unpack_from(data, pos)
            if version != _VERSION:
                raise ValueError(f"a snapshot of version {version}")
            pos += _HEADER.size
            state = cls(next_offset)
            state.leader_epoch = leader_epoch
            for _ in range(chunk_count):
                (size,) = _COUNT.unpack_from(data, pos)
                middle = pos + _COUNT.size + size
                state.pending.load_chunk(data[pos + _COUNT.size : middle], data[middle : middle + size])
                pos = middle + size
                yield_if_due()
            for _ in range(open_count):
                producer_id, count = _TRANSACTION.unpack_from(data, pos)
                pos += _TRANSACTION.size
                entries: list[Pending] = []
                while len(entries) < count:
                    some = range(min(_STEP_ENTRIES, count - len(entries)))
                    entries += [_PAIR.unpack_from(data, pos + at * _PAIR.size) for at in some]
                    pos += len(some) * _PAIR.size
                    yield_if_due()
                state.open[producer_id] = entries
        except StructError:
            raise ValueError("the snapshot is cut off") from None
        return state


def _crc_of(data: bytes | bytearray, pos: int) -> int:
    """Return the CRC-32C of the bytes from `pos` on."""
    crc, view = 0, memoryview(data)
    for at in range(pos, len(view), _STEP_BYTES):
        crc = crc32c(view[at : at + _STEP_BYTES], crc)
        yield_if_due()
    return crc
