"""What clients were promised about each partition: records that they received, and records that they have deleted."""

from __future__ import annotations

# A partition of a topic id.
Key = tuple[bytes, int]


class Promises:
    """Offsets that only grow, by partition.

    Received means acknowledged to acks=all, read, or below the leader's high watermark, so that it can be read. Every
    replica that may be elected has these records: those of the ISR and of the ELR. An acknowledged DeleteRecords
    promises that the records will not come back.
    """

    def __init__(self) -> None:
        self._received: dict[Key, int] = {}
        self._deleted: dict[Key, int] = {}

    def forget(self, key: Key) -> None:
        """Record that a partition was removed."""
        self._received.pop(key, None)
        self._deleted.pop(key, None)

    def received(self, key: Key) -> int:
        """Return the offset after the last one that a client received; 0 if there is none."""
        return self._received.get(key, 0)

    def add_received(self, key: Key, end: int) -> None:
        """Record that a client received the offsets below `end`."""
        self._received[key] = max(end, self.received(key))

    def deleted(self, key: Key) -> int:
        """Return the log start offset that was promised; 0 if there is none."""
        return self._deleted.get(key, 0)

    def add_deleted(self, key: Key, log_start: int) -> None:
        """Record that a client's deletion of the records below this offset was acknowledged."""
        self._deleted[key] = max(log_start, self.deleted(key))
