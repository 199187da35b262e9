"""Verification that a partition is part of a producer's transaction (KIP-890).

Before the first batch of a transaction is appended, the coordinator verifies the partition. Between its response and
the append, an abort may end that transaction, and the response does not apply to the next one. Therefore a guard is
issued before the verification starts, and any batch or marker that is appended for the producer invalidates it.
"""

from kbroker.common import KafkaError
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.records.batch import BatchHeader


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
