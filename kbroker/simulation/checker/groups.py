"""Group fencing: generations increase, a partition has one owner per generation, commits of old members are rejected.

What Kafka permits:

- A power loss removes generations with the suffix of __consumer_offsets: the group continues from the last durable
  one, and the same generation numbers are used again, for other members. So a Loss begins a new era for all groups,
  and operations that began in one era and ended in another are not checked. If all acknowledged records are durable,
  there is one era. A kill loses nothing: a generation is written before the members receive it.
- A group without members and offsets is removed after a while (GroupCoordinator's cleanup, every 10 minutes), and
  then starts again at generation 1.
- A static member that rejoins replaces its previous instance in the same generation, with its partitions; the previous
  one is fenced (KIP-345).
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, TypeVar, cast

from kbroker.simulation.checker.anomaly import Anomaly, anomaly
from kbroker.simulation.checker.history import (
    Commit,
    Join,
    Loss,
    OffsetFetch,
    Operation,
    OperationOf,
    Outcome,
    Own,
    TopicPartition,
    partition_name,
)
from kbroker.simulation.checker.index import NEVER, Index, effect_end, ended

J = TypeVar("J", Join, Commit)
# A group in one era; the era is the number of losses before it.
_Group = tuple[str, int]


def group_fencing_anomalies(index: Index, *, durable: bool) -> Iterator[Anomaly]:
    """Report backward generations, double assignments and stale commits. `durable`: a Loss removes no generations."""
    eras = [] if durable else [loss.begun for loss in index.of(Loss)]
    commits = _by_group(eras, [commit for commit in index.of(Commit) if commit.action.generation >= 0])
    # Before its first commit a group has no offsets.
    first_commits: dict[str, int] = {}
    for commit in index.of(Commit):
        if commit.outcome is not Outcome.FAILED:
            first_commits.setdefault(commit.action.group, commit.begun)
    # In groups of the consumer protocol each member has an epoch of its own: ownership.py checks those.
    with_epochs = {own.action.group for own in index.of(Own)}
    joins = [join for join in index.of(Join) if join.action.group not in with_epochs]
    for group, group_joins in _by_group(eras, joins).items():
        lives = _lives(group_joins, first_commits.get(group[0]))
        for life in lives:
            yield from _backward_generations(life)
            yield from _double_assignments(life)
        yield from _stale_commits(lives[-1], commits.get(group, []))


def _by_group(eras: list[int], operations: Iterable[OperationOf[J]]) -> dict[_Group, list[OperationOf[J]]]:
    """Group successful operations, without those that began in one era and ended in another."""
    groups: dict[_Group, list[OperationOf[J]]] = {}
    for operation in operations:
        era = bisect_left(eras, operation.begun)
        if operation.outcome is Outcome.OK and bisect_left(eras, ended(operation)) == era:
            groups.setdefault((operation.action.group, era), []).append(operation)
    return groups


def _lives(joins: list[OperationOf[Join]], first_commit: int | None) -> list[list[OperationOf[Join]]]:
    """Split the joins of a group where it was removed and created again: it goes back to an earlier generation although
    it has no offsets yet. All commits belong to the last part."""
    lives: list[list[OperationOf[Join]]] = [[]]
    for operation in sorted(joins, key=lambda join: join.begun):
        may_be_removed = first_commit is None or operation.begun < first_commit
        if may_be_removed and any(_precedes(join, operation) for join in lives[-1]):
            lives.append([])
        lives[-1].append(operation)
    return lives


def _precedes(join: OperationOf[Join], other: OperationOf[Join]) -> bool:
    """Return whether a join ended before the other began, although it has a later generation."""
    return ended(join) < other.begun and _generation(join) > _generation(other)


def _backward_generations(joins: list[OperationOf[Join]]) -> Iterator[Anomaly]:
    """Report joins with a lower generation than a join that ended before they began."""
    for operation in sorted(joins, key=lambda join: join.begun):
        latest = max((join for join in joins if ended(join) < operation.begun), key=_generation, default=None)
        if latest is not None and _precedes(latest, operation):
            yield anomaly(
                "backward generation",
                f"{operation.action.group} was in generation {_generation(latest)}; then {operation.action.member} "
                f"joined generation {_generation(operation)}.",
                latest,
                operation,
            )


def _generation(operation: OperationOf[Join | Commit]) -> int:
    return operation.action.generation


def _double_assignments(joins: list[OperationOf[Join]]) -> Iterator[Anomaly]:
    """Report partitions with two owners (members or static instances) in one generation."""
    holders: dict[tuple[int, TopicPartition], OperationOf[Join]] = {}
    for operation in joins:
        join = operation.action
        for tp in join.partitions:
            holder = holders.setdefault((join.generation, tp), operation)
            if _identity(holder.action) != _identity(join):
                yield anomaly(
                    "double assignment",
                    f"In generation {join.generation} of {join.group} both {holder.action.member} and {join.member} "
                    f"have {partition_name(tp)}.",
                    holder,
                    operation,
                )


def _identity(join: Join) -> str:
    return f"member {join.member}" if join.instance is None else f"instance {join.instance}"


def _stale_commits(joins: list[OperationOf[Join]], commits: list[OperationOf[Commit]]) -> Iterator[Anomaly]:
    """Report successful commits of members that were fenced before the commit began: another member had joined a later
    generation, or replaced the same static instance."""
    joins = sorted(joins, key=ended)
    instances = {join.action.member: join.action.instance for join in joins}
    for operation in sorted(commits, key=lambda commit: commit.begun):
        commit, instance = operation.action, instances.get(operation.action.member)
        before = joins[: bisect_left(joins, operation.begun, key=ended)]
        newer = max(before, key=_generation, default=None)
        if newer is None or _generation(newer) <= commit.generation:
            same = (commit.generation, instance)
            successors = [join for join in before if (join.action.generation, join.action.instance) == same]
            is_replaced = instance is not None and successors and successors[-1].action.member != commit.member
            newer = successors[-1] if is_replaced else None
        if newer is not None:
            yield anomaly(
                "stale commit",
                f"{commit.member} of generation {commit.generation} of {commit.group} committed offsets although "
                f"{newer.action.member} had joined generation {newer.action.generation}.",
                newer,
                operation,
            )


# Committed offsets: each group and partition is one linearizable register.
#
# A read (OffsetFetch) must return a commit that was not overwritten before the read began: a concurrent commit, a
# commit without a response, or the last commit that was acknowledged before the read began. A commit that was read must
# not be undone. With several replicas a read before the final reads may be stale: it comes from a coordinator that does
# not know yet that it was replaced. After a Loss the durable commit, which its `commit_floors` names, or a newer one
# must remain. The checker does not support histories in which offsets expire or groups are deleted.

Key = tuple[str, TopicPartition]

NOTHING = -1


class Write(NamedTuple):
    """A commit for one partition. It took effect between steps `begun` and `end`; if `end` is NEVER, it may take effect
    at any later time, or never."""

    offset: int
    begun: int
    end: int
    operation: Operation | None


@dataclass(slots=True)
class CommittedOffsetHistory:
    """The commits, reads and losses of one group and partition, in history order."""

    writes: list[Write] = field(default_factory=list)
    reads: list[OperationOf[OffsetFetch]] = field(default_factory=list)
    losses: list[OperationOf[Loss]] = field(default_factory=list)


def commit_histories(index: Index) -> dict[Key, CommittedOffsetHistory]:
    """Split the history by group and partition. Commits of a transaction take effect when it is committed."""
    histories: dict[Key, CommittedOffsetHistory] = {}
    for operation in index.of(Commit):
        commit = operation.action
        effect = _effect_interval(index, operation, commit)
        if effect is not None:
            for tp, offset in commit.offsets.items():
                register = histories.setdefault((commit.group, tp), CommittedOffsetHistory())
                register.writes.append(Write(offset, *effect, operation))
    for fetch in index.of(OffsetFetch):
        if fetch.outcome is Outcome.OK:
            for tp in fetch.action.offsets:
                histories.setdefault((fetch.action.group, tp), CommittedOffsetHistory()).reads.append(fetch)
    for loss in index.of(Loss):
        for key in loss.action.commit_floors:
            histories.setdefault(key, CommittedOffsetHistory()).losses.append(loss)
    for register in histories.values():
        register.writes.sort(key=lambda write: write.begun)
    return histories


def _effect_interval(index: Index, operation: Operation, commit: Commit) -> tuple[int, int] | None:
    if operation.outcome is Outcome.FAILED:
        return None
    if commit.transaction is None:
        return operation.begun, effect_end(operation)
    ends = [end for end in index.transaction_ends.get(commit.transaction, []) if end.outcome is not Outcome.FAILED]
    commits = [end for end in ends if end.action.commit]
    if not commits or any(end.outcome is Outcome.OK for end in ends if end not in commits):
        return None
    is_certain = operation.outcome is Outcome.OK
    return commits[0].begun, min(effect_end(end) for end in commits) if is_certain else NEVER


def committed_offset_anomalies(index: Index, *, durable: bool) -> Iterator[Anomaly]:
    """Report reads that break the rules above. `durable`: what remains after a Loss must satisfy the same rules."""
    for (group, tp), register in commit_histories(index).items():
        fresh_from = (NEVER if index.history.final is None else index.history.final) if index.replicated else 0
        yield from _CommittedOffsetChecker(group, tp, register, durable, fresh_from).run()


class _State(NamedTuple):
    """`overwritten`: commits that ended before this step are overwritten. An acknowledged commit, `overwriter`,
    advances it to the commit's beginning. A read advances `last_read` in the same way, for all offsets but the one that
    it returned. A Loss moves `overwritten` back to the beginning of the durable commit."""

    overwritten: int
    overwriter: Operation | None
    last_read: int = 0
    last_read_offset: int = NOTHING


class _CommittedOffsetChecker:
    """Checks one group and partition, event by event. Reads that began before `fresh_from` may be stale."""

    def __init__(
        self, group: str, tp: TopicPartition, register: CommittedOffsetHistory, durable: bool, fresh_from: int
    ) -> None:
        self._group, self._place, self._durable, self._fresh_from = group, tp, durable, fresh_from
        self._register = register
        # No offset is committed at first.
        self._by_offset: dict[int, list[Write]] = {NOTHING: [Write(NOTHING, 0, 0, None)]}
        for write in register.writes:
            self._by_offset.setdefault(write.offset, []).append(write)
        self._state = _State(0, None)
        self._last_loss = 0
        # The beginning of the commit that was durable at the last Loss.
        self._durable_from = 0
        # The state when each pending read began; a Loss during the read moves it back.
        self._at_begin: dict[int, _State] = {}

    def run(self) -> Iterator[Anomaly]:
        for _, kind, _, event in _events(self._register):
            if isinstance(event, Write):
                # A commit that began before a Loss and ended after it may have been acknowledged before the Loss.
                if event.begun > self._last_loss and event.begun > self._state.overwritten:
                    self._state = self._state._replace(overwritten=event.begun, overwriter=event.operation)
            elif kind == _LOSS:
                yield from self._lose(cast(OperationOf[Loss], event))
            elif kind == _BEGIN:
                self._at_begin[event.number] = self._state
            else:
                yield from self._read(cast(OperationOf[OffsetFetch], event))

    def _lose(self, loss: OperationOf[Loss]) -> Iterator[Anomaly]:
        floor = loss.action.commit_floors[self._group, self._place]
        if self._durable and not self._possible(floor, loss.begun, self._state):
            yield anomaly(
                "unflushed acknowledgement",
                f"{self._name()} was acknowledged before it was durable: at the power loss "
                f"{_offset_text(floor)} was durable.",
                self._state.overwriter,
                loss,
            )
        # If several commits have this offset, assume that the first one is durable, unless an earlier Loss removed it.
        # Except after bit rot, what was durable at an earlier Loss still is.
        before = [write for write in self._by_offset.get(floor, []) if write.begun < loss.begun]
        durable = next((write for write in before if write.end >= self._durable_from), before[0] if before else None)
        self._durable_from = min(self._state.overwritten, 0 if durable is None else durable.begun)
        self._state = _State(self._durable_from, None if durable is None else durable.operation)
        self._last_loss = loss.begun
        for number, state in self._at_begin.items():
            overwritten = min(state.overwritten, self._durable_from)
            self._at_begin[number] = _State(overwritten, self._state.overwriter)

    def _read(self, read: OperationOf[OffsetFetch]) -> Iterator[Anomaly]:
        offset = read.action.offsets[self._place]
        state, end = self._at_begin.pop(read.number), ended(read)
        if self._possible(offset, end, state):
            if read.begun > max(self._state.last_read, self._last_loss):
                self._state = self._state._replace(last_read=read.begun, last_read_offset=offset)
            return
        if read.begun < self._fresh_from and self._possible(offset, end, _State(0, None)):
            return
        writers = [write.operation for write in self._by_offset.get(offset, []) if write.begun < end]
        if writers:
            kind, text = "lost commit", "although a later commit had been acknowledged or read"
        else:
            kind, text = "unknown commit", "which was never committed"
        yield anomaly(
            kind, f"{self._name()} was read as {_offset_text(offset)}, {text}.", *writers[-1:], state.overwriter, read
        )

    def _possible(self, offset: int, end: int, state: "_State") -> bool:
        """Return whether this offset may be the committed one before step `end`. The newest commit is tried first,
        since it is usually the match."""
        is_last_read = offset == state.last_read_offset
        oldest = state.overwritten if is_last_read else max(state.overwritten, state.last_read)
        return any(write.begun < end and write.end >= oldest for write in reversed(self._by_offset.get(offset, [])))

    def _name(self) -> str:
        return f"The committed offset of {self._group} for {partition_name(self._place)}"


_BEGIN, _LOSS, _WRITE, _END = range(4)


def _events(register: CommittedOffsetHistory) -> Iterator[tuple[int, int, int, Write | Operation]]:
    """Return (step, kind, number, event), in order: beginnings and ends of reads, losses, acknowledged commits."""
    begins = ((read.begun, _BEGIN, read.number, read) for read in register.reads)
    ends = ((ended(read), _END, read.number, read) for read in register.reads)
    losses = ((loss.begun, _LOSS, loss.number, loss) for loss in register.losses)
    writes = ((write.end, _WRITE, i, write) for i, write in enumerate(register.writes) if write.end != NEVER)
    events: list[tuple[int, int, int, Write | Operation]] = [*begins, *ends, *losses, *writes]
    return iter(sorted(events, key=itemgetter(0, 1, 2)))


def _offset_text(offset: int) -> str:
    return "nothing" if offset == NOTHING else f"offset {offset}"
