"""An index of a history, built in one pass: operations by kind, and the values and offsets of each partition.

Histories are long and mostly correct, so the pass does little for each record that was read: it keeps the first value
at each offset and the first offset of each value, and marks those that differ later. All observations are collected
(`Index.observations`) for the marked offsets and values only.

Compaction may remove records with a later record of the same key, which in a compacted topic is derived from the value.
"""

import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

from kbroker.simulation.checker.history import (
    Action,
    Assign,
    DeleteRecords,
    EndTransaction,
    History,
    Loss,
    Operation,
    OperationOf,
    Outcome,
    Poll,
    Send,
    TopicPartition,
)

A = TypeVar("A", bound=Action)

# The end of an operation that has no end: later than any step.
NEVER = sys.maxsize


def ended(operation: Operation) -> int:
    """Return the step at which the operation ended, NEVER if it has not."""
    return NEVER if operation.ended is None else operation.ended


def effect_end(operation: Operation) -> int:
    """Return the step after which the operation can no longer take effect: NEVER if it has no response."""
    return NEVER if operation.outcome is Outcome.UNKNOWN else ended(operation)


def acknowledged(send: OperationOf[Send]) -> bool:
    """Return whether the broker acknowledged the batch. With acks=0 it never does."""
    return send.outcome is Outcome.OK and send.action.acks != 0


def acknowledged_since(send: OperationOf[Send]) -> int:
    """Return the earliest step at which the broker may have sent the acknowledgement. A response that arrived after a
    Loss may have been sent before it, unless it belongs to an attempt that was sent after the Loss."""
    return send.begun if send.action.attempted is None else send.action.attempted


def end_offset(send: OperationOf[Send]) -> int:
    """Return the offset after the batch; 0 if it was not acknowledged with an offset."""
    base = send.action.base_offset
    return 0 if base is None or not acknowledged(send) else base + len(send.action.values)


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

    def may_be_gone(self, send: OperationOf[Send], until: int = NEVER) -> bool:
        """Return whether the end of an acknowledged batch may have been lost or deleted before step `until`."""
        last = end_offset(send) - 1
        return self.may_have_lost(last, acknowledged_since(send), until) or self.may_be_deleted(last, send.begun, until)

    def deletion_bound(self, until: int) -> int:
        """Return the highest offset of the DeleteRecords requests that began before step `until`; -1 if none."""
        return max((deletion.action.before for deletion in self.deletions if deletion.begun < until), default=-1)

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
    replicated: bool = False
    partitions: dict[TopicPartition, PartitionIndex] = field(default_factory=dict)
    senders: dict[int, OperationOf[Send]] = field(default_factory=dict)
    transactional: bool = False
    consumer_operations: dict[str, list[Operation]] = field(default_factory=dict)
    transaction_ends: dict[int, list[OperationOf[EndTransaction]]] = field(default_factory=dict)
    _by_kind: dict[type, list[Operation]] = field(default_factory=dict)

    def of(self, kind: type[A]) -> list[OperationOf[A]]:
        """Return the operations of this kind, in order."""
        return cast(list[OperationOf[A]], self._by_kind.get(kind, []))

    def partition(self, tp: TopicPartition) -> PartitionIndex:
        partition = self.partitions.get(tp)
        if partition is None:
            partition = self.partitions[tp] = PartitionIndex(tp, self.compacted.get(tp[0], 0))
        return partition

    def add(self, operation: Operation) -> None:
        """Add the next operation of the history."""
        action = operation.action
        self._by_kind.setdefault(type(action), []).append(operation)
        match action:
            case Poll():
                self.consumer_operations.setdefault(operation.process, []).append(operation)
                _add_poll(self, cast(OperationOf[Poll], operation))
            case Assign():
                self.consumer_operations.setdefault(operation.process, []).append(operation)
            case Send():
                send = cast(OperationOf[Send], operation)
                self.partition(action.tp).sends.append(send)
                self.transactional = self.transactional or action.transaction is not None
                self.senders.update(dict.fromkeys(action.values, send))
            case EndTransaction():
                end = cast(OperationOf[EndTransaction], operation)
                self.transaction_ends.setdefault(action.transaction, []).append(end)
            case DeleteRecords():
                if operation.outcome is not Outcome.FAILED:
                    self.partition(action.tp).deletions.append(cast(OperationOf[DeleteRecords], operation))
            case Loss():
                for tp, floor in action.floors.items():
                    self.partition(tp).possible_losses.append(PossibleLoss(operation.begun, floor))

    def observations(
        self, offsets: Mapping[TopicPartition, Iterable[int]], values: Iterable[int] = ()
    ) -> "Observations":
        """Collect all observations of these offsets and values, in a second pass."""
        return Observations(self, {tp: set(numbers) for tp, numbers in offsets.items()}, set(values))


def build_index(history: History, compacted: Mapping[str, int] | None = None, *, replicated: bool = False) -> Index:
    """Build the index of a history."""
    index = Index(history, compacted or {}, replicated)
    for operation in history.operations:
        index.add(operation)
    for partition in index.partitions.values():
        partition.final_end = max(partition.final_end, max(partition.final, default=-1) + 1)
        for send in partition.sends:
            for offset, value in _acknowledged_records(send):
                if partition.value_at.setdefault(offset, value) != value:
                    partition.conflicting_offsets[offset] = None
                if partition.offset_of.get(value, offset) != offset:
                    partition.moved_values[value] = None
    return index


