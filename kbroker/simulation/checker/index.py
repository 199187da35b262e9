"""One walk over the history: what is known of each partition, and where knowledge contradicts itself.

Histories are long and mostly right, so the walk does as little as possible for each record that was read: it remembers
the first value at each offset and the first offset of each value, and notes what differs. Only for what was noted are
all sightings gathered (`Index.sightings`) and judged.
"""

import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.simulation.checker.history import (
    Assign,
    Commit,
    Corrupt,
    EndTransaction,
    History,
    Join,
    Loss,
    OffsetFetch,
    Operation,
    Outcome,
    Place,
    Poll,
    Send,
    Trim,
)

# The step at which what has no end ends.
NEVER = sys.maxsize


class PossibleLoss(NamedTuple):
    """A Loss of one partition: at this step what lay at `floor` or above may have gone."""

    step: int
    floor: int


class Observation(NamedTuple):
    """At some moment between two steps this offset held this value: a read says so, or an acknowledgement."""

    value: int
    offset: int
    since: int
    until: int
    operation: Operation


@dataclass(slots=True)
class PartitionIndex:
    """`keys`: how many keys a compacted partition has; 0 without compaction.

    `at`: the first value observed at each offset, in reads and then in acknowledgements. `where`: the offset at which
    each value was first read. `conflicting_offsets`: offsets with several values. `moved_values`: values with several
    offsets. `final`: the values that the final polls returned, by offset. `final_end`: the offset up to which the final
    polls have read.
    """

    place: Place
    keys: int = 0
    possible_losses: list[PossibleLoss] = field(default_factory=list)
    trims: list[Operation] = field(default_factory=list)
    sends: list[Operation] = field(default_factory=list)
    at: dict[int, int] = field(default_factory=dict)
    where: dict[int, int] = field(default_factory=dict)
    conflicting_offsets: dict[int, None] = field(default_factory=dict)
    moved_values: dict[int, None] = field(default_factory=dict)
    final: dict[int, int] = field(default_factory=dict)
    final_end: int = 0
    _known: list[int] | None = None

    def may_have_lost(self, offset: int, since: int, until: int) -> bool:
        """Whether a Loss between these steps may have taken this offset."""
        return any(cut.floor <= offset and since < cut.step < until for cut in self.possible_losses)

    def may_be_deleted(self, offset: int, sent: int, until: int = NEVER) -> bool:
        """Whether a record may have been deleted before the step `until`. It was sent at the step `sent`: what is
        sent after a deletion (at an offset that a Loss gave back) is not meant by it. Before -1 is the end."""
        for trim in self.trims:
            assert isinstance(trim.action, Trim)
            before = trim.action.before
            if (before > offset or before < 0) and trim.begun < until and sent < effect_end(trim):
                return True
        return False

    def deletion_bound(self, until: int) -> int:
        """The highest offset before which records were asked to be deleted before the step `until`; -1: none."""
        return max(
            (trim.action.before for trim in self.trims if isinstance(trim.action, Trim) and trim.begun < until),
            default=-1,
        )

    def has_unresolved_deletion(self, offset: int, until: int) -> bool:
        """Whether a deletion of this offset began before the step `until` and never was answered: it may have been,
        and may have been undone."""
        return any(
            isinstance(trim.action, Trim)
            and not 0 <= trim.action.before <= offset
            and trim.begun < until
            and trim.outcome is not Outcome.OK
            for trim in self.trims
        )

    def known_between(self, low: int, high: int) -> list[int]:
        """The offsets from `low` to before `high` that have been seen to hold a record."""
        if self._known is None:
            self._known = sorted(self.at)
        return self._known[bisect_left(self._known, low) : bisect_left(self._known, high)]


@dataclass(slots=True)
class Index:
    """`compacted`: how many keys a compacted topic has. `senders`: who sent a value. `transactional`: anything was sent
    in a transaction. `consuming`: each process's polls and assignments, in order."""

    history: History
    compacted: Mapping[str, int] = field(default_factory=dict)
    partitions: dict[Place, PartitionIndex] = field(default_factory=dict)
    senders: dict[int, Operation] = field(default_factory=dict)
    transactional: bool = False
    polls: list[Operation] = field(default_factory=list)
    consumer_operations: dict[str, list[Operation]] = field(default_factory=dict)
    joins: list[Operation] = field(default_factory=list)
    commits: list[Operation] = field(default_factory=list)
    offset_fetches: list[Operation] = field(default_factory=list)
    losses: list[Operation] = field(default_factory=list)
    corrupt: list[Operation] = field(default_factory=list)
    transaction_ends: dict[int, list[Operation]] = field(default_factory=dict)

    def partition(self, place: Place) -> PartitionIndex:
        found = self.partitions.get(place)
        if found is None:
            found = self.partitions[place] = PartitionIndex(place, self.compacted.get(place[0], 0))
        return found

    def observations(self, offsets: Mapping[Place, Iterable[int]], values: Iterable[int] = ()) -> "Observations":
        """All that was seen of these offsets and of these values, in one more walk."""
        return Observations(self, {place: set(some) for place, some in offsets.items()}, set(values))


