"""The pending records of a partition: delayed records in the log that the log has neither delivered nor cancelled.

The state follows from the batches of the log, in their order: only `replay` changes it. So every leader arrives at the
same state, whatever the former leader had done before its leadership ended.
"""

from struct import Struct
from struct import error as StructError

from kbroker.queues.delay.delay_batches import Effects, is_transactional
from kbroker.queues.delay.pending_records import Pending, PendingRecords
from protocol.records.batch import BatchHeader
from protocol.records.checksum import crc32c

_VERSION = 1
# Version, next offset, leader epoch of the last replayed batch, number of chunks, number of open transactions.
_HEADER = Struct(">hqiii")
_COUNT = Struct(">i")
_TRANSACTION = Struct(">qi")
_PAIR = Struct(">qq")
_CRC = Struct(">I")


class DelayState:
    """`pending`: records to deliver when they are due. `open`: delayed records of open transactions, by producer id.

    Everything below `next_offset` was replayed; `leader_epoch` is the epoch of the last replayed batch.
    """

    __slots__ = ("leader_epoch", "next_offset", "open", "pending")

    def __init__(self, next_offset: int = 0) -> None:
        self.pending = PendingRecords()
        self.open: dict[int, list[Pending]] = {}
        self.next_offset = next_offset
        self.leader_epoch = -1

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
        for due_ms, offset in effects.removed:
            self.pending.discard(due_ms, offset)
        if is_transactional(header):
            if effects.added:
                self.open.setdefault(header.producer_id, []).extend(effects.added)
        else:
            self._add(effects.added)
        self.next_offset = header.next_offset
        self.leader_epoch = header.leader_epoch

    def _add(self, entries: list[Pending]) -> None:
        for due_ms, offset in entries:
            self.pending.add(due_ms, offset)

    def lowest_offset(self) -> int | None:
        """Return the lowest offset of a pending record, including those of open transactions."""
        offsets = [offset for entries in self.open.values() for _, offset in entries]
        lowest = self.pending.lowest_offset()
        if lowest is not None:
            offsets.append(lowest)
        return min(offsets, default=None)

    def drop_below(self, log_start_offset: int) -> int:
        """Remove records that DeleteRecords has deleted. Returns their number."""
        dropped = self.pending.below(log_start_offset, 1 << 62)
        for entry in dropped:
            self.pending.discard(*entry)
        for producer_id, entries in self.open.items():
            self.open[producer_id] = [entry for entry in entries if entry[1] >= log_start_offset]
        return len(dropped)

    # Snapshots.

    def to_snapshot(self) -> bytes:
        chunks = list(self.pending.chunks())
        parts = [_HEADER.pack(_VERSION, self.next_offset, self.leader_epoch, len(chunks), len(self.open))]
        for dues, offsets in chunks:
            parts += (_COUNT.pack(len(dues)), dues, offsets)
        for producer_id, entries in self.open.items():
            parts.append(_TRANSACTION.pack(producer_id, len(entries)))
            parts += [_PAIR.pack(*entry) for entry in entries]
        content = b"".join(parts)
        return _CRC.pack(crc32c(content)) + content

    @classmethod
    def from_snapshot(cls, data: bytes) -> "DelayState":
        """Read a snapshot. Raises ValueError if it is damaged."""
        try:
            if _CRC.unpack_from(data)[0] != crc32c(memoryview(data)[_CRC.size :]):
                raise ValueError("the snapshot does not match its CRC")
            pos = _CRC.size
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
            for _ in range(open_count):
                producer_id, count = _TRANSACTION.unpack_from(data, pos)
                pos += _TRANSACTION.size
                pairs = [_PAIR.unpack_from(data, pos + at * _PAIR.size) for at in range(count)]
                state.open[producer_id] = [(due, offset) for due, offset in pairs]
                pos += count * _PAIR.size
        except StructError:
            raise ValueError("the snapshot is cut off") from None
        return state
