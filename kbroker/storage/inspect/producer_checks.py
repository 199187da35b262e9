"""Compares producer snapshots with the batches of a log, which are passed to the checks in order."""

from collections.abc import Iterator
from typing import NamedTuple

from kbroker.storage.inspect.index_files import decode_producer_entries
from protocol.records.batch import BatchHeader

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