def build_index(history: History, compacted: Mapping[str, int] | None = None) -> Index:
    """Everything that the judges need, in the history's order."""
    index = Index(history, compacted or {})
    for operation in history.operations:
        _take(index, operation)
    for partition in index.partitions.values():
        partition.final_end = max(partition.final_end, max(partition.final, default=-1) + 1)
        for operation in partition.sends:
            _take_acknowledgement(partition, operation)
    return index


def effect_end(operation: Operation) -> int:
    """The step after which the operation has no more effect. Of one without an answer it may come at any time."""
    return NEVER if operation.ended is None or operation.outcome is Outcome.UNKNOWN else operation.ended


def acknowledged_since(send: Operation) -> int:
    """From which step on an acknowledgement is about what the broker had. One that came after a Loss may have been on
    its way before it, unless it is known to answer an attempt that was made after the Loss."""
    assert isinstance(send.action, Send)
    return send.begun if send.action.attempted is None else send.action.attempted


def acknowledged(send: Operation) -> bool:
    """Whether the broker has promised to keep the batch: with acks=0 it promises nothing."""
    return send.outcome is Outcome.OK and isinstance(send.action, Send) and send.action.acks != 0


def _take(index: Index, operation: Operation) -> None:
    action = operation.action
    kind = type(action)
    if kind is Poll:
        index.polls.append(operation)
        index.consumer_operations.setdefault(operation.process, []).append(operation)
        _take_poll(index, operation)
    elif isinstance(action, Send):
        index.partition(action.place).sends.append(operation)
        index.transactional = index.transactional or action.transaction is not None
        for value in action.values:
            index.senders[value] = operation
    elif kind is Assign:
        index.consumer_operations.setdefault(operation.process, []).append(operation)
    elif kind is Commit:
        index.commits.append(operation)
    elif kind is OffsetFetch:
        index.offset_fetches.append(operation)
    elif kind is Join:
        index.joins.append(operation)
    elif kind is Corrupt:
        index.corrupt.append(operation)
    elif isinstance(action, EndTransaction):
        index.transaction_ends.setdefault(action.transaction, []).append(operation)
    elif isinstance(action, Trim):
        if operation.outcome is not Outcome.FAILED:
            index.partition(action.place).trims.append(operation)
    elif isinstance(action, Loss):
        index.losses.append(operation)
        for place, floor in action.floors.items():
            index.partition(place).possible_losses.append(PossibleLoss(operation.begun, floor))


def _take_poll(index: Index, operation: Operation) -> None:
    """The innermost loop of the checker."""
    poll = operation.action
    assert isinstance(poll, Poll)
    is_final = index.history.final is not None and operation.begun > index.history.final
    place: Place | None = None
    for read in poll.reads:
        if read.place is not place:
            place = read.place
            partition = index.partition(place)
            at, where, final = partition.at, partition.where, partition.final
        offset, value = read.offset, read.value
        known = at.get(offset)
        if known != value:
            if known is None:
                at[offset] = value
            else:
                partition.conflicting_offsets[offset] = None
            if where.setdefault(value, offset) != offset:
                partition.moved_values[value] = None
        if is_final:
            final[offset] = value
    if is_final and operation.outcome is Outcome.OK:
        for place, position in poll.positions.items():
            partition = index.partition(place)
            partition.final_end = max(partition.final_end, position)


def _take_acknowledgement(partition: PartitionIndex, operation: Operation) -> None:
    send = operation.action
    assert isinstance(send, Send)
    if send.base_offset is None or not acknowledged(operation):
        return
    at, where = partition.at, partition.where
    for offset, value in enumerate(send.values, send.base_offset):
        if at.setdefault(offset, value) != value:
            partition.conflicting_offsets[offset] = None
        if where.get(value, offset) != offset:
            partition.moved_values[value] = None


class Observations:
    """`by_offset` and `by_value`, in the order of the history."""

    def __init__(self, index: Index, offsets: dict[Place, set[int]], values: set[int]) -> None:
        self.by_offset: dict[tuple[Place, int], list[Observation]] = {}
        self.by_value: dict[int, list[Observation]] = {}
        self._offsets, self._values = offsets, values
        if not values and not any(offsets.values()):
            return
        for operation in index.polls:
            assert isinstance(operation.action, Poll)
            until = NEVER if operation.ended is None else operation.ended
            for read in operation.action.reads:
                if read.value in values or read.offset in offsets.get(read.place, ()):
                    self._add(read.place, Observation(read.value, read.offset, operation.begun, until, operation))
        for partition in index.partitions.values():
            self._add_acknowledgements(partition)

    def _add_acknowledgements(self, partition: PartitionIndex) -> None:
        wanted = self._offsets.get(partition.place, set())
        for operation in partition.sends:
            send = operation.action
            assert isinstance(send, Send)
            if send.base_offset is None or not acknowledged(operation):
                continue
            for offset, value in enumerate(send.values, send.base_offset):
                if value in self._values or offset in wanted:
                    self._add(
                        partition.place,
                        Observation(value, offset, acknowledged_since(operation), effect_end(operation), operation),
                    )

    def _add(self, place: Place, sighting: Observation) -> None:
        if sighting.offset in self._offsets.get(place, ()):
            self.by_offset.setdefault((place, sighting.offset), []).append(sighting)
        if sighting.value in self._values:
            self.by_value.setdefault(sighting.value, []).append(sighting)
