"""An index of a history, built in one pass: operations by kind, and the values and offsets of each partition.

Histories are long and mostly correct, so the pass does little for each record that was read: it keeps the first value
at each offset and the first offset of each value, and marks those that differ later. All observations are collected
(`Index.observations`) for the marked offsets and values only.
"""

import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

from kbroker.simulation.checker.history import (
    Action,
    Assign,
    Commit,
    Corrupt,
    DeleteRecords,
    EndTransaction,
    History,
    Join,
    Loss,
    Note,
    OffsetFetch,
    Operation,
    OperationOf,
    Outcome,
    Poll,
    Send,
    TopicPartition,
    UnsyncedStart,
)

A = TypeVar("A", bound=Action)

# The end of an operation that has no end: later than any step.
NEVER = sys.maxsize


class PossibleLoss(NamedTuple):
    """A Loss in one partition: at this step, records at or above `floor` may have been lost."""

    step: int
    floor: int


class Observation(NamedTuple):
    """A read or an acknowledgement shows that the offset held this value at some time between two steps."""

    value: int
    offset: int
    since: int
    until: int
    operation: Operation


@dataclass(slots=True)
class PartitionIndex:
    """`keys`: the number of keys of a compacted partition; 0 without compaction.

    `value_at`: the first value observed at each offset, in reads and then in acknowledgements. `offset_of`: the offset
    at which each value was first read. `conflicting_offsets`: offsets with several values. `moved_values`: values with
    several offsets. `final`: the values that the final polls returned, by offset. `final_end`: the offset up to which
    the final polls have read.
    """

    tp: TopicPartition
    keys: int = 0
    possible_losses: list[PossibleLoss] = field(default_factory=list)
    deletions: list[OperationOf[DeleteRecords]] = field(default_factory=list)
    sends: list[OperationOf[Send]] = field(default_factory=list)
    value_at: dict[int, int] = field(default_factory=dict)
    offset_of: dict[int, int] = field(default_factory=dict)
    conflicting_offsets: dict[int, None] = field(default_factory=dict)
    moved_values: dict[int, None] = field(default_factory=dict)
    final: dict[int, int] = field(default_factory=dict)
    final_end: int = 0
    _known: list[int] | None = None

    def may_have_lost(self, offset: int, since: int, until: int) -> bool:
        """Return whether a Loss between these steps may have removed the record at this offset."""
        return any(loss.floor <= offset and since < loss.step < until for loss in self.possible_losses)

    def may_be_deleted(self, offset: int, sent: int, until: int = NEVER) -> bool:
        """Return whether a DeleteRecords may have removed a record before step `until`. `sent`: the step at which the
        record was sent; a deletion does not affect records that are sent after it, at offsets that a Loss made free
        again."""
        for deletion in self.deletions:
            before = deletion.action.before
            if (before > offset or before < 0) and deletion.begun < until and sent < effect_end(deletion):
                return True
        return False

    def deletion_bound(self, until: int) -> int:
        """Return the highest offset of the DeleteRecords requests that began before step `until`; -1 if none."""
        return max(
            (deletion.action.before for deletion in self.deletions if deletion.begun < until),
            default=-1,
        )

    def has_unresolved_deletion(self, offset: int, until: int) -> bool:
        """Return whether a DeleteRecords of this offset began before step `until` and was not acknowledged. A crash may
        have undone it."""
        return any(
            not 0 <= deletion.action.before <= offset and deletion.begun < until and deletion.outcome is not Outcome.OK
            for deletion in self.deletions
        )

    def known_between(self, low: int, high: int) -> list[int]:
        """Return the offsets from `low` up to, not including, `high` at which a record was observed."""
        if self._known is None:
            self._known = sorted(self.value_at)
        return self._known[bisect_left(self._known, low) : bisect_left(self._known, high)]


@dataclass(slots=True)
class Index:
    """`compacted`: the number of keys of each compacted topic. `replicated`: see `check`. `senders`: the Send operation
    of each value. `transactional`: the history has transactional sends. `consumer_operations`: the polls and
    assignments of each process, in order. `transaction_ends`: EndTransaction operations by transaction."""

    history: History
    compacted: Mapping[str, int] = field(default_factory=dict)
    partitions: dict[TopicPartition, PartitionIndex] = field(default_factory=dict)
    senders: dict[int, OperationOf[Send]] = field(default_factory=dict)
    replicated: bool = False
    transactional: bool = False
    polls: list[OperationOf[Poll]] = field(default_factory=list)
    consumer_operations: dict[str, list[Operation]] = field(default_factory=dict)
    joins: list[OperationOf[Join]] = field(default_factory=list)
    commits: list[OperationOf[Commit]] = field(default_factory=list)
    offset_fetches: list[OperationOf[OffsetFetch]] = field(default_factory=list)
    losses: list[OperationOf[Loss]] = field(default_factory=list)
    unsynced_starts: list[OperationOf[UnsyncedStart]] = field(default_factory=list)
    corrupt: list[OperationOf[Corrupt]] = field(default_factory=list)
    transaction_ends: dict[int, list[OperationOf[EndTransaction]]] = field(default_factory=dict)

    def partition(self, tp: TopicPartition) -> PartitionIndex:
        partition = self.partitions.get(tp)
        if partition is None:
            partition = self.partitions[tp] = PartitionIndex(tp, self.compacted.get(tp[0], 0))
        return partition

    def observations(
        self, offsets: Mapping[TopicPartition, Iterable[int]], values: Iterable[int] = ()
    ) -> "Observations":
        """Collect all observations of these offsets and values, in a second pass."""
        return Observations(self, {tp: set(numbers) for tp, numbers in offsets.items()}, set(values))


