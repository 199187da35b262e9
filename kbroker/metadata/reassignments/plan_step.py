"""The next step of a plan of reassignments: which moves to begin, which leaders to elect, and whether it has ended.

The state of a move follows from its partition alone. To cancel a plan is to run it in the other direction: a move that
is running gets the original replicas as its target, which completes it at once unless only added replicas are in sync.
"""

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import NamedTuple

from kbroker.common import NO_LEADER
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.reassignments.stored_plan import SkipReason, StoredMove, StoredPlan
from kbroker.metadata.replication.reassignment import target_replicas

# Returns the partition of a move, None if it does not exist any more.
FindPartition = Callable[[StoredMove], PartitionRegistration | None]


class MoveState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"


class MoveProgress(NamedTuple):
    """`reason` is set for a move that is skipped."""

    state: MoveState
    reason: SkipReason | None = None


class PlanStep(NamedTuple):
    """What the controller writes next. `elections`: moves that are done, whose preferred replica can lead but does not.

    `skipped`: the indexes of the moves that are skipped now, for a plan that `is_finished`.
    """

    begin: list[StoredMove]
    elections: list[StoredMove]
    is_finished: bool
    skipped: dict[SkipReason, tuple[int, ...]]


def move_progress(
    plan: StoredPlan, move: StoredMove, partition: PartitionRegistration | None, registered: Collection[int]
) -> MoveProgress:
    """Return the state of a move of an active plan. `registered`: the brokers that are registered."""
    if partition is None:
        return MoveProgress(MoveState.SKIPPED, SkipReason.DELETED)
    start, goal = plan.direction(move)
    if partition.is_reassigning:
        state = MoveState.RUNNING
        # A plan that is cancelled also finds the moves that it has begun before.
        if tuple(target_replicas(partition)) not in (move.target, goal):
            return MoveProgress(MoveState.SKIPPED, SkipReason.REASSIGNED)
    elif tuple(partition.replicas) == goal:
        return MoveProgress(MoveState.DONE)
    elif sorted(partition.replicas) == sorted(start):
        state = MoveState.PENDING
    else:
        return MoveProgress(MoveState.SKIPPED, SkipReason.REASSIGNED)
    if any(replica not in registered for replica in goal):
        return MoveProgress(MoveState.SKIPPED, SkipReason.UNREGISTERED)
    return MoveProgress(state)


def next_step(
    plan: StoredPlan, find_partition: FindPartition, alive: Collection[int], registered: Collection[int]
) -> PlanStep:
    """Return the next step of an active plan. `alive`: the brokers that can lead and follow.

    A move that waits for a broker which is away does not count as running, so that it does not block the others.
    """
    turned_back: list[StoredMove] = []
    pending: list[tuple[StoredMove, PartitionRegistration]] = []
    elections: list[StoredMove] = []
    skipped: dict[SkipReason, list[int]] = {}
    running = copying = 0
    for index, move in enumerate(plan.moves):
        partition = find_partition(move)
        state, reason = move_progress(plan, move, partition, registered)
        if partition is None or reason is not None:
            skipped.setdefault(reason or SkipReason.DELETED, []).append(index)
        elif state is MoveState.DONE:
            if _needs_election(partition, alive):
                elections.append(move)
        elif state is MoveState.PENDING:
            pending.append((move, partition))
        else:
            running += 1
            if tuple(target_replicas(partition)) != plan.direction(move)[1]:
                turned_back.append(move)
            elif _is_copying(partition, alive):
                copying += 1
    possible = [move for move, partition in pending if _can_begin(partition, plan.direction(move)[1], alive)]
    begin = turned_back + possible[: max(0, plan.max_concurrent_moves - copying - len(turned_back))]
    is_finished = not pending and not running
    return PlanStep(begin, elections, is_finished, {reason: tuple(moves) for reason, moves in skipped.items()})


def all_progress(plan: StoredPlan, find_partition: FindPartition, registered: Collection[int]) -> list[MoveProgress]:
    """Return the state of each move, in the order of the plan."""
    if plan.is_active:
        return [move_progress(plan, move, find_partition(move), registered) for move in plan.moves]
    progress = [MoveProgress(MoveState.DONE)] * len(plan.moves)
    for reason, indexes in plan.skipped.items():
        for index in indexes:
            progress[index] = MoveProgress(MoveState.SKIPPED, reason)
    return progress


def _needs_election(partition: PartitionRegistration, alive: Collection[int]) -> bool:
    preferred = partition.replicas[0]
    return partition.leader != preferred and preferred in partition.isr and preferred in alive


def _can_begin(partition: PartitionRegistration, goal: tuple[int, ...], alive: Collection[int]) -> bool:
    """Return whether the brokers that would copy the partition are there, and one to copy from."""
    added = set(goal) - set(partition.replicas)
    return not added or (partition.leader != NO_LEADER and added <= set(alive))


def _is_copying(partition: PartitionRegistration, alive: Collection[int]) -> bool:
    awaited = set(partition.adding_replicas) - set(partition.removing_replicas) - set(partition.isr)
    return partition.leader != NO_LEADER and awaited <= set(alive)
