"""What clients may see of a topic with delayed delivery, and of one with idempotency keys.

The rules suppose that the topics lose nothing in a crash, and that a record is sent once: a producer without a response
does not repeat it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from protocol.records.record import Header

# Headers of a delivered record: the offset at which it was stored, and when it was due.
FROM, DUE = b"kbroker.delayed.from", b"kbroker.delayed.due.ms"


class BrokenQueue(AssertionError):
    """A record is missing, there twice, early or in the wrong order, or a response contradicts the log."""


class SeenRecord(NamedTuple):
    """A record that a consumer received. `due_ms` and `stored_at`: None unless it was delivered after a delay."""

    offset: int
    value: int
    timestamp: int
    due_ms: int | None = None
    stored_at: int | None = None

    @classmethod
    def of(cls, offset: int, value: int, timestamp: int, headers: Iterable[Header]) -> "SeenRecord":
        found = dict(headers)
        due, stored = found.get(DUE), found.get(FROM)
        return cls(offset, value, timestamp, None if due is None else int(due), None if stored is None else int(stored))


class DelayedRecords:
    """The records that producers sent to a topic with delayed delivery, and what was acknowledged."""

    def __init__(self) -> None:
        # By value: the time at which it is due if the record names it, 0 if it names a delay, None without any.
        self._sent: dict[int, int | None] = {}
        self._acknowledged: set[int] = set()
        self._seen: dict[int, SeenRecord] = {}

    def send(self, due_ms: dict[int, int | None]) -> None:
        self._sent |= due_ms

    def acknowledge(self, values: Iterable[int]) -> None:
        self._acknowledged.update(values)

    def read(self, records: Iterable[SeenRecord]) -> None:
        """Remember what a consumer has read during the faults. Raises BrokenQueue if an offset has two records."""
        for record in records:
            if self._seen.setdefault(record.offset, record) != record:
                raise BrokenQueue(f"offset {record.offset} has {record}, and had {self._seen[record.offset]}")

    def is_complete(self, log: Sequence[SeenRecord]) -> bool:
        """Return whether consumers see all records that were acknowledged."""
        return self._acknowledged <= {record.value for record in log}

    def check(self, log: Sequence[SeenRecord]) -> None:
        """Check the whole log, which is complete, in the order of its offsets. Raises BrokenQueue."""
        values: dict[int, int] = {}
        stored_at: dict[int, int] = {}
        for record in log:
            if record.value not in self._sent:
                raise BrokenQueue(f"offset {record.offset} has the value {record.value}, which was not sent")
            first = values.setdefault(record.value, record.offset)
            if first != record.offset:
                raise BrokenQueue(f"value {record.value} is there twice: at offsets {first} and {record.offset}")
            self._check_due(record)
            if record.due_ms is not None and record.stored_at is not None:
                before = stored_at.get(record.due_ms, -1)
                if record.stored_at < before:
                    raise BrokenQueue(f"due at the same time, {record.stored_at} was delivered after {before}")
                stored_at[record.due_ms] = record.stored_at
        self.read(log)
        lost = self._seen.keys() - set(values.values())
        if lost:
            raise BrokenQueue(f"offsets that were read are gone: {sorted(lost)[:10]}")

    def _check_due(self, record: SeenRecord) -> None:
        wanted, due_ms = self._sent[record.value], record.due_ms
        if due_ms is None:
            # A time may have passed when the record arrived.
            if wanted == 0:
                raise BrokenQueue(f"{record} was not delayed")
        elif wanted is None or (wanted and wanted != due_ms):
            raise BrokenQueue(f"{record} was due at {wanted}")
        elif record.timestamp < due_ms:
            raise BrokenQueue(f"{record} was delivered {due_ms - record.timestamp} ms early")


class KeyedRecords:
    """The records that producers sent to a topic with idempotency keys: each key is stored once."""

    def __init__(self) -> None:
        self._keys: dict[int, int] = {}
        # (keys of a batch, base offset of its response)
        self._acknowledged: set[tuple[tuple[int, ...], int]] = set()

    def send(self, value: int, key: int) -> None:
        self._keys[value] = key

    def acknowledge(self, values: Iterable[int], base_offset: int) -> None:
        """Add the response to a batch. Clients compute the offset of each record from it."""
        self._acknowledged.add((tuple([self._keys[value] for value in values]), base_offset))

    def check(self, log: Sequence[SeenRecord]) -> None:
        """Check the whole log. Raises BrokenQueue."""
        offsets: dict[int, int] = {}
        for record in log:
            key = self._keys.get(record.value)
            if key is None:
                raise BrokenQueue(f"offset {record.offset} has the value {record.value}, which was not sent")
            first = offsets.setdefault(key, record.offset)
            if first != record.offset:
                raise BrokenQueue(f"key {key} is stored twice: at offsets {first} and {record.offset}")
        for keys, base_offset in sorted(self._acknowledged):
            lost = set(keys) - offsets.keys()
            if lost:
                raise BrokenQueue(f"keys {sorted(lost)[:10]} were acknowledged, and are not stored")
            computed = range(base_offset, base_offset + len(keys))
            stored = [offsets[key] for key in keys]
            if computed.stop <= 0:
                # No offset is known, since a response cannot express those of this batch.
                if stored == list(range(stored[0], stored[0] + len(keys))):
                    raise BrokenQueue(f"keys {keys} were acknowledged without offsets, and are at {stored}")
            elif stored != list(computed):
                raise BrokenQueue(f"keys {keys} were acknowledged with offset {base_offset}, and are at {stored}")
