"""The order of a consumer's polls: skipped records, backward polls, unfounded offset resets.

What Kafka permits: an Assign sets new positions. After a seek they are those of the program; after a rebalance they are
the group's committed offsets, which may be before the records that this member has read (at-least-once delivery) or
after them (other members read on). So polls are compared only within one assignment. A reset is different: it follows
an OFFSET_OUT_OF_RANGE and not a request of the program. It may go backwards only after a Loss, and forwards only over
deleted or lost records. A crash may undo a deletion that was not acknowledged: a consumer that received
OFFSET_OUT_OF_RANGE in between then goes back to the log start.

Offsets may have gaps, because of control batches and aborted transactions. A jump is an anomaly if it passes a record
that was certainly present.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name, shorten
from kbroker.simulation.checker.compaction import SupersedingRecords
from kbroker.simulation.checker.history import Assign, Operation, Outcome, Poll, Send, TopicPartition
from kbroker.simulation.checker.index import NEVER, Index, Observation, PartitionIndex
from kbroker.simulation.checker.transactions import TransactionOutcome, transaction_outcomes


@dataclass(slots=True)
class _Position:
    """A consumer's position. `next`: the next offset. `since`: the operation that set it. `proven`: the consumer has
    read the record before it, so the position was in range."""

    next: int
    since: Operation
    proven: bool


@dataclass(slots=True)
class _Jump:
    """A position that advanced from `low` to `high` without returning the offsets between them."""

    tp: TopicPartition
    low: int
    high: int
    before: Operation
    operation: Operation
    committed_only: bool


class _Consumer:
    """The operations of one process. Collects anomalies, and jumps, which are checked afterwards."""

    def __init__(self, index: Index) -> None:
        self.anomalies: list[Anomaly] = []
        self.jumps: list[_Jump] = []
        self._index = index
        self._positions: dict[TopicPartition, _Position] = {}
        self._committed_only = False

    def add(self, operation: Operation) -> None:
        action = operation.action
        if isinstance(action, Assign):
            self._assign(operation, action)
        elif isinstance(action, Poll):
            self._poll(operation, action)

    def _assign(self, operation: Operation, assign: Assign) -> None:
        if operation.outcome is not Outcome.OK:
            self._positions.clear()
            return
        if assign.reason == "reset":
            for tp, position in assign.positions.items():
                self._reset(operation, tp, position)
        old, self._positions = self._positions, {}
        for tp, position in assign.positions.items():
            current = old.get(tp)
            stays = assign.reason == "reset" and current is not None and current.next == position
            self._positions[tp] = current if stays and current else _Position(position, operation, False)

    def _reset(self, operation: Operation, tp: TopicPartition, position: int) -> None:
        current = self._positions.get(tp)
        if current is None or position == current.next:
            return
        if position > current.next:
            self._jump(tp, current, position, operation)
        elif current.proven:
            partition = self._index.partition(tp)
            until = NEVER if operation.ended is None else operation.ended
            lost = partition.may_have_lost(current.next - 1, current.since.begun, until)
            if not lost and not partition.has_unresolved_deletion(current.next, until):
                self._report(
                    "unfounded reset",
                    f"was reset from offset {current.next} of {partition_name(tp)} to {position} as out of range, "
                    "although nothing had been lost",
                    current,
                    operation,
                )

    def _poll(self, operation: Operation, poll: Poll) -> None:
        self._committed_only = poll.committed_only
        tp: TopicPartition | None = None
        current: _Position | None = None
        expected = 0
        for read in poll.reads:
            if read.tp is not tp:
                self._update_position(tp, current, expected, operation)
                tp = read.tp
                current = self._positions.get(tp)
                if current is None:
                    current = self._positions[tp] = _Position(read.offset, operation, False)
                expected = current.next
            if read.offset != expected:
                assert current is not None
                if read.offset < expected:
                    self._report(
                        "backward poll",
                        f"read offset {read.offset} of {partition_name(read.tp)} when {expected} was next",
                        current,
                        operation,
                    )
                else:
                    self._jump(read.tp, _Position(expected, current.since, False), read.offset, operation)
            expected = read.offset + 1
        self._update_position(tp, current, expected, operation)
        if operation.outcome is not Outcome.UNKNOWN:
            # A failed poll reports its positions too.
            self._check_positions(operation, poll)
        else:
            # The poll may have received more records, so nothing is known about the next poll.
            for tp in [*dict.fromkeys(read.tp for read in poll.reads), *poll.positions]:
                self._positions.pop(tp, None)

    def _update_position(
        self, tp: TopicPartition | None, current: _Position | None, expected: int, operation: Operation
    ) -> None:
        if tp is not None and current is not None:
            current.next, current.since, current.proven = expected, operation, True

    def _check_positions(self, operation: Operation, poll: Poll) -> None:
        for tp, position in poll.positions.items():
            current = self._positions.get(tp)
            if current is None:
                self._positions[tp] = _Position(position, operation, False)
            elif position != current.next:
                if position < current.next:
                    self._report(
                        "backward poll",
                        f"is at offset {position} of {partition_name(tp)} after it had reached {current.next}",
                        current,
                        operation,
                    )
                else:
                    self._jump(tp, current, position, operation)
                current.next, current.since = position, operation

    def _jump(self, tp: TopicPartition, current: _Position, high: int, operation: Operation) -> None:
        self.jumps.append(_Jump(tp, current.next, high, current.since, operation, self._committed_only))

    def _report(self, kind: str, text: str, current: _Position, operation: Operation) -> None:
        self.anomalies.append(anomaly(kind, f"{operation.process} {text}.", current.since, operation))


def poll_order_anomalies(index: Index) -> Iterator[Anomaly]:
    """Report backward polls, unfounded resets and skipped records, within a poll and between polls."""
    jumps: list[_Jump] = []
    for operations in index.consumer_operations.values():
        consumer = _Consumer(index)
        for operation in operations:
            consumer.add(operation)
        yield from consumer.anomalies
        jumps += consumer.jumps
    yield from _skips(index, jumps)


def _skips(index: Index, jumps: list[_Jump]) -> Iterator[Anomaly]:
    offsets_by_jump = [(jump, _skipped_offsets(index.partition(jump.tp), jump)) for jump in jumps]
    offsets_by_partition: dict[TopicPartition, dict[int, None]] = {}
    for jump, offsets in offsets_by_jump:
        offsets_by_partition.setdefault(jump.tp, {}).update(dict.fromkeys(offsets))
    for tp, observed in offsets_by_partition.items():
        if index.partition(tp).keys:
            observed.update(index.partition(tp).conflicting_offsets)
    seen = index.observations(offsets_by_partition)
    ends = transaction_outcomes(index)
    superseding = {tp: SupersedingRecords(index, index.partition(tp), seen) for tp in offsets_by_partition}
    for jump, offsets in offsets_by_jump:
        skipped = [
            proof
            for offset in offsets
            if (proof := _proof(index, jump, seen.by_offset.get((jump.tp, offset), []), ends, superseding[jump.tp]))
            is not None
        ]
        if skipped:
            reset = isinstance(jump.operation.action, Assign)
            yield anomaly(
                "reset over records" if reset else "skipped records",
                f"{jump.operation.process} {'was reset' if reset else 'moved'} from offset {jump.low} of "
                f"{partition_name(jump.tp)} to {jump.high} and skipped "
                f"{shorten([record.value for record in skipped])} at {shorten([record.offset for record in skipped])}.",
                jump.before,
                jump.operation,
                skipped[0].operation,
            )


def _skipped_offsets(partition: PartitionIndex, jump: _Jump) -> list[int]:
    """Return the offsets in the jump at which a record was observed at any time. Without losses, deleted offsets need
    no further check and are left out."""
    low = jump.low
    if not partition.possible_losses:
        low = max(low, partition.deletion_bound(NEVER if jump.operation.ended is None else jump.operation.ended))
    return partition.known_between(low, jump.high)


def _proof(
    index: Index,
    jump: _Jump,
    observations: list[Observation],
    ends: dict[int, TransactionOutcome],
    superseding: SupersedingRecords,
) -> Observation | None:
    """Return an observation which proves that the jump skipped a record that was present and visible to the consumer:
    no Loss between them, not deleted or compacted before, and its transaction, if any, is committed."""
    partition = index.partition(jump.tp)
    ended = NEVER if jump.operation.ended is None else jump.operation.ended
    for observation in observations:
        sender = index.senders.get(observation.value)
        if partition.may_have_lost(
            observation.offset, min(observation.since, jump.operation.begun), max(observation.until, ended)
        ):
            continue
        if partition.may_be_deleted(observation.offset, observation.since if sender is None else sender.begun, ended):
            continue
        if superseding.may_have_removed(observation.value, observation.offset, ended):
            continue
        if not jump.committed_only or _is_visible(sender, observation, ends):
            return observation
    return None


def _is_visible(sender: Operation | None, observation: Observation, ends: dict[int, TransactionOutcome]) -> bool:
    """Return whether a consumer with read_committed may read the record."""
    transaction = sender.action.transaction if sender is not None and isinstance(sender.action, Send) else None
    if transaction is None or ends.get(transaction) is TransactionOutcome.COMMITTED:
        return True
    return isinstance(observation.operation.action, Poll) and observation.operation.action.committed_only
