"""The steps of a plan of reassignments as tables: the state of each move, and what the controller writes next."""

import pytest

from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.reassignments.plan_decisions import MoveState, PlanStep, all_statuses, next_step
from kbroker.metadata.reassignments.stored_plan import NO_THROTTLE, PlanState, SkipReason, StoredMove, StoredPlan
from kbroker.metadata.replication.partition_change import Election, TopicRules
from kbroker.metadata.replication.partition_requests import alter_reassignment

RUNNING, CANCELLING = PlanState.RUNNING, PlanState.CANCELLING
ALL = frozenset({1, 2, 3, 4})
TOPIC_ID = bytes(16)

Partitions = list[PartitionRegistration | None]


def at(replicas: list[int], isr: list[int] | None = None, leader: int | None = None) -> PartitionRegistration:
    isr = replicas if isr is None else isr
    leader = leader or (isr[0] if isr else -1)
    return PartitionRegistration(leader, 0, replicas, isr)


def moving(start: list[int], target: list[int], isr: list[int] | None = None) -> PartitionRegistration:
    """Return a partition that has begun to move."""
    racks = dict.fromkeys(ALL)
    rules = TopicRules(Election.ONLINE, 1)
    begun = alter_reassignment("t:0", at(start), target, racks, ALL.__contains__, rules, may_change_factor=True)
    assert begun is not None
    assert begun.is_reassigning
    if isr is not None:
        begun.isr = isr
        begun.leader = isr[0] if isr else -1
    return begun


def plan_of(moves: list[tuple[list[int], list[int]]], state: PlanState = RUNNING, concurrent: int = 10) -> StoredPlan:
    rows = tuple(
        StoredMove("t", TOPIC_ID, index, tuple(original), tuple(target))
        for index, (original, target) in enumerate(moves)
    )
    return StoredPlan(1, "", state, NO_THROTTLE, concurrent, 0, rows)


def step_of(
    plan: StoredPlan, partitions: Partitions, alive: frozenset[int] = ALL, registered: frozenset[int] = ALL
) -> PlanStep:
    return next_step(plan, lambda move: partitions[move.partition], alive, registered)


@pytest.mark.parametrize(
    ("state", "partition", "expected"),
    [
        (RUNNING, at([1, 2]), MoveState.PENDING),
        (RUNNING, moving([1, 2], [3, 2]), MoveState.RUNNING),
        (RUNNING, at([3, 2]), MoveState.DONE),
        # Somebody has cancelled the move alone, which does not keep the order.
        (RUNNING, at([2, 1]), MoveState.PENDING),
        (RUNNING, at([2, 3]), SkipReason.REASSIGNED),
        (RUNNING, at([1, 2, 4]), SkipReason.REASSIGNED),
        (RUNNING, moving([1, 2], [4, 2]), SkipReason.REASSIGNED),
        (RUNNING, None, SkipReason.DELETED),
        (CANCELLING, at([1, 2]), MoveState.DONE),
        (CANCELLING, moving([1, 2], [3, 2]), MoveState.RUNNING),
        (CANCELLING, moving([3, 2], [1, 2]), MoveState.RUNNING),
        (CANCELLING, at([3, 2]), MoveState.PENDING),
        (CANCELLING, at([2, 1]), SkipReason.REASSIGNED),
        (CANCELLING, moving([1, 2], [4, 2]), SkipReason.REASSIGNED),
        (CANCELLING, None, SkipReason.DELETED),
    ],
)
def test_the_state_of_a_move(
    state: PlanState, partition: PartitionRegistration | None, expected: MoveState | SkipReason
) -> None:
    plan = plan_of([([1, 2], [3, 2])], state)
    (progress,) = all_statuses(plan, lambda move: partition, ALL)
    if isinstance(expected, SkipReason):
        assert progress == (MoveState.SKIPPED, expected)
    else:
        assert progress == (expected, None)


def test_a_broker_that_is_not_registered_any_more() -> None:
    plan = plan_of([([1, 2], [3, 2]), ([1, 2], [3, 2]), ([1, 2], [3, 2])])
    partitions: Partitions = [at([1, 2]), moving([1, 2], [3, 2]), at([3, 2])]
    progress = all_statuses(plan, lambda move: partitions[move.partition], {1, 2})
    assert [row.reason for row in progress] == [SkipReason.UNREGISTERED, SkipReason.UNREGISTERED, None]


def test_a_move_that_has_begun_to_such_a_broker_is_dropped() -> None:
    left = ALL - {3}
    plan = plan_of([([1, 2], [3, 2]), ([1, 2], [4, 2]), ([1, 2], [4, 2])])
    partitions: Partitions = [moving([1, 2], [3, 2]), at([4, 2]), at([4, 2])]
    step = step_of(plan, partitions, left, left)
    assert ([move.partition for move in step.dropped], step.is_finished) == ([0], False)
    partitions[0] = at([1, 2])
    step = step_of(plan, partitions, left, left)
    assert (step.dropped, step.is_finished, step.skipped) == ([], True, {SkipReason.UNREGISTERED: (0,)})
    # A plan that is cancelled moves back to a broker of before.
    cancelled = plan_of([([3, 2], [1, 2])], CANCELLING)
    assert len(step_of(cancelled, [moving([1, 2], [3, 2])], left, left).dropped) == 1
    # Nobody else has the records of an added replica that is alone in sync.
    partitions[0] = moving([1, 2], [3, 4], [4])
    assert step_of(plan, partitions, left, left).dropped == []


