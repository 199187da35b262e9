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
from collections.abc import Iterator

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name
from kbroker.simulation.checker.history import Commit, Join, Operation, Outcome, TopicPartition
from kbroker.simulation.checker.index import Index

# A group in one era; the era is the number of losses before it.
_Group = tuple[str, int]


def group_fencing_anomalies(index: Index, *, durable: bool) -> Iterator[Anomaly]:
    """Report backward generations, double assignments and stale commits. `durable`: a Loss removes no generations."""
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
    for group, group_joins in joins.items():
        lives = _lives(group_joins, first_commits.get(group[0]))
        for life in lives:
            yield from _backward_generations(life)
            yield from _double_assignments(life)
        yield from _stale_commits(lives[-1], commits.get(group, []))


def _era(eras: list[int], operation: Operation) -> int | None:
    """Return the era of an operation; None if it began in one era and ended in another."""
    if operation.ended is None:
        return None
    era = bisect_left(eras, operation.begun)
    return era if bisect_left(eras, operation.ended) == era else None


def _first_commits(index: Index) -> dict[str, int]:
    """Return the step of each group's first commit, before which the group has no offsets."""
    steps: dict[str, int] = {}
    for operation in index.commits:
        if isinstance(operation.action, Commit) and operation.outcome is not Outcome.FAILED:
            steps.setdefault(operation.action.group, operation.begun)
    return steps


def _lives(joins: list[Operation], first_commit: int | None) -> list[list[Operation]]:
    """Split the joins of a group where it was removed and created again: it goes back to an earlier generation although
    it has no offsets yet. All commits belong to the last part."""
    lives: list[list[Operation]] = [[]]
    for operation in sorted(joins, key=lambda join: join.begun):
        may_be_removed = first_commit is None or operation.begun < first_commit
        if may_be_removed and any(_precedes(join, operation) for join in lives[-1]):
            lives.append([])
        lives[-1].append(operation)
    return lives


def _precedes(join: Operation, other: Operation) -> bool:
    """Return whether a join ended before the other began, although it has a later generation."""
    return (join.ended or 0) < other.begun and _generation(join) > _generation(other)


def _backward_generations(joins: list[Operation]) -> Iterator[Anomaly]:
    """Report joins with a lower generation than a join that ended before they began."""
    ended = iter(sorted(joins, key=lambda join: join.ended or 0))
    following = next(ended, None)
    latest: Operation | None = None
    for operation in sorted(joins, key=lambda join: join.begun):
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
    """Report partitions with two owners (members or static instances) in one generation."""
    holders: dict[tuple[int, TopicPartition], Operation] = {}
    for operation in joins:
        join = operation.action
        assert isinstance(join, Join)
        for tp in join.partitions:
            holder = holders.setdefault((join.generation, tp), operation)
            assert isinstance(holder.action, Join)
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


def _stale_commits(joins: list[Operation], commits: list[Operation]) -> Iterator[Anomaly]:
    """Report successful commits of members that were fenced before the commit began: another member had joined a later
    generation, or replaced the same static instance."""
    ended = sorted(joins, key=lambda join: join.ended or 0)
    instances = {join.action.member: join.action.instance for join in joins if isinstance(join.action, Join)}
    latest: Operation | None = None
    successors: dict[tuple[int, str], Operation] = {}
    at = 0
    for operation in sorted(commits, key=lambda commit: commit.begun):
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
