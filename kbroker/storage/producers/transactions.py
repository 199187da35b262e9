"""The transactions of a partition's producers: open ones and those that have just ended, markers, and verification.

The last stable offset is before the open transactions and those that have ended above the high watermark: a consumer of
committed records must not read a record before the outcome of its transaction is known and every in-sync replica has
the marker.

Verification (KIP-890): before the first batch of a transaction is appended, the coordinator verifies that the partition
is part of it. Between its response and the append, an abort may end that transaction, and the response does not apply
to the next one. Therefore a guard is issued before the verification starts, and any batch or marker that is appended
for the producer invalidates it.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.records.batch import BatchHeader


class TransactionMarker(NamedTuple):
    """A commit or abort of a producer's transaction, which becomes a control batch of the partition.

    `coordinator_epoch`: the leader epoch of the coordinator's __transaction_state partition; -1 for an abort by an
    administrator. `transaction_version` determines the epoch that the marker must have: below 2 at least that of the
    transaction, from 2 on a newer one (KIP-890), so that a late marker cannot end a later transaction.
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int


# The first unstable offset when all transactions have ended.
NO_UNSTABLE_OFFSET = 1 << 62


class CompletedTransaction(NamedTuple):
    """A producer's transaction, from its first record to its marker at `last_offset`.

    `last_stable_offset`: the first offset of the transactions that are still open, or the offset after the marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    committed: bool
    last_stable_offset: int


class OngoingTransactions:
    """`first_unstable_offset`: the first offset that consumers of committed records may not read yet."""

    __slots__ = ("_completed", "_held", "_open", "first_unstable_offset")

    def __init__(self) -> None:
        self.first_unstable_offset = NO_UNSTABLE_OFFSET
        # Producer ids by the first offsets of their transactions. These ascend, since a transaction begins at the log
        # end.
        self._open: dict[int, int] = {}
        # (offset of the marker, first offset), in the order of the markers. A list: an empty deque takes 760 bytes.
        self._completed: list[tuple[int, int]] = []
        # The one of them that stands for unknown transactions (`hold`).
        self._held: tuple[int, int] | None = None

    def __len__(self) -> int:
        """The number of open transactions."""
        return len(self._open)

    def begin(self, producer_id: int, first_offset: int) -> None:
        self._open[first_offset] = producer_id
        if first_offset < self.first_unstable_offset:
            self.first_unstable_offset = first_offset

    def end(self, producer_id: int, first_offset: int, marker_offset: int, committed: bool) -> CompletedTransaction:
        """End a transaction, whose marker was appended. It is unstable until the high watermark is above the marker."""
        self._open.pop(first_offset, None)
        self._completed.append((marker_offset, first_offset))
        last_stable_offset = next(iter(self._open), marker_offset + 1)
        return CompletedTransaction(producer_id, first_offset, marker_offset, committed, last_stable_offset)

    def on_high_watermark_updated(self, high_watermark: int) -> None:
        """Mark transactions with a marker below the high watermark as stable."""
        completed = self._completed
        if completed and completed[0][0] < high_watermark:
            del completed[: bisect_left(completed, (high_watermark,))]
            first_completed = min([first for _, first in completed], default=NO_UNSTABLE_OFFSET)
            self.first_unstable_offset = min(next(iter(self._open), NO_UNSTABLE_OFFSET), first_completed)

    def restore(self, open_transactions: Iterable[tuple[int, int]]) -> None:
        """Begin the open transactions of a snapshot: (first offset, producer id)."""
        for first_offset, producer_id in sorted(open_transactions):
            self.begin(producer_id, first_offset)

    def hold(self, first_offset: int, last_offset: int) -> None:
        """Regard everything from `first_offset` on as unstable until the high watermark is above `last_offset`."""
        self._held = (last_offset, first_offset)
        self._completed.append(self._held)
        self.first_unstable_offset = min(self.first_unstable_offset, first_offset)

    def restore_completed(self, before: "OngoingTransactions", below: int) -> None:
        """Add the transactions of `before` that have ended with a marker below `below`, and are not stable yet.

        Unknown transactions have ended anywhere up to the end of the hold: it stays for what is below `below`.
        """
        completed = [each for each in before._completed if each[0] < below]
        held = before._held
        if held in before._completed and held is not None and held[1] < below <= held[0]:
            self._held = (below - 1, held[1])
            completed.append(self._held)
        self._completed[:0] = completed
        self.first_unstable_offset = min([self.first_unstable_offset, *[first for _, first in completed]])


class VerificationGuard:
    """A guard is issued before the verification, and passed with the append. Only its identity matters."""

    __slots__ = ()


class VerificationStateEntry:
    """The verification of one producer.

    `lowest_sequence`: the lowest of the batches that wait for it. Only the batch with this sequence may be the first of
    the transaction (a producer may retry several batches together). `first_checked_ms`: the time at which expiration
    first found the entry.
    """

    __slots__ = ("epoch", "first_checked_ms", "guard", "lowest_sequence", "tv2")

    def __init__(self, epoch: int, sequence: int, tv2: bool) -> None:
        self.guard = VerificationGuard()
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.tv2 = tv2
        self.first_checked_ms: int | None = None


class VerificationStates:
    """The verifications in progress in one partition, by producer id."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, VerificationStateEntry] = {}

    def begin(self, producer_id: int, epoch: int, sequence: int, tv2: bool) -> VerificationGuard:
        """Return the guard for a batch. Concurrent requests of a producer share one."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = VerificationStateEntry(epoch, sequence, tv2)
        elif epoch > entry.epoch:
            entry.epoch, entry.lowest_sequence = epoch, sequence
        elif epoch == entry.epoch and sequence < entry.lowest_sequence:
            entry.lowest_sequence = sequence
        return entry.guard

    def is_valid(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        """Return whether nothing was appended for the producer since the guard was issued."""
        entry = self._entries.get(producer_id)
        return guard is not None and entry is not None and entry.guard is guard

    def check_sequence(self, header: BatchHeader, has_batches: bool) -> None:
        """Check the first batch of a transaction; raises KafkaError(OUT_OF_ORDER_SEQUENCE_NUMBER) as Kafka 4.3 does.

        With version 2 each transaction has its own epoch, so the first batch of a producer without batches here must
        have sequence 0. Without transactions it may have any.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return
        sequence = header.base_sequence
        if entry.tv2 and sequence != 0 and not has_batches:
            where = "Expected sequence 0 for transactions v2 idempotent producer with no existing state."
        elif sequence > entry.lowest_sequence:
            where = f"{entry.lowest_sequence} (earliest seen sequence)"
        else:
            return
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Sequence {sequence} of producer {header.producer_id} is out of order: {where}",
        )

    def end(self, producer_id: int) -> None:
        """Invalidate the guard, because a batch or a marker of the producer was appended."""
        if self._entries:
            self._entries.pop(producer_id, None)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Remove verifications that are older than `expiration_ms`, because their requests were abandoned."""
        for producer_id in paced(list(self._entries)):
            entry = self._entries.get(producer_id)
            if entry is None:
                continue
            if entry.first_checked_ms is None:
                entry.first_checked_ms = now_ms
            elif now_ms - entry.first_checked_ms >= expiration_ms:
                del self._entries[producer_id]
