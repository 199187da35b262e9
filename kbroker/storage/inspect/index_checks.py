"""Reads indexes and producer snapshots without trusting them, and compares them with the batches of a log.

The batches are passed to the checks in order.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from kbroker.runtime.disk import DiskFile
from kbroker.storage.inspect.batches import BatchAt, Damage
from kbroker.storage.producers.producer_table import SnapshotEntry, decode_damaged_snapshot, decode_snapshot
from protocol.records.batch import BatchHeader

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")
# Version, producer id, first offset, last offset, last stable offset of an aborted transaction (KIP-98).
TRANSACTION_ENTRY = Struct(">hqqqq")

_ENTRIES_PER_READ = 1 << 13
_CAUSE_OF_ZEROS = ", as a power failure leaves them, or an Apache Kafka that runs"


class IndexEntry(NamedTuple):
    """An entry at byte `position` of an index. `values` are those of its Struct, `fault` is what is wrong with it."""

    position: int
    values: tuple[int, ...]
    fault: str | None = None


def iter_offset_entries(file: DiskFile, end: int) -> Iterator[IndexEntry | Damage]:
    """Yield entries with the last offset of a batch, relative to the segment's base offset, and its position."""
    return _iter_ascending(file, end, OFFSET_ENTRY)


def iter_time_entries(file: DiskFile, end: int) -> Iterator[IndexEntry | Damage]:
    """Yield entries with a timestamp in milliseconds, and an offset relative to the segment's base offset."""
    return _iter_ascending(file, end, TIME_ENTRY)


def iter_transaction_entries(file: DiskFile, end: int) -> Iterator[IndexEntry | Damage]:
    """Yield entries with version, producer id, first offset, last offset, last stable offset."""
    for entry in _iter_entries(file, end, TRANSACTION_ENTRY):
        if isinstance(entry, IndexEntry) and entry.values[0] != 0:
            entry = entry._replace(fault=f"unknown version {entry.values[0]}")
        yield entry


def _iter_ascending(file: DiskFile, end: int, struct: Struct) -> Iterator[IndexEntry | Damage]:
    """Yield entries whose two values must both ascend.

    Zeros at the end are padding: Apache Kafka allocates an index file larger than its content and truncates it when the
    segment is closed. A power loss leaves zeros, too.
    """
    previous = (-1, -1)
    padding_start: int | None = None
    for entry in _iter_entries(file, end, struct):
        if isinstance(entry, IndexEntry):
            if entry.values == (0, 0) and (end > struct.size or struct is OFFSET_ENTRY):
                if padding_start is None:
                    padding_start = _find_padding(file, end - end % struct.size, struct.size)
                if entry.position >= padding_start:
                    size = end - entry.position
                    yield Damage(entry.position, size, None, f"{size // struct.size} entries of zeros{_CAUSE_OF_ZEROS}")
                    return
            if min(entry.values) < 0:
                entry = entry._replace(fault="an entry is negative")
            elif entry.values[0] <= previous[0] or entry.values[1] <= previous[1]:
                entry = entry._replace(fault="the entries do not ascend")
            else:
                previous = entry.values[0], entry.values[1]
        yield entry


def _iter_entries(file: DiskFile, end: int, struct: Struct) -> Iterator[IndexEntry | Damage]:
    entries_end = end - end % struct.size
    position = 0
    while position < entries_end:
        data = file.pread(min(_ENTRIES_PER_READ * struct.size, entries_end - position), position)
        data = data[: len(data) - len(data) % struct.size]
        if not data:
            return
        for values in struct.iter_unpack(data):
            yield IndexEntry(position, values)
            position += struct.size
    if entries_end < end:
        remaining = end - entries_end
        yield Damage(entries_end, remaining, None, f"{remaining} bytes are less than an entry of {struct.size}")


