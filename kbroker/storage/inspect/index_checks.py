"""Compares the indexes of a segment with its batches, which are passed to the checks in order."""

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.storage.inspect.batches import BatchAt, Damage
from kbroker.storage.inspect.index_files import IndexEntry
from kbroker.storage.inspect.producer_checks import OpenTransactionCheck
from protocol.records.batch import BatchHeader

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