@pytest.mark.parametrize(
    ("partitions", "concurrent", "alive", "begun"),
    [
        ([at([1, 2])] * 4, 2, ALL, [0, 1]),
        ([at([1, 2])] * 4, 9, ALL, [0, 1, 2, 3]),
        ([at([3, 2]), moving([1, 2], [3, 2]), at([1, 2]), at([1, 2])], 2, ALL, [2]),
        ([at([3, 2]), moving([1, 2], [3, 2]), at([1, 2]), at([1, 2])], 1, ALL, []),
        # The broker that would copy is away, or there is no leader to copy from.
        ([at([1, 2])] * 4, 2, ALL - {3}, []),
        ([at([1, 2], []), at([1, 2]), at([1, 2], []), at([1, 2])], 2, ALL, [1, 3]),
        # A move that waits for its broker, or for a leader, is not counted.
        ([moving([1, 2], [3, 2], []), at([1, 2]), at([1, 2]), at([1, 2])], 1, ALL, [1]),
    ],
)
def test_how_many_moves_run(partitions: Partitions, concurrent: int, alive: frozenset[int], begun: list[int]) -> None:
    step = step_of(plan_of([([1, 2], [3, 2])] * 4, RUNNING, concurrent), partitions, alive)
    assert [move.partition for move in step.begin] == begun
    assert not step.is_finished


def test_moves_of_a_broker_that_is_away_do_not_block_the_others() -> None:
    plan = plan_of([([1, 2], [3, 2]), ([1, 2], [3, 2]), ([1, 2], [4, 2]), ([2, 1], [1, 2])], RUNNING, 2)
    partitions: Partitions = [moving([1, 2], [3, 2]), at([1, 2]), at([1, 2]), at([2, 1])]
    assert [move.partition for move in step_of(plan, partitions).begin] == [1]
    assert [move.partition for move in step_of(plan, partitions, ALL - {3}).begin] == [2, 3]


def test_the_preferred_leader_of_a_move_that_is_done_is_elected_if_it_can_lead() -> None:
    plan = plan_of([([1, 2], [3, 2])] * 4)
    partitions: Partitions = [at([3, 2], leader=2), at([3, 2]), at([3, 2], [2]), at([1, 2], leader=2)]
    assert [move.partition for move in step_of(plan, partitions).elections] == [0]
    assert step_of(plan, partitions, ALL - {3}).elections == []


@pytest.mark.parametrize(
    ("state", "partitions", "is_finished"),
    [
        (RUNNING, [at([3, 2]), at([3, 2])], True),
        (RUNNING, [at([3, 2]), None], True),
        (RUNNING, [None, at([4])], True),
        (RUNNING, [at([3, 2]), at([1, 2])], False),
        (RUNNING, [moving([1, 2], [3, 2]), at([3, 2])], False),
        (CANCELLING, [at([1, 2]), at([1, 2])], True),
        (CANCELLING, [at([1, 2]), at([3, 2])], False),
        (CANCELLING, [at([1, 2]), moving([1, 2], [3, 2])], False),
    ],
)
def test_when_a_plan_ends(state: PlanState, partitions: Partitions, is_finished: bool) -> None:
    assert step_of(plan_of([([1, 2], [3, 2])] * 2, state), partitions).is_finished == is_finished


def test_what_an_ended_plan_has_skipped_does_not_change_later() -> None:
    plan = plan_of([([1, 2], [3, 2])] * 3)
    step = step_of(plan, [None, at([3, 2]), at([4])])
    assert step.skipped == {SkipReason.DELETED: (0,), SkipReason.REASSIGNED: (2,)}
    ended = plan._replace(state=PlanState.COMPLETE, skipped=step.skipped)
    reasons = [row.reason for row in all_statuses(ended, lambda move: at([9]), ALL)]
    assert reasons == [SkipReason.DELETED, None, SkipReason.REASSIGNED]


def test_all_moves_that_run_are_turned_back_at_once_and_then_the_others_follow() -> None:
    plan = plan_of([([1, 2], [3, 2])] * 5, CANCELLING, 2)
    forward, back = moving([1, 2], [3, 2]), moving([3, 2], [1, 2])
    partitions: Partitions = [forward, forward, forward, at([3, 2]), at([1, 2])]
    assert [move.partition for move in step_of(plan, partitions).begin] == [0, 1, 2]
    partitions = [at([1, 2]), at([1, 2]), back, at([3, 2]), at([1, 2])]
    assert [move.partition for move in step_of(plan, partitions).begin] == [3]


@pytest.mark.parametrize("isr", [[1, 2], [2, 1, 3], [2], [3, 2]])
def test_a_move_that_is_turned_back_is_complete_at_once(isr: list[int]) -> None:
    """It restores the order too, which a cancellation of the reassignment alone does not."""
    rules = TopicRules(Election.ONLINE, 1)
    turned = alter_reassignment(
        "t:0", moving([1, 2], [3, 2], isr), [1, 2], dict.fromkeys(ALL), ALL.__contains__, rules, may_change_factor=True
    )
    assert turned is not None
    assert (turned.replicas, turned.is_reassigning) == ([1, 2], False)
