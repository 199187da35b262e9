"""Partitions whose part in a transaction is being confirmed with its coordinator (KIP-890).

Before the first batch of a transaction is appended, the coordinator is asked. Between its answer and the append an
abort may end that transaction, and the answer means nothing for the next one: so whoever asks gets a guard first, and
any batch or marker of the producer that is appended makes the guards given out before worthless.
"""

from kbroker.common import KafkaError
from protocol.errors import ErrorCode
from protocol.records.batch import BatchHeader


class VerificationGuard:
    """Given out before the coordinator is asked, to be shown with the append. It is nothing but itself."""

    __slots__ = ()


class VerificationStateEntry:
    """Of one producer. `lowest_sequence`: no batch may be the first that follows one which also waits (retries of
    several in flight). `seen_ms`: since when an expiry has known it."""

    __slots__ = ("epoch", "guard", "lowest_sequence", "seen_ms", "tv2")

    def __init__(self, epoch: int, sequence: int, tv2: bool) -> None:
        self.guard = VerificationGuard()
        self.epoch = epoch
        self.lowest_sequence = sequence
        self.tv2 = tv2
        self.seen_ms: int | None = None


class VerificationStates:
    """Those under way in one partition, by producer id."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, VerificationStateEntry] = {}

    def begin(self, producer_id: int, epoch: int, sequence: int, tv2: bool) -> VerificationGuard:
        """Several requests of a producer that are under way together share a guard."""
        known = self._waiting.get(producer_id)
        if known is None:
            known = self._waiting[producer_id] = VerificationStateEntry(epoch, sequence, tv2)
        elif epoch > known.epoch:
            known.epoch, known.lowest_sequence = epoch, sequence
        elif epoch == known.epoch and sequence < known.lowest_sequence:
            known.lowest_sequence = sequence
        return known.guard

    def holds(self, producer_id: int, guard: VerificationGuard | None) -> bool:
        """Whether nothing was appended for the producer since this guard was given out."""
        known = self._waiting.get(producer_id)
        return guard is not None and known is not None and known.guard is guard

    def check_sequence(self, header: BatchHeader, known_batches: bool) -> None:
        """The first batch of a transaction; raises KafkaError(OUT_OF_ORDER_SEQUENCE_NUMBER) as Kafka 4.3 does.

        With transactions of version 2 each transaction has an epoch of its own, so where no batch of the producer is
        known its first one must be number zero; an idempotent producer may begin anywhere there.
        """
        known = self._waiting.get(header.producer_id)
        if known is None:
            return
        sequence = header.base_sequence
        if known.tv2 and sequence != 0 and not known_batches:
            where = "Expected sequence 0 for transactions v2 idempotent producer with no existing state."
        elif sequence > known.lowest_sequence:
            where = f"{known.lowest_sequence} (earliest seen sequence)"
        else:
            return
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Sequence {sequence} of producer {header.producer_id} is out of order: {where}",
        )

    def end(self, producer_id: int) -> None:
        """A batch or a marker was appended."""
        if self._waiting:
            self._waiting.pop(producer_id, None)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """Forget those that an expiry has seen so long ago: whoever asked has gone."""
        for producer_id, known in list(self._waiting.items()):
            if known.seen_ms is None:
                known.seen_ms = now_ms
            elif now_ms - known.seen_ms >= expiration_ms:
                del self._waiting[producer_id]
