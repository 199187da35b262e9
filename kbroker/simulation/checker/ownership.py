"""The owners of partitions in groups of the consumer protocol: only the owner's commits are accepted.

A member records what it owns when it has followed an assignment. From then on the coordinator must refuse commits of
the owner before, which may not know that it was removed. A power loss may take back the assignment.
"""

from collections.abc import Iterator
from typing import cast

from kbroker.simulation.checker.anomaly import Anomaly, anomaly
from kbroker.simulation.checker.history import (
    Commit,
    Loss,
    Operation,
    OperationOf,
    Outcome,
    Own,
    TopicPartition,
    partition_name,
)
from kbroker.simulation.checker.index import Index

Taken = dict[tuple[str, TopicPartition], OperationOf[Own]]


def ownership_anomalies(index: Index, *, durable: bool) -> Iterator[Anomaly]:
    """Report commits of members that no longer owned the partition. `durable`: a Loss removes no assignments."""
    taken: Taken = {}
    owned: dict[str, frozenset[TopicPartition]] = {}
    operations: list[Operation] = [*index.of(Own), *index.of(Commit), *index.of(Loss)]
    for operation in sorted(operations, key=lambda operation: operation.begun):
        match operation.action:
            case Own(group, member, _, partitions):
                for tp in set(partitions) - owned.get(member, frozenset()):
                    taken[group, tp] = cast(OperationOf[Own], operation)
                owned[member] = frozenset(partitions)
            case Loss() if not durable:
                taken.clear()
            case Commit(generation=generation) as commit if operation.outcome is Outcome.OK and generation >= 0:
                yield from _stale_commit(operation, commit, taken)


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
