"""The owners of partitions in groups of the consumer protocol: only the owner's commits are accepted.

A member records what it owns when it has followed an assignment; one of the classic protocol, with its Join. From then
on the coordinator must refuse commits of the owner before, which may not know that it was removed. A power loss may
take back the assignment. A member that has followed its assignment, and sends heartbeats, keeps its epoch.
"""

from collections.abc import Iterator
from typing import cast

from kbroker.simulation.checker.anomaly import Anomaly, anomaly
from kbroker.simulation.checker.history import (
    Commit,
    Fenced,
    Join,
    Loss,
    Operation,
    OperationOf,
    Outcome,
    Own,
    TopicPartition,
    partition_name,
)
from kbroker.simulation.checker.index import Index, ended

Taken = dict[tuple[str, TopicPartition], OperationOf[Own | Join]]


def ownership_anomalies(index: Index, *, durable: bool) -> Iterator[Anomaly]:
    """Report commits of members that no longer owned the partition. `durable`: a Loss removes no assignments."""
    taken: Taken = {}
    owned: dict[str, frozenset[TopicPartition]] = {}
    groups = {own.action.group for own in index.of(Own)}
    joins = [join for join in index.of(Join) if join.action.group in groups and join.outcome is Outcome.OK]
    operations: list[Operation] = [*index.of(Own), *joins, *index.of(Commit), *index.of(Loss)]
    for operation in sorted(operations, key=_time):
        match operation.action:
            case Own(group, member, _, partitions) | Join(group, member, _, partitions):
                for tp in set(partitions) - owned.get(member, frozenset()):
                    taken[group, tp] = cast(OperationOf[Own | Join], operation)
                owned[member] = frozenset(partitions)
            case Loss() if not durable:
                taken.clear()
            case Commit(generation=generation) as commit if operation.outcome is Outcome.OK and generation >= 0:
                yield from _stale_commit(operation, commit, taken)


def fenced_members(index: Index, *, durable: bool) -> Iterator[Anomaly]:
    """Report members that were up to date, and fenced: the coordinator has lost what it had told them."""
    if durable or not index.of(Loss):
        for fenced in index.of(Fenced):
            action = fenced.action
            heard = f"and the coordinator had accepted it {action.silent_s:.1f} s before"
            yield anomaly("lost epoch", f"{action.member} of {action.group} had epoch {action.epoch}, {heard}.", fenced)


def _time(operation: Operation) -> int:
    return ended(operation) if isinstance(operation.action, Join) else operation.begun


def _stale_commit(operation: Operation, commit: Commit, taken: Taken) -> Iterator[Anomaly]:
    for tp in commit.offsets:
        owner = taken.get((commit.group, tp))
        if owner is not None and owner.action.member != commit.member:
            yield anomaly(
                "stale commit",
                f"{commit.member} of {commit.group} committed an offset of {partition_name(tp)} although "
                f"{owner.action.member} had it.",
                owner,
                operation,
            )
