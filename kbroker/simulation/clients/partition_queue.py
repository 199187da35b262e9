"""The batches of one partition that a producer has yet to deliver, and their sequence numbers (KIP-98).

The rules are those of the Java client:

- A batch keeps its sequence number across retries, so that the broker detects a duplicate.
- Several batches may be in flight. Retries are sent one at a time and in order, and so is the first batch of a new
  epoch: a broker accepts any first sequence number of a producer that it does not know.
- After a broken sequence the producer continues with the next epoch (KIP-360). Unlike the Java client it does not
  retry a batch that may have been written under the old epoch, or that would be written out of order.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from kbroker.simulation.checker.history import Operation, TopicPartition
from protocol.records.batch import NO_SEQUENCE, NewRecord, build_batch

NO_IDENTITY = (-1, -1)
MAX_SEQUENCE = 2**31 - 1

# (producer id, producer epoch)
Identity = tuple[int, int]


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """A batch without an outcome.

    `maybe_applied`: at least one attempt may have written it. `attempted`: the history's step at the last attempt.
    """

    operation: Operation
    tp: TopicPartition
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
    """`pending` are the batches without an outcome, in order."""

    def __init__(self, tp: TopicPartition, idempotent: bool, max_in_flight: int, attributes: int = 0) -> None:
        self.tp = tp
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
        # Whether the broker has acknowledged a batch of this producer in this epoch.
        self._is_known_to_broker = False

    def next_order(self) -> int:
        self._orders += 1
        return self._orders - 1

    def next_sendable(self, identity: Identity) -> QueuedBatch | None:
        """Return the batch that may be sent now, if any. `identity` is the producer's current one."""
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
        """Return the encoded batch for its next attempt, and count it as in flight."""
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
        """Record that a batch was not acknowledged: its sequence numbers leave a gap."""
        self.is_sequence_broken = self.is_sequence_broken or (self._idempotent and batch.sequence != NO_SEQUENCE)

    def unrepeatable_batches(self) -> list[QueuedBatch]:
        """Return the batches of a broken sequence that must not be sent under a new epoch."""
        last = max((index for index, batch in enumerate(self.pending) if batch.maybe_applied), default=-1)
        return [
            batch for index, batch in enumerate(self.pending) if index <= last or batch.order < self._acknowledged_order
        ]

    def restart(self, identity: Identity) -> None:
        """Continue with another identity. Its sequence numbers begin at 0."""
        self.identity = identity
        self.is_sequence_broken = self._is_known_to_broker = False
        self._next_sequence = 0
        for batch in self.pending:
            batch.reset()
