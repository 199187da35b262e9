"""Committed offsets: one register for each group and partition.

A read gives a commit that was not yet overwritten: one that was concurrent, that never got an answer, or the last that
was acknowledged before the read began. What has been read once is not undone. A Loss may take what its `commit_floors`
does not name: the durable commit, or something newer, is what must be left. The checker knows no retention of offsets
and no deletion of groups: a history in which they expire is not for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name
from kbroker.simulation.checker.history import Commit, Loss, OffsetFetch, Operation, Outcome, Place
from kbroker.simulation.checker.index import NEVER, Index, effect_end

Key = tuple[str, Place]

NOTHING = -1


class Write(NamedTuple):
    """A commit of one partition: it took effect between two steps, or did so later or never if `end` is NEVER."""

    offset: int
    begun: int
    end: int
    operation: Operation | None


@dataclass(slots=True)
class CommittedOffsetHistory:
    """What concerns one group and partition, in the order of the history."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Operation] = field(default_factory=list)
    losses: list[Operation] = field(default_factory=list)


def commit_histories(index: Index) -> dict[Key, CommittedOffsetHistory]:
    """Commits of a transaction take effect when it is committed."""
    found: dict[Key, CommittedOffsetHistory] = {}
    for operation in index.commits:
        commit = operation.action
        assert isinstance(commit, Commit)
        effect = _effect(index, operation, commit)
        if effect is not None:
            for place, offset in commit.offsets.items():
                register = found.setdefault((commit.group, place), CommittedOffsetHistory())
                register.writes.append(Write(offset, *effect, operation))
    for operation in index.offset_fetches:
        committed = operation.action
        assert isinstance(committed, OffsetFetch)
        if operation.outcome is Outcome.OK:
            for place in committed.offsets:
                found.setdefault((committed.group, place), CommittedOffsetHistory()).reads.append(operation)
    for operation in index.losses:
        assert isinstance(operation.action, Loss)
        for key in operation.action.commit_floors:
            found.setdefault(key, CommittedOffsetHistory()).losses.append(operation)
    for register in found.values():
        register.writes.sort(key=lambda write: write.begun)
    return found


def _effect(index: Index, operation: Operation, commit: Commit) -> tuple[int, int] | None:
    if operation.outcome is Outcome.FAILED:
        return None
    if commit.transaction is None:
        return operation.begun, effect_end(operation)
    ends = [one for one in index.transaction_ends.get(commit.transaction, []) if one.outcome is not Outcome.FAILED]
    commits = [one for one in ends if getattr(one.action, "commit", False)]
    if not commits or any(one.outcome is Outcome.OK for one in ends if one not in commits):
        return None
    sure = operation.outcome is Outcome.OK
    return commits[0].begun, min(effect_end(one) for one in commits) if sure else NEVER


def committed_offset_anomalies(index: Index, *, durable: bool) -> Iterator[Anomaly]:
    """`durable`: what a Loss leaves must be as good as what a read gives."""
    for (group, place), register in commit_histories(index).items():
        yield from _CommittedOffsetChecker(group, place, register, durable).run()


