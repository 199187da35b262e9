"""What clients may see of topics with delayed delivery, idempotency keys, and partitions that close.

The rules suppose that the topics lose nothing in a crash, and that a record is sent once: a producer without a response
does not repeat it.
"""

from collections.abc import Iterable, Mapping, Sequence
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


class SeenRecords:
    """The records that consumers have received, by offset. An offset keeps its record."""

    def __init__(self) -> None:
        self.by_offset: dict[int, SeenRecord] = {}

    def add(self, records: Iterable[SeenRecord]) -> None:
        """Raises BrokenQueue if an offset has two records."""
        for record in records:
            seen = self.by_offset.setdefault(record.offset, record)
            if seen != record:
                raise BrokenQueue(f"offset {record.offset} has {record}, and had {seen}")


class PendingDelayedRecord(NamedTuple):
    """A record that is pending according to the broker."""

    offset: int
    value: int
    due_ms: int


class DelayedRecords:
    """The records that producers sent to a topic with delayed delivery, and what may have become of them.

    Retention keeps pending records, and DeleteRecords does not. An operator cancels records, or delivers them before
    they are due.
    """

    def __init__(self) -> None:
        # By value: when it is due, 0 if that depends on the broker's clock, None without a delay.
        self._due_ms: dict[int, int | None] = {}
        # By value: its offset in the response.
        self._acknowledged: dict[int, int] = {}
        self._seen = SeenRecords()
        # By value: where a consumer has seen it.
        self._offsets: dict[int, int] = {}
        self._deleted_below = 0
        # Values that the operator has asked to cancel or to deliver, and those that certainly were cancelled.
        self._changed: set[int] = set()
        self._cancelled: set[int] = set()

    def send(self, due_ms: Mapping[int, int | None]) -> None:
        self._due_ms |= due_ms

    def acknowledge(self, values: Sequence[int], base_offset: int) -> None:
        self._acknowledged |= {value: base_offset + index for index, value in enumerate(values)}

    def delete_below(self, offset: int) -> None:
        """Called before a DeleteRecords, which may then have its effect at any time."""
        self._deleted_below = max(self._deleted_below, offset)

    def change(self, value: int) -> None:
        """Called before a request that cancels or delivers a record."""
        self._changed.add(value)

    def cancelled(self, value: int) -> None:
        """Record that a cancellation has succeeded. Raises BrokenQueue if the record was delivered before."""
        self._cancelled.add(value)
        self._check_cancelled(value)

    def read(self, records: Sequence[SeenRecord]) -> None:
        """Check what a consumer has read. Raises BrokenQueue."""
        self._seen.add(records)
        for record in records:
            first = self._offsets.setdefault(record.value, record.offset)
            if first != record.offset:
                raise BrokenQueue(f"value {record.value} is there twice: at offsets {first} and {record.offset}")
            self._check_due(record)
            self._check_cancelled(record.value)

    def _check_due(self, record: SeenRecord) -> None:
        if record.value not in self._due_ms:
            raise BrokenQueue(f"offset {record.offset} has the value {record.value}, which was not sent")
        wanted, due_ms = self._due_ms[record.value], record.due_ms
        if due_ms is None:
            # A time may have passed when the record arrived.
            if wanted == 0:
                raise BrokenQueue(f"{record} was not delayed")
        elif record.value not in self._changed:
            if wanted is None or (wanted and wanted != due_ms):
                raise BrokenQueue(f"{record} was due at {wanted}")
            if record.timestamp < due_ms:
                raise BrokenQueue(f"{record} was delivered {due_ms - record.timestamp} ms early")

    def _check_cancelled(self, value: int) -> None:
        if value in self._cancelled and value in self._offsets:
            raise BrokenQueue(f"value {value} was cancelled, and delivered at offset {self._offsets[value]}")

    def is_complete(self) -> bool:
        """Return whether consumers have seen all records that were acknowledged."""
        return self._acknowledged.keys() <= self._offsets.keys()

    def check_log(self, log: Sequence[SeenRecord]) -> None:
        """Check the whole log of a topic without retention, in the order of its offsets. Raises BrokenQueue."""
        self.read(log)
        stored_at: dict[int, int] = {}
        for record in log:
            if record.due_ms is not None and record.stored_at is not None:
                before = stored_at.get(record.due_ms, -1)
                if record.stored_at < before:
                    raise BrokenQueue(f"due at the same time, {record.stored_at} was delivered after {before}")
                stored_at[record.due_ms] = record.stored_at
        lost = self._seen.by_offset.keys() - {record.offset for record in log}
        if lost:
            raise BrokenQueue(f"offsets that were read are gone: {sorted(lost)[:10]}")

    def check_pending(self, pending: Sequence[PendingDelayedRecord], now_ms: int) -> None:
        """Check all records that are pending after the faults. Raises BrokenQueue."""
        offsets: dict[int, int] = {}
        for offset, value, due_ms in pending:
            first = offsets.setdefault(value, offset)
            if first != offset:
                raise BrokenQueue(f"value {value} is pending twice: at offsets {first} and {offset}")
            if self._due_ms.get(value) != due_ms:
                raise BrokenQueue(f"value {value} is pending until {due_ms}, and is due at {self._due_ms.get(value)}")
            if value in self._offsets:
                raise BrokenQueue(f"value {value} is pending, and was delivered at offset {self._offsets[value]}")
            if value in self._cancelled:
                raise BrokenQueue(f"value {value} is pending, and was cancelled")
        for value, offset in self._acknowledged.items():
            due_ms = self._due_ms[value] or 0
            is_kept = due_ms > now_ms and offset >= self._deleted_below and value not in self._changed
            if is_kept and value not in offsets:
                raise BrokenQueue(f"value {value} was acknowledged at offset {offset}, is due at {due_ms}, and is gone")


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


