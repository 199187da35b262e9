"""What a producer still has to do for one partition: its batches in order, and the numbers by which the broker tells
a repeated one (KIP-98) after the rules of the Java client.

- A batch keeps its sequence from its first attempt to its last, so that a repetition is known for what it is.
- Several may be on their way, but repetitions go one by one, in order, and so does the first of a new epoch: the
  broker takes any sequence of a producer that it does not know.
- When the sequence is broken the producer goes on with another epoch (KIP-360). More careful than the Java client:
  what may have been written already is not written again under the new epoch, nor what would come out of order.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from kbroker.simulation.checker.history import Operation, Place
from protocol.records.batch import NO_SEQUENCE, NewRecord, build_batch

NO_IDENTITY = (-1, -1)
MAX_SEQUENCE = 2**31 - 1

# (producer id, producer epoch)
Identity = tuple[int, int]


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """`maybe_applied`: an attempt has been made of which it is not certain that it had no effect. `attempted`: the
    history's step at the last attempt."""

    operation: Operation
    place: Place
    order: int
    records: list[NewRecord]
    codec: int
    deadline: float
    done: "asyncio.Future[Operation]"
    data: bytearray | None = None
    sequence: int = NO_SEQUENCE
    attempts: int = 0
    attempted: int = 0
    in_flight: bool = False
    maybe_applied: bool = False

    def reset(self) -> None:
        self.data = None
        self.sequence = NO_SEQUENCE
        self.attempts = 0


class PartitionQueue:
    """`window` are the batches without an outcome, in order. `resting` while it waits before another try."""

    def __init__(self, place: Place, idempotent: bool, max_in_flight: int, attributes: int = 0) -> None:
        self.place = place
        self.pending: list[QueuedBatch] = []
        self.in_flight = 0
        self.is_backing_off = False
        self.is_sequence_broken = False
        self.identity: Identity = NO_IDENTITY
        self.leader_lookup: asyncio.Task[Any] | None = None
        self._attributes = attributes
        self._idempotent = idempotent
        self._max_in_flight = max_in_flight
        self._next_sequence = 0
        self._orders = 0
        self._acknowledged_order = -1
        # The broker knows this producer in this epoch.
        self._is_known_to_broker = False

    def next_order(self) -> int:
        self._orders += 1
        return self._orders - 1

    def next_sendable(self, identity: Identity) -> QueuedBatch | None:
        """The batch that may be sent now, if any. `identity` is the producer's at present."""
        if self.is_backing_off or self.is_sequence_broken or self.in_flight >= self._max_in_flight:
            return None
        batch = next((batch for batch in self.pending if not batch.in_flight), None)
        if batch is None or not self._idempotent:
            return batch
        if batch.sequence == NO_SEQUENCE and self.identity != identity:
            if self.in_flight:
                return None
            self.restart(identity)
        if batch is not self.pending[0] and (batch.attempts or not self._is_known_to_broker):
            return None
        return batch

    def prepare(self, batch: QueuedBatch) -> bytearray:
        """What to send of a batch, for the first time or again."""
        if batch.data is None:
            producer_id, epoch = self.identity
            if self._idempotent:
                batch.sequence = self._next_sequence
                self._next_sequence = (self._next_sequence + len(batch.records)) & MAX_SEQUENCE
            batch.data = build_batch(
                batch.records,
                codec=batch.codec,
                attributes=self._attributes,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=batch.sequence,
            )
        batch.attempts += 1
        batch.in_flight = True
        self.in_flight += 1
        return batch.data

    def mark_returned(self, batch: QueuedBatch) -> None:
        batch.in_flight = False
        self.in_flight -= 1

    def mark_acknowledged(self, batch: QueuedBatch) -> None:
        self._is_known_to_broker = True
        self._acknowledged_order = max(self._acknowledged_order, batch.order)

    def mark_given_up(self, batch: QueuedBatch) -> None:
        """It has got no acknowledgement: behind its sequence there is a gap."""
        self.is_sequence_broken = self.is_sequence_broken or (self._idempotent and batch.sequence != NO_SEQUENCE)

    def unrepeatable_batches(self) -> list[QueuedBatch]:
        """Which batches of a broken sequence must not go again under a new epoch."""
        last = max((at for at, batch in enumerate(self.pending) if batch.maybe_applied), default=-1)
        return [batch for at, batch in enumerate(self.pending) if at <= last or batch.order < self._acknowledged_order]

    def restart(self, identity: Identity) -> None:
        """Sequences begin at 0 under another identity."""
        self.identity = identity
        self.is_sequence_broken = self._is_known_to_broker = False
        self._next_sequence = 0
        for batch in self.pending:
            batch.reset()
