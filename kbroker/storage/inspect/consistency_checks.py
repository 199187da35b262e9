"""Comparing what is kept about a log with its batches, while those pass by in order.

Findings are (position in the file of the index, offset, what is wrong).
"""

from collections.abc import Iterator

from kbroker.storage.inspect.batches import BatchAt, Damage
from kbroker.storage.inspect.index_files import IndexEntry, producer_entries
from protocol.records.batch import BatchHeader

Told = Iterator[tuple[int, int | None, str]]

# producer.id.expiration.ms by default: a producer that was silent for so long may be missing from a snapshot.
EXPIRATION_MS = 86_400_000


class _IndexCheck:
    """Takes the entries of an index one by one. Those that are wrong in themselves are told and passed over."""

    def __init__(self, base_offset: int, entries: Iterator[IndexEntry | Damage]) -> None:
        self._base = base_offset
        self._entries = entries
        self._told: list[tuple[int, int | None, str]] = []
        self._entry = self._next()

    def _next(self) -> IndexEntry | None:
        for found in self._entries:
            if isinstance(found, Damage):
                self._told.append((found.position, found.offset, found.reason))
            elif found.fault is not None:
                self._told.append((found.at, None, found.fault))
            else:
                return found
        return None

    def _flush(self) -> Told:
        told, self._told = self._told, []
        yield from told


class OffsetIndexCheck(_IndexCheck):
    """Each entry points at where a batch begins, and has its last offset."""

    def see(self, found: BatchAt | Damage) -> Told:
        end = found.end if isinstance(found, BatchAt) else found.position + found.size
        while (entry := self._entry) is not None and entry.values[1] < end:
            relative, position = entry.values
            offset = self._base + relative
            if isinstance(found, BatchAt) and position != found.position:
                self._told.append((entry.at, offset, f"points at byte {position}, where no batch begins"))
            elif isinstance(found, BatchAt) and offset != found.header.last_offset and found.fault is None:
                last = found.header.last_offset
                self._told.append((entry.at, offset, f"the batch at byte {position} ends at offset {last}"))
            self._entry = self._next()
        return self._flush()

    def end(self, size: int) -> Told:
        while (entry := self._entry) is not None:
            relative, position = entry.values
            self._told.append((entry.at, self._base + relative, f"points at byte {position} of {size}"))
            self._entry = self._next()
        return self._flush()


class TimeIndexCheck(_IndexCheck):
    """Each entry has the timestamp of the batch with its offset, which is larger than all before it."""

    def __init__(self, base_offset: int, entries: Iterator[IndexEntry | Damage]) -> None:
        super().__init__(base_offset, entries)
        self._largest = -1
        self._largest_at = base_offset
        self._last_entry = -1
        self._whole = True

    def see(self, found: BatchAt | Damage) -> Told:
        if isinstance(found, Damage) or found.fault is not None:
            self._whole = False
            return self._flush()
        header = found.header
        while (entry := self._entry) is not None and self._base + entry.values[1] <= header.last_offset:
            timestamp, relative = entry.values
            what = self._fault(timestamp, self._base + relative, header)
            if what is not None and self._whole:
                self._told.append((entry.at, self._base + relative, what))
            self._last_entry = timestamp
            self._entry = self._next()
        if header.max_timestamp > self._largest:
            self._largest, self._largest_at = header.max_timestamp, header.last_offset
        return self._flush()

    def _fault(self, timestamp: int, offset: int, header: BatchHeader) -> str | None:
        if offset < header.base_offset:
            return "has an offset that is in no batch"
        if timestamp != header.max_timestamp:
            return f"has timestamp {timestamp}, the batch {header.max_timestamp}"
        if self._largest >= timestamp:
            return f"has timestamp {timestamp}, but offset {self._largest_at} has {self._largest} before it"
        return None

    def end(self, closed: bool) -> Told:
        """`closed`: the last entry must have the largest timestamp of all."""
        while (entry := self._entry) is not None:
            if self._whole:
                self._told.append((entry.at, self._base + entry.values[1], "has an offset beyond the last batch"))
            self._last_entry = entry.values[0]
            self._entry = self._next()
        if closed and self._whole and self._largest > self._last_entry:
            what = f"ends with timestamp {self._last_entry}, but offset {self._largest_at} has {self._largest}"
            self._told.append((0, self._largest_at, what))
        return self._flush()