def _find_padding(file: DiskFile, end: int, width: int) -> int:
    """Return the position of the entry from which on everything is zero."""
    while end > 0:
        size = min(_ENTRIES_PER_READ, end)
        data = file.pread(size, end - size).rstrip(b"\0")
        if data:
            return -(-(end - size + len(data)) // width) * width
        end -= size
    return 0


def decode_producer_entries(data: bytes) -> tuple[list[SnapshotEntry], str | None]:
    """Return the readable entries of a producer snapshot, and its faults."""
    try:
        return list(decode_snapshot(data)[0]), None
    except ValueError as error:
        return list(decode_damaged_snapshot(data)), str(error)


# The default of producer.id.expiration.ms. A producer without batches for that time may be missing from a snapshot.
_EXPIRATION_MS = 86_400_000


class OpenTransactionCheck:
    """The first offset of each producer's open transaction, according to the batches so far.

    Some transactions are unknown: with `has_gaps`, where compaction has removed batches, and before the start of the
    log.
    """

    def __init__(self, has_gaps: bool) -> None:
        self.first_offsets: dict[int, int] = {}
        self.has_gaps = has_gaps
        self._log_start = self._next_offset = -1

    def on_batch(self, header: BatchHeader) -> None:
        if self._next_offset < 0:
            self._log_start = header.base_offset
        elif self._next_offset != header.base_offset:
            self.has_gaps = True
        self._next_offset = header.next_offset
        if not header.is_transactional or header.producer_id < 0:
            return
        if header.is_control:
            self.first_offsets.pop(header.producer_id, None)
        else:
            self.first_offsets.setdefault(header.producer_id, header.base_offset)

    def compare(self, snapshot: bytes) -> Iterator[str]:
        """Return the faults of a snapshot at the current offset, if its entries can be read."""
        entries, fault = decode_producer_entries(snapshot)
        for entry in entries if fault is None else ():
            start = entry.txn_first_offset
            expected = self.first_offsets.get(entry.producer_id, -1)
            if start != expected and not self.has_gaps and not -1 < start < self._log_start:
                in_log = "there is none" if expected < 0 else f"it has one from offset {expected}"
                in_snapshot = "no transaction open" if start < 0 else f"a transaction open from offset {start}"
                yield f"producer {entry.producer_id} has {in_snapshot}, in the log {in_log}"


class _LastBatch(NamedTuple):
    """The last batch of a producer, with the fields of a snapshot; `timestamp` is its max timestamp."""

    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


class ProducerCheck:
    """Tracks the last batch of each producer, and compares it with snapshots."""

    def __init__(self) -> None:
        self._last: dict[int, _LastBatch] = {}
        self._next_offset = -1
        self._has_gaps = False

    def on_batch(self, header: BatchHeader) -> None:
        # Compaction leaves gaps, and removes the batches of producers that were expired.
        self._has_gaps = self._has_gaps or self._next_offset not in (-1, header.base_offset)
        self._next_offset = header.next_offset
        producer_id, epoch = header.producer_id, header.producer_epoch
        if producer_id < 0:
            return
        if header.is_control:
            last = self._last.get(producer_id)
            if last is None or last.epoch != epoch:
                self._last[producer_id] = _LastBatch(epoch, -1, -1, 0, header.max_timestamp)
            return
        self._last[producer_id] = _LastBatch(
            epoch, header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp
        )

    def compare(self, snapshot: bytes, written_ms: int) -> Iterator[str]:
        """Return the faults of a snapshot at the current offset. Producers from before the log start are unknown."""
        entries, fault = decode_producer_entries(snapshot)
        if fault is not None:
            yield fault
            return
        listed = set()
        for entry in entries:
            listed.add(entry.producer_id)
            last = self._last.get(entry.producer_id)
            if last is None or (self._has_gaps and last.last_offset < entry.last_offset):
                continue
            if last[:4] != (entry.producer_epoch, entry.last_sequence, entry.last_offset, entry.offset_delta):
                yield (
                    f"producer {entry.producer_id} has epoch {entry.producer_epoch} and sequence "
                    f"{entry.last_sequence} at offset {entry.last_offset}, in the log epoch {last.epoch} and sequence "
                    f"{last.last_sequence} at offset {last.last_offset}"
                )
        for producer_id in self._last.keys() - listed:
            last = self._last[producer_id]
            if written_ms - last.timestamp < _EXPIRATION_MS:
                yield f"producer {producer_id} is missing, whose last batch is at offset {last.last_offset}"


_MAX_OFFSET = 1 << 63


class IndexFinding(NamedTuple):
    """A fault at byte `position` of an index; `offset`: the offset in the log that it concerns, if any."""

    position: int
    offset: int | None
    what: str


class _IndexCheck:
    """Iterates over the entries of an index. Invalid ones are reported and skipped."""

    def __init__(self, base_offset: int, entries: Iterator[IndexEntry | Damage]) -> None:
        self._base_offset = base_offset
        self._entries = entries
        self._found: list[IndexFinding] = []
        self._entry = self._next_entry()

    def _next_entry(self) -> IndexEntry | None:
        for entry in self._entries:
            if isinstance(entry, Damage):
                self._found.append(IndexFinding(entry.position, entry.offset, entry.reason))
            elif entry.fault is not None:
                self._found.append(IndexFinding(entry.position, None, entry.fault))
            else:
                return entry
        return None

    def _add(self, entry: IndexEntry, offset: int, what: str) -> None:
        self._found.append(IndexFinding(entry.position, offset, what))

    def _take_findings(self) -> list[IndexFinding]:
        found, self._found = self._found, []
        return found


class OffsetIndexCheck(_IndexCheck):
    """Checks that each entry points to the position of a batch, and has its last offset."""

    def on_batch(self, batch: BatchAt | Damage) -> list[IndexFinding]:
        """Check the entries that point to this batch or damage."""
        while (entry := self._entry) is not None and entry.values[1] < batch.end:
            relative_offset, position = entry.values
            offset = self._base_offset + relative_offset
            if isinstance(batch, BatchAt):
                last_offset = batch.header.last_offset
                if position != batch.position:
                    self._add(entry, offset, f"points to byte {position}, where no batch begins")
                elif offset != last_offset and batch.fault is None:
                    self._add(entry, offset, f"the batch at byte {position} ends with offset {last_offset}")
            self._entry = self._next_entry()
        return self._take_findings()

    def on_end(self, size: int) -> list[IndexFinding]:
        """Check the remaining entries of a segment of `size` bytes."""
        while (entry := self._entry) is not None:
            relative_offset, position = entry.values
            self._add(entry, self._base_offset + relative_offset, f"points to byte {position} of {size}")
            self._entry = self._next_entry()
        return self._take_findings()


class TimeIndexCheck(_IndexCheck):
    """Checks that each entry has the max timestamp of the batch with its offset, larger than all before it."""

    def __init__(self, base_offset: int, entries: Iterator[IndexEntry | Damage]) -> None:
        super().__init__(base_offset, entries)
        self._max_timestamp = -1
        self._max_timestamp_offset = base_offset
        self._last_indexed = -1
        # False after damage: a batch with the timestamp of an entry may then be missing.
        self._is_complete = True

    def on_batch(self, batch: BatchAt | Damage) -> list[IndexFinding]:
        """Check the entries with an offset of this batch."""
        if isinstance(batch, Damage) or batch.fault is not None:
            self._is_complete = False
            return self._take_findings()
        header = batch.header
        while (entry := self._entry) is not None and self._base_offset + entry.values[1] <= header.last_offset:
            timestamp, relative_offset = entry.values
            fault = self._find_fault(timestamp, self._base_offset + relative_offset, header)
            if fault is not None and self._is_complete:
                self._add(entry, self._base_offset + relative_offset, fault)
            self._last_indexed = timestamp
            self._entry = self._next_entry()
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = header.max_timestamp, header.last_offset
        return self._take_findings()

    def _find_fault(self, timestamp: int, offset: int, header: BatchHeader) -> str | None:
        if offset < header.base_offset:
            return "has an offset that is in no batch"
        if timestamp != header.max_timestamp:
            return f"has timestamp {timestamp}, the batch {header.max_timestamp}"
        if self._max_timestamp >= timestamp:
            largest, offset = self._max_timestamp, self._max_timestamp_offset
            return f"has timestamp {timestamp}, but offset {offset} before it has {largest}"
        return None

    def on_end(self, is_closed: bool) -> list[IndexFinding]:
        """Check the remaining entries. In a closed segment the last one must have the largest timestamp."""
        while (entry := self._entry) is not None:
            if self._is_complete:
                self._add(entry, self._base_offset + entry.values[1], "has an offset beyond the last batch")
            self._last_indexed = entry.values[0]
            self._entry = self._next_entry()
        if is_closed and self._is_complete and self._max_timestamp > self._last_indexed:
            offset, timestamp = self._max_timestamp_offset, self._max_timestamp
            what = f"ends with timestamp {self._last_indexed}, but offset {offset} has {timestamp}"
            self._found.append(IndexFinding(0, offset, what))
        return self._take_findings()


class TransactionIndexCheck(_IndexCheck):
    """Checks that the entries are exactly those of the abort markers in the segment."""

    def __init__(
        self, entries: Iterator[IndexEntry | Damage], open_transactions: OpenTransactionCheck, is_complete: bool
    ) -> None:
        """`is_complete`: all entries must be in the file. Otherwise some may be only in the memory of a broker."""
        super().__init__(0, entries)
        self._open_transactions = open_transactions
        self._is_complete = is_complete

    def on_batch(self, header: BatchHeader, is_abort: bool) -> list[IndexFinding]:
        """Check the entries up to this batch. Called before it is passed to `open_transactions`."""
        self._skip_before(header.base_offset, "no transaction was aborted there")
        transactions = self._open_transactions
        first_offset = transactions.first_offsets.get(header.producer_id) if is_abort else None
        entry = self._entry
        if entry is None or entry.values[3] != header.base_offset:
            if first_offset is not None and self._is_complete and not transactions.has_gaps:
                what = (
                    f"lacks the transaction that producer {header.producer_id} aborted at offset {header.base_offset}"
                )
                self._found.append(IndexFinding(0, first_offset, what))
            return self._take_findings()
        _, producer_id, entry_first, entry_last, _ = entry.values
        if not transactions.has_gaps:
            if not is_abort or producer_id != header.producer_id:
                self._add(entry, entry_last, f"producer {producer_id} aborted no transaction there")
            elif first_offset not in (None, entry_first):
                what = f"has offset {entry_first}, but the transaction begins at {first_offset}"
                self._add(entry, entry_last, what)
        self._entry = self._next_entry()
        return self._take_findings()

    def on_end(self) -> list[IndexFinding]:
        self._skip_before(_MAX_OFFSET, "has an offset beyond the last batch")
        return self._take_findings()

    def _skip_before(self, offset: int, what: str) -> None:
        """Report the entries whose marker would be before `offset`, since there was no such batch."""
        while (entry := self._entry) is not None and entry.values[3] < offset:
            if not self._open_transactions.has_gaps:
                self._add(entry, entry.values[3], what)
            self._entry = self._next_entry()