def build_index(history: History, compacted: Mapping[str, int] | None = None, *, replicated: bool = False) -> Index:
    """Build the index of a history."""
    index = Index(history, compacted or {}, replicated=replicated)
    for operation in history.operations:
        _add_operation(index, operation)
    for partition in index.partitions.values():
        partition.final_end = max(partition.final_end, max(partition.final, default=-1) + 1)
        for operation in partition.sends:
            _add_acknowledgement(partition, operation)
    return index


def effect_end(operation: Operation) -> int:
    """Return the step after which the operation can no longer take effect: NEVER if it has no response."""
    return NEVER if operation.ended is None or operation.outcome is Outcome.UNKNOWN else operation.ended


def acknowledged_since(send: OperationOf[Send]) -> int:
    """Return the earliest step at which the broker may have sent the acknowledgement. A response that arrived after a
    Loss may have been sent before it, unless it belongs to an attempt that was sent after the Loss."""
    return send.begun if send.action.attempted is None else send.action.attempted


def acknowledged(send: OperationOf[Send]) -> bool:
    """Return whether the broker acknowledged the batch. With acks=0 it never does."""
    return send.outcome is Outcome.OK and send.action.acks != 0


def _add_operation(index: Index, operation: Operation) -> None:
    action = operation.action
    match action:
        case Poll():
            index.polls.append(_of(operation, action))
            index.consumer_operations.setdefault(operation.process, []).append(operation)
            _add_poll(index, _of(operation, action))
        case Send():
            index.partition(action.tp).sends.append(_of(operation, action))
            index.transactional = index.transactional or action.transaction is not None
            index.senders.update(dict.fromkeys(action.values, _of(operation, action)))
        case Assign():
            index.consumer_operations.setdefault(operation.process, []).append(operation)
        case Commit():
            index.commits.append(_of(operation, action))
        case OffsetFetch():
            index.offset_fetches.append(_of(operation, action))
        case Join():
            index.joins.append(_of(operation, action))
        case Corrupt():
            index.corrupt.append(_of(operation, action))
        case EndTransaction():
            index.transaction_ends.setdefault(action.transaction, []).append(_of(operation, action))
        case DeleteRecords():
            if operation.outcome is not Outcome.FAILED:
                index.partition(action.tp).deletions.append(_of(operation, action))
        case UnsyncedStart():
            index.unsynced_starts.append(_of(operation, action))
        case Loss():
            index.losses.append(_of(operation, action))
            for tp, floor in action.floors.items():
                index.partition(tp).possible_losses.append(PossibleLoss(operation.begun, floor))
        case Note():
            pass


def _of(operation: Operation, action: A) -> OperationOf[A]:
    """Return the operation with the type of its action."""
    return cast(OperationOf[A], operation)


def _add_poll(index: Index, operation: OperationOf[Poll]) -> None:
    """Add the records of a poll. This is the innermost loop of the checker."""
    poll = operation.action
    is_final = index.history.final is not None and operation.begun > index.history.final
    tp: TopicPartition | None = None
    for read in poll.reads:
        if read.tp is not tp:
            tp = read.tp
            partition = index.partition(tp)
            value_at, offset_of, final = partition.value_at, partition.offset_of, partition.final
        offset, value = read.offset, read.value
        known = value_at.get(offset)
        if known != value:
            if known is None:
                value_at[offset] = value
            else:
                partition.conflicting_offsets[offset] = None
            if offset_of.setdefault(value, offset) != offset:
                partition.moved_values[value] = None
        if is_final:
            final[offset] = value
    if is_final and operation.outcome is Outcome.OK:
        for tp, position in poll.positions.items():
            partition = index.partition(tp)
            partition.final_end = max(partition.final_end, position)


def _add_acknowledgement(partition: PartitionIndex, operation: OperationOf[Send]) -> None:
    send = operation.action
    if send.base_offset is None or not acknowledged(operation):
        return
    value_at, offset_of = partition.value_at, partition.offset_of
    for offset, value in enumerate(send.values, send.base_offset):
        if value_at.setdefault(offset, value) != value:
            partition.conflicting_offsets[offset] = None
        if offset_of.get(value, offset) != offset:
            partition.moved_values[value] = None


class Observations:
    """Observations by offset and by value, in history order."""

    def __init__(self, index: Index, offsets: dict[TopicPartition, set[int]], values: set[int]) -> None:
        self.by_offset: dict[tuple[TopicPartition, int], list[Observation]] = {}
        self.by_value: dict[int, list[Observation]] = {}
        self._offsets, self._values = offsets, values
        if not values and not any(offsets.values()):
            return
        for operation in index.polls:
            until = NEVER if operation.ended is None else operation.ended
            for read in operation.action.reads:
                if read.value in values or read.offset in offsets.get(read.tp, ()):
                    self._add(read.tp, Observation(read.value, read.offset, operation.begun, until, operation))
        for partition in index.partitions.values():
            self._add_acknowledgements(partition)

    def _add_acknowledgements(self, partition: PartitionIndex) -> None:
        offsets = self._offsets.get(partition.tp, set())
        for operation in partition.sends:
            send = operation.action
            if send.base_offset is None or not acknowledged(operation):
                continue
            for offset, value in enumerate(send.values, send.base_offset):
                if value in self._values or offset in offsets:
                    self._add(
                        partition.tp,
                        Observation(value, offset, acknowledged_since(operation), effect_end(operation), operation),
                    )

    def _add(self, tp: TopicPartition, observation: Observation) -> None:
        if observation.offset in self._offsets.get(tp, ()):
            self.by_offset.setdefault((tp, observation.offset), []).append(observation)
        if observation.value in self._values:
            self.by_value.setdefault(observation.value, []).append(observation)