class OpenTransactionCheck:
    """Where the open transaction of each producer begins, as far as the log tells: what compaction has taken (`gaps`),
    and what lies before the log, hides some."""

    def __init__(self, gaps: bool) -> None:
        self.begin: dict[int, int] = {}
        self.gaps = gaps
        self._first = self._next = -1

    def see(self, header: BatchHeader) -> None:
        if self._next < 0:
            self._first = header.base_offset
        elif self._next != header.base_offset:
            self.gaps = True
        self._next = header.next_offset
        if not header.is_transactional or header.producer_id < 0:
            return
        if header.is_control:
            self.begin.pop(header.producer_id, None)
        else:
            self.begin.setdefault(header.producer_id, header.base_offset)

    def compare(self, snapshot: bytes) -> Iterator[str]:
        """What is wrong with a snapshot of the offset that has been reached, if its entries can be read."""
        entries, fault = producer_entries(snapshot)
        for producer_id, *_, start in entries if fault is None else ():
            begin = self.begin.get(producer_id, -1)
            if start != begin and not self.gaps and not -1 < start < self._first:
                ours = "there is none" if begin < 0 else f"it has one from offset {begin}"
                theirs = "no transaction open" if start < 0 else f"a transaction open from offset {start}"
                yield f"producer {producer_id} has {theirs}, in the log {ours}"


class AbortedCheck(_IndexCheck):
    """Each entry is of a transaction whose abort is in the segment, and each of those has an entry."""

    def __init__(self, entries: Iterator[IndexEntry | Damage], open_: OpenTransactionCheck, complete: bool) -> None:
        """`complete`: all entries must be there, none is in the memory of a broker."""
        super().__init__(0, entries)
        self._open = open_
        self._complete = complete

    def see(self, header: BatchHeader, aborts: bool) -> Told:
        """A batch, before `open_` has seen it. `aborts`: it is the marker of an abort."""
        self._pass(header.base_offset, "no transaction was aborted there")
        first = self._open.begin.get(header.producer_id) if aborts else None
        entry = self._entry
        if entry is None or entry.values[3] != header.base_offset:
            if first is not None and self._complete and not self._open.gaps:
                what = f"has nothing of what producer {header.producer_id} aborted at offset {header.base_offset}"
                self._told.append((0, first, what))
            return self._flush()
        _, producer_id, begins, last, _ = entry.values
        if self._open.gaps:
            pass
        elif not aborts or producer_id != header.producer_id:
            self._told.append((entry.at, last, f"producer {producer_id} aborted no transaction there"))
        elif first not in (None, begins):
            self._told.append((entry.at, last, f"has offset {begins}, but the transaction begins at {first}"))
        self._entry = self._next()
        return self._flush()

    def end(self) -> Told:
        self._pass(1 << 63, "has an offset beyond the last batch")
        return self._flush()

    def _pass(self, offset: int, what: str) -> None:
        """Entries of markers before `offset` that no batch was for."""
        while (entry := self._entry) is not None and entry.values[3] < offset:
            if not self._open.gaps:
                self._told.append((entry.at, entry.values[3], what))
            self._entry = self._next()


# Epoch, last sequence, last offset, offset delta, as a snapshot has them, and the timestamp.
_Last = tuple[int, int, int, int, int]


class ProducersCheck:
    """The last batch of each producer so far, to be compared with snapshots."""

    def __init__(self) -> None:
        self._last: dict[int, _Last] = {}
        self._next = -1
        self._gaps = False

    def see(self, header: BatchHeader) -> None:
        # Compaction leaves gaps, and takes batches of producers that were silent for long.
        self._gaps = self._gaps or self._next not in (-1, header.base_offset)
        self._next = header.next_offset
        if header.producer_id < 0:
            return
        if header.is_control:
            known = self._last.get(header.producer_id)
            if known is None or known[0] != header.producer_epoch:
                self._last[header.producer_id] = (header.producer_epoch, -1, -1, 0, header.max_timestamp)
            return
        self._last[header.producer_id] = (
            header.producer_epoch, header.last_sequence, header.last_offset, header.last_offset_delta,
            header.max_timestamp,
        )  # fmt: skip

    def compare(self, snapshot: bytes, written_ms: int) -> Iterator[str]:
        """What is wrong with a snapshot of the offset that has been reached. What lies before the log is not known."""
        entries, fault = producer_entries(snapshot)
        if fault is not None:
            yield fault
            return
        listed = set()
        for producer_id, epoch, sequence, offset, delta, *_ in entries:
            listed.add(producer_id)
            known = self._last.get(producer_id)
            if known is None or (self._gaps and known[2] < offset):
                continue
            if known[:4] != (epoch, sequence, offset, delta):
                yield (
                    f"producer {producer_id} has epoch {epoch} and sequence {sequence} at offset {offset}, "
                    f"in the log epoch {known[0]} and sequence {known[1]} at offset {known[2]}"
                )
        for producer_id in self._last.keys() - listed:
            if written_ms - self._last[producer_id][4] < EXPIRATION_MS:
                yield f"producer {producer_id} is missing, whose last batch is at offset {self._last[producer_id][2]}"
