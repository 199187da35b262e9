"""The next step of a plan of reassignments: which moves to begin, which leaders to elect, and whether it has ended.

The state of a move follows from its partition alone. A cancelled plan runs in the other direction: a running move gets
the original replicas as its target, which completes it at once unless only added replicas are in sync.

A plan of the controller drops moves before they are done; a running one gets its original replicas back. A plan on
request waits for absent brokers. A plan of the controller must not: no user watches it, and no other plan can
begin until it ends.
"""

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from typing import NamedTuple

from kbroker.common import NO_LEADER
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.reassignments.stored_plan import PlanOrigin, PlanState, SkipReason, StoredMove, StoredPlan
from kbroker.metadata.replication.partition_change import cancel_reassignment, target_replicas
from kbroker.runtime.turns import paced

# Returns the partition of a move, None if it does not exist any more.
FindPartition = Callable[[StoredMove], PartitionRegistration | None]


class MoveState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"


class MoveStatus(NamedTuple):
    """`reason` is set for a move that is skipped."""

    state: MoveState
    reason: SkipReason | None = None


_PENDING, _RUNNING, _DONE = map(MoveStatus, (MoveState.PENDING, MoveState.RUNNING, MoveState.DONE))
_DELETED, _REASSIGNED, _UNREGISTERED = (
    MoveStatus(MoveState.SKIPPED, reason)
    for reason in (SkipReason.DELETED, SkipReason.REASSIGNED, SkipReason.UNREGISTERED)
)


class PlanStep(NamedTuple):
    """The writes of a step.

    `elections`: completed moves whose preferred replica can lead but does not. `dropped`: running moves that end with
    the original replicas. `skipped`: the indexes of the moves that are skipped now; complete if the plan `is_finished`.
    """

    begin: list[StoredMove]
    dropped: list[StoredMove]
    elections: list[StoredMove]
    is_finished: bool
    skipped: dict[SkipReason, tuple[int, ...]]


def move_status(
    start: Sequence[int], goal: Sequence[int], partition: PartitionRegistration | None, registered: Collection[int]
) -> MoveStatus:
    """Return the state of a move of an active plan from `start` to `goal`. `registered`: the registered brokers.

    A reassignment to `start` counts as running, too: the plan has begun it before it was cancelled.
    """
    if partition is None:
        return _DELETED
    if partition.is_reassigning:
        progress = _RUNNING if target_replicas(partition) in (list(goal), list(start)) else _REASSIGNED
    elif partition.replicas == list(goal):
        return _DONE
    else:
        # A user who has cancelled only this move may have changed the order.
        progress = _PENDING if sorted(partition.replicas) == sorted(start) else _REASSIGNED
    if progress is not _REASSIGNED and any(replica not in registered for replica in goal):
        return _UNREGISTERED
    return progress


def next_step(
    plan: StoredPlan,
    find_partition: FindPartition,
    alive: Collection[int],
    registered: Collection[int],
    away: Collection[int] = (),
) -> PlanStep:
    """Return the next step of an active plan. `alive`: the brokers that can lead and follow. `away`: see drop_reason.

    A move that waits for an absent broker does not count as running, so that it does not block the others.
    """
    turned_back: list[StoredMove] = []
    dropped: list[StoredMove] = []
    possible: list[StoredMove] = []
    elections: list[StoredMove] = []
    skipped: dict[SkipReason, list[int]] = {}
    is_finished, copying = True, 0
    for index, move in paced(enumerate(plan.moves)):
        start, goal = plan.direction(move)
        partition = find_partition(move)
        state, reason = move_status(start, goal, partition, registered)
        if partition is not None and reason is SkipReason.UNREGISTERED and _waits_forever(partition, registered):
            dropped.append(move)
            is_finished = False
            continue
        if partition is None or reason is not None:
            skipped.setdefault(reason or SkipReason.DELETED, []).append(index)
            continue
        if state is MoveState.DONE:
            if _needs_election(partition, alive):
                elections.append(move)
            continue
        drop = drop_reason(plan, move, partition, alive, away)
        if drop is not None and state is MoveState.PENDING:
            skipped.setdefault(drop, []).append(index)
            continue
        is_finished = False
        if drop is not None:
            dropped.append(move)
        elif state is MoveState.PENDING:
            if _can_begin(partition, goal, alive):
                possible.append(move)
        elif target_replicas(partition) != list(goal):
            turned_back.append(move)
        elif _is_copying(partition, alive):
            copying += 1
    begin = turned_back + possible[: max(0, plan.max_concurrent_moves - copying - len(turned_back))]
    indexes = {reason: tuple(moves) for reason, moves in skipped.items()}
    return PlanStep(begin, dropped, elections, is_finished, indexes)


def all_statuses(plan: StoredPlan, find_partition: FindPartition, registered: Collection[int]) -> list[MoveStatus]:
    """Return the state of each move, in the order of the plan."""
    if not plan.is_active:
        return _progress_at_end(plan)
    return [move_status(*plan.direction(move), find_partition(move), registered) for move in paced(plan.moves)]


def _progress_at_end(plan: StoredPlan) -> list[MoveStatus]:
    progress = [_DONE] * len(plan.moves)
    for reason, indexes in plan.skipped.items():
        for index in indexes:
            progress[index] = MoveStatus(MoveState.SKIPPED, reason)
    return progress


def _waits_forever(partition: PartitionRegistration, registered: Collection[int]) -> bool:
    """Return whether a reassignment that can be cancelled waits for a broker that is no longer registered."""
    return not set(partition.adding_replicas) <= set(registered) and not cancel_reassignment(partition).unclean


def _needs_election(partition: PartitionRegistration, alive: Collection[int]) -> bool:
    preferred = partition.replicas[0]
    return partition.leader != preferred and preferred in partition.isr and preferred in alive


def _can_begin(partition: PartitionRegistration, goal: tuple[int, ...], alive: Collection[int]) -> bool:
    """Return whether the brokers that would copy the partition are alive, and so is a replica to copy from."""
    added = set(goal) - set(partition.replicas)
    return not added or (partition.leader != NO_LEADER and added <= set(alive))


def _is_copying(partition: PartitionRegistration, alive: Collection[int]) -> bool:
    awaited = set(partition.adding_replicas) - set(partition.removing_replicas) - set(partition.isr)
    return partition.leader != NO_LEADER and awaited <= set(alive)


def drop_reason(
    plan: StoredPlan,
    move: StoredMove,
    partition: PartitionRegistration,
    alive: Collection[int],
    away: Collection[int],
) -> SkipReason | None:
    """Return why a move that is not done is dropped, None if it continues.

    `alive`: the brokers that can lead and follow. `away`: brokers that have been away long enough to be rebuilt.
    """
    if plan.origin is PlanOrigin.REQUEST:
        return None
    if plan.state is PlanState.CANCELLING:
        return SkipReason.CANCELLED
    if plan.origin is PlanOrigin.REBUILD and all(broker in alive for broker in set(move.original) - set(move.target)):
        # Its log lacks only recent records, so it is in sync again long before a new copy would be.
        return SkipReason.RETURNED
    if any(broker in away for broker in set(move.target) - set(move.original)):
        return SkipReason.AWAY
    return None