class _CommittedOffsetChecker:
    """One register, step by step.

    `_overwritten`: a commit that ended before this step is not the register's any more. An acknowledged commit moves
    it to its own beginning, and so does a read: what ended before the read and is not what it gave is overwritten. A
    Loss moves it back to the beginning of the durable commit.
    """

    def __init__(self, group: str, place: Place, register: CommittedOffsetHistory, durable: bool) -> None:
        self._group, self._place, self._durable = group, place, durable
        self._register = register
        # Before all commits there is nothing.
        self._by_offset: dict[int, list[Write]] = {NOTHING: [Write(NOTHING, 0, 0, None)]}
        for write in register.writes:
            self._by_offset.setdefault(write.offset, []).append(write)
        self._overwritten = 0
        self._overwriter: Operation | None = None
        self._seen = 0
        self._seen_offset = NOTHING
        self._lost_before = 0
        # The beginning of what was durable at the last Loss.
        self._durable_from = 0
        # For each read that is under way: what was overwritten when it began, or less after a Loss since.
        self._at_begin: dict[int, tuple[int, int, int, Operation | None]] = {}

    def run(self) -> Iterator[Anomaly]:
        for _, kind, _, event in _events(self._register):
            if isinstance(event, Write):
                # It began before a Loss and is acknowledged after it: the answer may come from before.
                if event.begun > self._lost_before and event.begun > self._overwritten:
                    self._overwritten, self._overwriter = event.begun, event.operation
            elif kind == _LOSS:
                yield from self._lose(event)
            elif kind == _BEGIN:
                self._at_begin[event.number] = (self._overwritten, self._seen, self._seen_offset, self._overwriter)
            else:
                yield from self._read(event)

    def _lose(self, loss: Operation) -> Iterator[Anomaly]:
        assert isinstance(loss.action, Loss)
        floor = loss.action.commit_floors[self._group, self._place]
        kept = self._possible(floor, loss.begun, self._overwritten, self._seen, self._seen_offset)
        if self._durable and not kept:
            yield anomaly(
                "unflushed acknowledgement",
                f"{self._name()} was acknowledged before it was durable: when the power was lost, {_said(floor)} was.",
                self._overwriter,
                loss,
            )
        # Of several commits of this offset the first may be the durable one, unless an earlier Loss took it. What was
        # durable then is durable now, except on a disk that rots.
        before = [one for one in self._by_offset.get(floor, []) if one.begun < loss.begun]
        durable = next((one for one in before if one.end >= self._durable_from), before[0] if before else None)
        self._durable_from = self._overwritten = min(self._overwritten, 0 if durable is None else durable.begun)
        self._overwriter = None if durable is None else durable.operation
        self._seen, self._seen_offset, self._lost_before = 0, NOTHING, loss.begun
        for number in self._at_begin:
            overwritten = min(self._at_begin[number][0], self._overwritten)
            self._at_begin[number] = (overwritten, 0, NOTHING, self._overwriter)

    def _read(self, read: Operation) -> Iterator[Anomaly]:
        assert isinstance(read.action, OffsetFetch)
        offset = read.action.offsets[self._place]
        overwritten, seen, seen_offset, overwriter = self._at_begin.pop(read.number)
        end = NEVER if read.ended is None else read.ended
        if self._possible(offset, end, overwritten, seen, seen_offset):
            if read.begun > max(self._seen, self._lost_before):
                self._seen, self._seen_offset = read.begun, offset
            return
        writers = [write.operation for write in self._by_offset.get(offset, []) if write.begun < end]
        if writers:
            kind, text = "lost commit", "although a later commit had been acknowledged or read"
        else:
            kind, text = "unknown commit", "which nobody had committed"
        yield anomaly(kind, f"{self._name()} was read as {_said(offset)}, {text}.", *writers[-1:], overwriter, read)

    def _possible(self, offset: int, end: int, overwritten: int, seen: int, seen_offset: int) -> bool:
        """Whether a commit of this offset may be in the register before the step `end`. Newest first: mostly it is
        the one."""
        oldest = overwritten if offset == seen_offset else max(overwritten, seen)
        return any(one.begun < end and one.end >= oldest for one in reversed(self._by_offset.get(offset, [])))

    def _name(self) -> str:
        return f"The committed offset of {self._group} for {partition_name(self._place)}"


_BEGIN, _LOSS, _WRITE, _END = range(4)


def _events(register: CommittedOffsetHistory) -> Iterator[tuple[int, int, int, Write | Operation]]:
    """(step, kind, number, what): reads' beginnings and ends, losses, and commits when they are acknowledged."""
    begins = ((one.begun, _BEGIN, one.number, one) for one in register.reads)
    ends = ((NEVER if one.ended is None else one.ended, _END, one.number, one) for one in register.reads)
    losses = ((one.begun, _LOSS, one.number, one) for one in register.losses)
    writes = ((one.end, _WRITE, i, one) for i, one in enumerate(register.writes) if one.end != NEVER)
    events: list[tuple[int, int, int, Write | Operation]] = [*begins, *ends, *losses, *writes]
    return iter(sorted(events, key=itemgetter(0, 1, 2)))


def _said(offset: int) -> str:
    return "nothing" if offset == NOTHING else f"offset {offset}"
