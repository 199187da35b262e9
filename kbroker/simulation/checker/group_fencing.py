"""Fencing in groups: generations do not go back, one member has a partition, an old member commits nothing.

What Kafka permits:

- A power loss takes a group's generations with the suffix of __consumer_offsets: the group goes on from the last
  durable one, and the same numbers are given out again, to others. So a Loss begins a new era for all groups, and
  what began in one era and ended in another is not judged. Where everything acknowledged is durable there is one era.
  A process that is killed does not change anything: a generation is written before its members are told.
- A group without members and without offsets is forgotten after a while (GroupCoordinator's cleanup, every 10
  minutes), and then begins again at generation 1.
- A static member that comes back takes the place of the one before it in the same generation, with its partitions; the
  other one is fenced (KIP-345).
"""

from bisect import bisect_left
from collections.abc import Iterator

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name
from kbroker.simulation.checker.history import Commit, Join, Operation, Outcome, Place
from kbroker.simulation.checker.index import Index

# A group in one era; the era is the number of losses before it.
_Group = tuple[str, int]


def group_fencing_anomalies(index: Index, *, durable: bool) -> Iterator[Anomaly]:
    """`durable`: no Loss takes a generation."""
    eras = [] if durable else [loss.begun for loss in index.losses]
    joins: dict[_Group, list[Operation]] = {}
    for operation in index.joins:
        era = _era(eras, operation)
        if era is not None and operation.outcome is Outcome.OK and isinstance(operation.action, Join):
            joins.setdefault((operation.action.group, era), []).append(operation)
    commits: dict[_Group, list[Operation]] = {}
    for operation in index.commits:
        assert isinstance(operation.action, Commit)
        era = _era(eras, operation)
        if era is not None and operation.action.generation >= 0 and operation.outcome is Outcome.OK:
            commits.setdefault((operation.action.group, era), []).append(operation)
    first_commits = _first_commits(index)
    for group, found in joins.items():
        lives = _lives(found, first_commits.get(group[0]))
        for life in lives:
            yield from _backward_generations(life)
            yield from _double_assignments(life)
        yield from _stale_commits(lives[-1], commits.get(group, []))


def _era(eras: list[int], operation: Operation) -> int | None:
    """None for an operation that began in one era and ended in another."""
    if operation.ended is None:
        return None
    era = bisect_left(eras, operation.begun)
    return era if bisect_left(eras, operation.ended) == era else None


def _first_commits(index: Index) -> dict[str, int]:
    """The step since which a group may have offsets."""
    found: dict[str, int] = {}
    for operation in index.commits:
        if isinstance(operation.action, Commit) and operation.outcome is not Outcome.FAILED:
            found.setdefault(operation.action.group, operation.begun)
    return found


def _lives(joins: list[Operation], first_commit: int | None) -> list[list[Operation]]:
    """A group that goes back to an earlier generation before it has offsets had been forgotten: another life of it
    begins. All its commits are of the last one."""
    lives: list[list[Operation]] = [[]]
    for operation in sorted(joins, key=lambda one: one.begun):
        may_be_forgotten = first_commit is None or operation.begun < first_commit
        if may_be_forgotten and any(_precedes(one, operation) for one in lives[-1]):
            lives.append([])
        lives[-1].append(operation)
    return lives


def _precedes(join: Operation, other: Operation) -> bool:
    """Whether it was over before the other began, and yet is of a later generation."""
    return (join.ended or 0) < other.begun and _generation(join) > _generation(other)


def _backward_generations(joins: list[Operation]) -> Iterator[Anomaly]:
    """A join that begins after another has ended is of its generation or a later one."""
    ended = iter(sorted(joins, key=lambda one: one.ended or 0))
    following = next(ended, None)
    latest: Operation | None = None
    for operation in sorted(joins, key=lambda one: one.begun):
        while following is not None and (following.ended or 0) < operation.begun:
            if latest is None or _generation(following) >= _generation(latest):
                latest = following
            following = next(ended, None)
        if latest is not None and _precedes(latest, operation):
            assert isinstance(operation.action, Join)
            yield anomaly(
                "backward generation",
                f"{operation.action.group} was in generation {_generation(latest)}; then {operation.action.member} "
                f"joined generation {_generation(operation)}.",
                latest,
                operation,
            )


def _generation(operation: Operation) -> int:
    assert isinstance(operation.action, Join | Commit)
    return operation.action.generation


def _double_assignments(joins: list[Operation]) -> Iterator[Anomaly]:
    """Within a generation a partition has one member, or one static instance."""
    holders: dict[tuple[int, Place], Operation] = {}
    for operation in joins:
        join = operation.action
        assert isinstance(join, Join)
        for place in join.partitions:
            holder = holders.setdefault((join.generation, place), operation)
            assert isinstance(holder.action, Join)
            if _identity(holder.action) != _identity(join):
                yield anomaly(
                    "double assignment",
                    f"In generation {join.generation} of {join.group} both {holder.action.member} and {join.member} "
                    f"have {partition_name(place)}.",
                    holder,
                    operation,
                )


def _identity(join: Join) -> str:
    return f"member {join.member}" if join.instance is None else f"instance {join.instance}"


def _stale_commits(joins: list[Operation], commits: list[Operation]) -> Iterator[Anomaly]:
    """A commit that was taken although, before it began, the group had gone on without the member: somebody had
    joined a later generation, or come as the same static instance."""
    ended = sorted(joins, key=lambda one: one.ended or 0)
    instances = {join.action.member: join.action.instance for join in joins if isinstance(join.action, Join)}
    latest: Operation | None = None
    successors: dict[tuple[int, str], Operation] = {}
    at = 0
    for operation in sorted(commits, key=lambda one: one.begun):
        while at < len(ended) and (ended[at].ended or 0) < operation.begun:
            join = ended[at].action
            assert isinstance(join, Join)
            if latest is None or join.generation >= _generation(latest):
                latest = ended[at]
            if join.instance is not None:
                successors[join.generation, join.instance] = ended[at]
            at += 1
        commit = operation.action
        assert isinstance(commit, Commit)
        newer = latest if latest is not None and _generation(latest) > commit.generation else None
        instance = instances.get(commit.member)
        if newer is None and instance is not None:
            successor = successors.get((commit.generation, instance))
            if (
                successor is not None
                and isinstance(successor.action, Join)
                and successor.action.member != commit.member
            ):
                newer = successor
        if newer is not None:
            assert isinstance(newer.action, Join)
            yield anomaly(
                "stale commit",
                f"{commit.member} of generation {commit.generation} of {commit.group} committed offsets although "
                f"{newer.action.member} had joined generation {newer.action.generation}.",
                newer,
                operation,
            )
