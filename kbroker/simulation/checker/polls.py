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

from bisect import insort
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, shorten
from kbroker.simulation.checker.history import (
    Assign,
    Operation,
    OperationOf,
    Outcome,
    Poll,
    Send,
    TopicPartition,
    UnsyncedStart,
    partition_name,
)
from kbroker.simulation.checker.index import (
    Index,
    Observation,
    PartitionIndex,
    SupersedingRecords,
    end_offset,
    ended,
)
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
            lost = partition.may_have_lost(current.next - 1, current.since.begun, ended(operation))
            if not lost and not partition.has_unresolved_deletion(current.next, ended(operation)):
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
        low = max(low, partition.deletion_bound(ended(jump.operation)))
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
    partition, until = index.partition(jump.tp), ended(jump.operation)
    for observation in observations:
        sender = index.senders.get(observation.value)
        if partition.may_have_lost(
            observation.offset, min(observation.since, jump.operation.begun), max(observation.until, until)
        ):
            continue
        if partition.may_be_deleted(observation.offset, observation.since if sender is None else sender.begun, until):
            continue
        if superseding.may_have_removed(observation.value, observation.offset, until):
            continue
        if not jump.committed_only or _is_visible(sender, observation, ends):
            return observation
    return None


def _is_visible(
    sender: OperationOf[Send] | None, observation: Observation, ends: dict[int, TransactionOutcome]
) -> bool:
    """Return whether a consumer with read_committed may read the record."""
    transaction = None if sender is None else sender.action.transaction
    if transaction is None or ends.get(transaction) is TransactionOutcome.COMMITTED:
        return True
    return isinstance(observation.operation.action, Poll) and observation.operation.action.committed_only


# Stale polls: a poll without records although a record at or after its position had been acknowledged before it.
#
# The high watermark advances before the acknowledgement is sent, so a poll that begins after an acknowledgement can
# read the record. Because response sizes are limited, a poll may return records of one partition and none of another;
# but a successful poll that returns no record at all must have been at the end of every partition that it requested.
#
# Not checked: polls while the broker had not synced the recovered records of a partition after its start
# (UnsyncedStart); polls with read_committed if the history has transactions (an open transaction holds back later
# records), and polls that advanced without a record: they read transaction markers, or batches that compaction emptied.
# Replicated partitions are not checked: a new leader may not know the high watermark yet, and a broker that is no
# longer the leader may not know that.


def stale_polls(index: Index) -> Iterator[Anomaly]:
    """Compare each empty poll with the sends that were acknowledged before it began."""
    events: list[tuple[int, OperationOf[Send] | None, OperationOf[Poll] | None]] = [
        (ended(send), send, None)
        for partition in index.partitions.values()
        for send in partition.sends
        if end_offset(send) and send.action.transaction is None
    ]
    events += [(poll.begun, None, poll) for poll in _empty_polls(index)]
    acknowledged_sends: dict[TopicPartition, list[OperationOf[Send]]] = defaultdict(list)  # ordered by end offset
    for _, acknowledged_send, poll in sorted(events, key=lambda event: event[0]):
        if acknowledged_send is not None:
            tp, now = acknowledged_send.action.tp, ended(acknowledged_send)
            partition, sends = index.partition(tp), acknowledged_sends[tp]
            while sends and partition.may_be_gone(sends[-1], now):
                sends.pop()
            if not partition.may_be_gone(acknowledged_send, now):
                insort(sends, acknowledged_send, key=end_offset)
        elif poll is not None:
            for tp, position in poll.action.positions.items():
                if _overlaps_unsynced_start(index, tp, poll):
                    continue
                partition, sends = index.partition(tp), acknowledged_sends[tp]
                send = next((send for send in reversed(sends) if not partition.may_be_gone(send, ended(poll))), None)
                if send is not None and end_offset(send) > position:
                    yield anomaly(
                        "stale poll",
                        f"{poll.process} received no records from offset {position} of {partition_name(tp)} "
                        f"on, although offset {end_offset(send) - 1} had been acknowledged before the poll began.",
                        send,
                        poll,
                    )


def _overlaps_unsynced_start(index: Index, tp: TopicPartition, poll: Operation) -> bool:
    return any(
        tp in start.action.partitions and start.begun < ended(poll) and poll.begun < ended(start)
        for start in index.of(UnsyncedStart)
    )


def _empty_polls(index: Index) -> Iterator[OperationOf[Poll]]:
    """Yield the polls that returned no record and did not advance past control or emptied batches."""
    has_gaps = index.transactional or bool(index.compacted)
    for operations in index.consumer_operations.values():
        positions: dict[TopicPartition, int] = {}
        for operation in operations:
            action = operation.action
            if isinstance(action, Poll):
                advanced = has_gaps and any(positions.get(tp, at) < at for tp, at in action.positions.items())
                poll = cast(OperationOf[Poll], operation)
                if not advanced and _is_empty(poll, index.transactional):
                    yield poll
                positions.update(action.positions)
            elif isinstance(action, Assign):
                positions = dict(action.positions)


def _is_empty(poll: OperationOf[Poll], transactions: bool) -> bool:
    action = poll.action
    return poll.outcome is Outcome.OK and not action.reads and not (transactions and action.committed_only)