# A topic whose partitions close: each record is in one place, in the order of its producer.

# A producer, and the partition to which it has sent.
Stream = tuple[int, int]


class ForwardedRecords:
    """The records that idempotent and transactional producers sent, and where consumers have seen them.

    A record stays where it was seen once, so that records which are deleted later count too.
    """

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}
        self._acknowledged: set[int] = set()
        self._aborted: set[int] = set()
        # The records of transactions whose outcome is unknown.
        self._unknown: list[frozenset[int]] = []
        # By value: partition and offset.
        self._seen: dict[int, tuple[int, int]] = {}

    def send(self, values: Iterable[int], stream: Stream) -> None:
        self._streams.update(dict.fromkeys(values, stream))

    def acknowledge(self, values: Iterable[int]) -> None:
        self._acknowledged.update(values)

    def abort(self, values: Iterable[int]) -> None:
        """Record that the transaction of these records was, or will be, aborted.

        Raises BrokenQueue if a consumer has seen one of them.
        """
        self._aborted.update(values)
        seen = self._aborted & self._seen.keys()
        if seen:
            raise BrokenQueue(f"the values {sorted(seen)[:10]} were read, and then aborted")

    def end_unknown(self, values: Iterable[int]) -> None:
        """Record that a transaction has an unknown outcome: consumers see all of its records, or none."""
        self._unknown.append(frozenset(values))

    def read(self, index: int, records: Iterable[SeenRecord]) -> None:
        """Remember what a consumer of committed records has read.

        Raises BrokenQueue if a record was not sent, was aborted, or is there twice.
        """
        for record in records:
            if record.value not in self._streams:
                raise BrokenQueue(f"offset {record.offset} of partition {index} has {record.value}, which was not sent")
            if record.value in self._aborted:
                raise BrokenQueue(f"offset {record.offset} of partition {index} has {record.value}, which was aborted")
            place = index, record.offset
            first = self._seen.setdefault(record.value, place)
            if first != place:
                raise BrokenQueue(f"value {record.value} is there twice: (partition, offset) {first} and {place}")

    def is_complete(self) -> bool:
        """Return whether consumers have seen all acknowledged and committed records, and no part of a transaction."""
        seen = self._seen.keys()
        return self._acknowledged <= seen and all(values <= seen or not values & seen for values in self._unknown)

    def check_order(self, log: Sequence[SeenRecord]) -> None:
        """Check one partition: what a producer has sent to one partition is in order. Raises BrokenQueue."""
        last: dict[Stream, SeenRecord] = {}
        for record in log:
            stream = self._streams[record.value]
            before = last.get(stream)
            if before is not None and before.value > record.value:
                raise BrokenQueue(f"{record} of {stream} is behind {before}")
            last[stream] = record