def _acknowledged_records(send: OperationOf[Send]) -> Iterable[tuple[int, int]]:
    """Return (offset, value) of each record of a batch that was acknowledged with an offset."""
    base = send.action.base_offset
    return () if base is None or not acknowledged(send) else enumerate(send.action.values, base)


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


class Observations:
    """Observations by offset and by value, in history order."""

    def __init__(self, index: Index, offsets: dict[TopicPartition, set[int]], values: set[int]) -> None:
        self.by_offset: dict[tuple[TopicPartition, int], list[Observation]] = {}
        self.by_value: dict[int, list[Observation]] = {}
        if not values and not any(offsets.values()):
            return

        def add(tp: TopicPartition, observation: Observation) -> None:
            if observation.offset in offsets.get(tp, ()):
                self.by_offset.setdefault((tp, observation.offset), []).append(observation)
            if observation.value in values:
                self.by_value.setdefault(observation.value, []).append(observation)

        for poll in index.of(Poll):
            until = ended(poll)
            for read in poll.action.reads:
                if read.value in values or read.offset in offsets.get(read.tp, ()):
                    add(read.tp, Observation(read.value, read.offset, poll.begun, until, poll))
        for partition in index.partitions.values():
            for send in partition.sends:
                for offset, value in _acknowledged_records(send):
                    observation = Observation(value, offset, acknowledged_since(send), effect_end(send), send)
                    add(partition.tp, observation)


# Compaction.


def key_of(value: int, keys: int) -> int:
    """Return the key of a value, from 0 to `keys` - 1."""
    return value % keys


class LastOffsets:
    """The last offset of each key that the final polls of a partition have returned."""

    def __init__(self, partition: PartitionIndex) -> None:
        self._keys = partition.keys
        self._last: dict[int, int] = {}
        if self._keys:
            for offset, value in partition.final.items():
                key = key_of(value, self._keys)
                self._last[key] = max(offset, self._last.get(key, -1))

    def is_superseded(self, value: int, offset: int = -1) -> bool:
        """Return whether a later record has the same key. `offset` is -1 if it is not known."""
        return bool(self._keys) and self._last.get(key_of(value, self._keys), -1) > offset


class _Record(NamedTuple):
    """`sent`: the step at which its send began. `written`: a step by which it was in the log; NEVER if unknown."""

    offset: int
    sent: int
    written: int


class SupersedingRecords:
    """The records of a partition because of which compaction may have removed earlier ones of their keys.

    Only a durable record supersedes: the cleaner does not read above the recovery point. No Loss removes a durable
    record, so its offset never holds another value, a later Loss does not name its offset, and in the end its key has
    a record at its offset or a later one. `seen`: all observations of the partition's conflicting offsets.
    """

    def __init__(self, index: Index, partition: PartitionIndex, seen: Observations) -> None:
        self._partition = partition
        self._final = LastOffsets(partition)
        self._records: dict[int, list[_Record]] = {}
        # The step of the first send of each key whose offset is not known.
        self._unobserved: dict[int, int] = {}
        if not partition.keys:
            return
        for offset, first_value in partition.value_at.items():
            values = [first_value]
            if offset in partition.conflicting_offsets:
                values = _last_values(seen.by_offset.get((partition.tp, offset), []))
            for value in values:
                sender = index.senders.get(value)
                sent, written = (0, NEVER) if sender is None else (sender.begun, effect_end(sender))
                self._records.setdefault(key_of(value, partition.keys), []).append(_Record(offset, sent, written))
        for send in partition.sends:
            # It may have been written, and its offset is not known.
            if send.outcome is not Outcome.FAILED and not (acknowledged(send) and send.action.base_offset is not None):
                for value in send.action.values:
                    if value not in partition.offset_of:
                        self._unobserved.setdefault(key_of(value, partition.keys), send.begun)

    def may_have_removed(self, value: int, offset: int, until: int) -> bool:
        """Return whether compaction may have removed the record with this value and offset before step `until`."""
        if not self._partition.keys:
            return False
        key = key_of(value, self._partition.keys)
        if self._unobserved.get(key, NEVER) < until and self._remains(value, offset + 1, 0):
            return True
        return any(
            record.offset > offset
            and record.sent < until
            and not self._partition.may_have_lost(record.offset, max(record.written, until), NEVER)
            and self._remains(value, record.offset, record.sent)
            for record in self._records.get(key, ())
        )

    def _remains(self, value: int, offset: int, sent: int) -> bool:
        """Return whether the final polls returned a record of this key at `offset` or later, or need not have."""
        return (
            not self._partition.final
            or self._final.is_superseded(value, offset - 1)
            or self._partition.may_be_deleted(offset, sent)
        )


def _last_values(observations: list[Observation]) -> list[int]:
    """Return the values after which no other value was observed at the offset."""
    return [
        value
        for value in dict.fromkeys(observation.value for observation in observations)
        if (last := max(observation.until for observation in observations if observation.value == value))
        and not any(observation.value != value and observation.since > last for observation in observations)
    ]
