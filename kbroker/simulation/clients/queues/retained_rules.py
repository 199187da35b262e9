"""What clients may see of a topic with delayed delivery whose records retention and DeleteRecords remove.

Retention keeps pending records, and DeleteRecords does not. An operator cancels records, or delivers them before they
are due. As in queue_rules.py, the topic loses nothing in a crash, and a record is sent once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kbroker.simulation.clients.queues.queue_rules import BrokenQueue, SeenRecord


class PendingDelayedRecord(NamedTuple):
    """A record that is pending according to the broker."""

    offset: int
    value: int
    due_ms: int


class RetainedDelayedRecords:
    """The records that producers sent, what was acknowledged, and what may have become of it."""

    def __init__(self) -> None:
        # By value: when it is due, None without a delay.
        self._due_ms: dict[int, int | None] = {}
        # By value: its offset in the response.
        self._acknowledged: dict[int, int] = {}
        self._seen: dict[int, SeenRecord] = {}
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

    def read(self, records: Iterable[SeenRecord]) -> None:
        """Check what a consumer has read. Raises BrokenQueue."""
        for record in records:
            if self._seen.setdefault(record.offset, record) != record:
                raise BrokenQueue(f"offset {record.offset} has {record}, and had {self._seen[record.offset]}")
            first = self._offsets.setdefault(record.value, record.offset)
            if first != record.offset:
                raise BrokenQueue(f"value {record.value} was delivered twice: at offsets {first} and {record.offset}")
            self._check_due(record)
            self._check_cancelled(record.value)

    def _check_due(self, record: SeenRecord) -> None:
        if record.value not in self._due_ms:
            raise BrokenQueue(f"offset {record.offset} has the value {record.value}, which was not sent")
        due_ms = self._due_ms[record.value]
        # A time may have passed when the record arrived.
        if record.due_ms is None or record.value in self._changed:
            return
        if record.due_ms != due_ms:
            raise BrokenQueue(f"{record} was due at {due_ms}")
        if record.timestamp < due_ms:
            raise BrokenQueue(f"{record} was delivered {due_ms - record.timestamp} ms early")

    def _check_cancelled(self, value: int) -> None:
        if value in self._cancelled and value in self._offsets:
            raise BrokenQueue(f"value {value} was cancelled, and delivered at offset {self._offsets[value]}")

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
