"""Reassignments as tables: what begins, completes and cancels them, and what every sequence of changes preserves."""

from random import Random

import pytest

from kbroker.common import KafkaError
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.replication.partition_change import (
    Assignment,
    Election,
    TopicRules,
    begin_reassignment,
    cancel_reassignment,
    change_partition,
    complete_reassignment,
    original_replicas,
    target_replicas,
)
from kbroker.metadata.replication.partition_requests import alter_reassignment, missing_partition
from protocol.errors import ErrorCode
from tests.sampling import third_of

RACKS = dict.fromkeys(range(1, 8))
RULES = TopicRules(Election.ONLINE, 1)
ALL = set(RACKS).__contains__


def partition(
    replicas: list[int], isr: list[int], adding: list[int] | None = None, removing: list[int] | None = None
) -> PartitionRegistration:
    leader = isr[0] if isr else -1
    return PartitionRegistration(leader, 5, replicas, isr, [], [], 9, adding or [], removing or [])


def alter(
    before: PartitionRegistration, target: list[int] | None, rules: TopicRules = RULES, may_change_factor: bool = True
) -> PartitionRegistration | None:
    return alter_reassignment("t:0", before, target, RACKS, ALL, rules, may_change_factor=may_change_factor)


@pytest.mark.parametrize(
    ("before", "target", "expected"),
    [
        (partition([1, 2, 3], [1]), [4, 2, 1], Assignment([4, 2, 1, 3], [4], [3])),
        (partition([3, 2, 1], [1]), [6, 5, 4], Assignment([6, 5, 4, 1, 2, 3], [4, 5, 6], [1, 2, 3])),
        (partition([1, 2], [1]), [2, 1], Assignment([2, 1], [], [])),
        (partition([1], [1]), [1, 2, 3], Assignment([1, 2, 3], [2, 3], [])),
        (partition([1, 2, 3], [1]), [3], Assignment([3, 1, 2], [], [1, 2])),
        # Another target while one is in progress: added replicas stay added, also those that are not wanted any more.
        (partition([3, 4, 1, 2], [1], [3, 4], [1, 2]), [3, 5], Assignment([3, 5, 1, 2, 4], [3, 4, 5], [1, 2, 4])),
        (partition([3, 4, 1, 2], [1], [3, 4], [1, 2]), [1, 2], Assignment([1, 2, 3, 4], [3, 4], [3, 4])),
        (partition([3, 4, 1, 2], [1], [3, 4], [1, 2]), [1, 2, 3, 4], Assignment([1, 2, 3, 4], [3, 4], [])),
    ],
)
def test_the_replicas_with_which_a_reassignment_begins(
    before: PartitionRegistration, target: list[int], expected: Assignment
) -> None:
    assert begin_reassignment(before, target) == expected


@pytest.mark.parametrize(
    ("replicas", "adding", "removing", "isr", "completed"),
    [
        # None is in progress.
        ([1, 2], [], [], [1, 2], None),
        # All added replicas must be in sync.
        ([4, 5, 1, 2], [4, 5], [1, 2], [1, 2, 4], None),
        ([4, 5, 1, 2], [4, 5], [1, 2], [1, 2, 5, 4], ([4, 5], [5, 4])),
        ([1, 2, 3], [2, 3], [], [1, 2], None),
        ([1, 2, 3], [2, 3], [], [1, 2, 3], ([1, 2, 3], [1, 2, 3])),
        # KAFKA-19975: one that was out of sync before does not prevent the end.
        ([1, 2, 3, 4], [4], [], [1, 3, 4], ([1, 2, 3, 4], [1, 3, 4])),
        ([2, 3, 4, 1], [4], [1], [1, 4], ([2, 3, 4], [4])),
        # With fewer replicas all of them must be in sync.
        ([2, 4, 1, 3], [4], [1, 3], [1, 3, 4], None),
        ([2, 4, 1, 3], [4], [1, 3], [1, 2, 4], ([2, 4], [2, 4])),
        ([3, 1, 2], [], [1, 2], [1, 2], None),
        ([3, 1, 2], [], [1, 2], [3], ([3], [3])),
        # One of the target must be in sync.
        ([1, 2], [2], [2], [2], None),
        # Back to the replicas of before, by another reassignment.
        ([1, 2, 3, 4], [3, 4], [3, 4], [1, 3], ([1, 2], [1])),
        # Replaced: 4 was added for an earlier target.
        ([3, 5, 1, 2, 4], [3, 4, 5], [1, 2, 4], [1, 3, 4], None),
        ([3, 5, 1, 2, 4], [3, 4, 5], [1, 2, 4], [1, 3, 5], ([3, 5], [3, 5])),
    ],
)
def test_when_a_reassignment_is_complete(
    replicas: list[int],
    adding: list[int],
    removing: list[int],
    isr: list[int],
    completed: tuple[list[int], list[int]] | None,
) -> None:
    assert complete_reassignment(Assignment(replicas, adding, removing), isr) == completed


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (partition([4, 5, 1, 2], [1, 2], [4, 5], [1, 2]), ([1, 2], [1, 2], False)),
        (partition([4, 5, 1, 2], [4, 2], [4, 5], [1, 2]), ([1, 2], [2], False)),
        # Only an added replica is in sync.
        (partition([4, 5, 1, 2], [4], [4, 5], [1, 2]), ([1, 2], [1], True)),
        # After another target.
        (partition([3, 5, 1, 2, 4], [1, 4], [3, 4, 5], [1, 2, 4]), ([1, 2], [1], False)),
    ],
)
def test_cancelling_restores_the_replicas_of_before(
    before: PartitionRegistration, expected: tuple[list[int], list[int], bool]
) -> None:
    assert cancel_reassignment(before) == expected


def test_cancelling_waits_for_an_eligible_replica_if_none_is_in_sync() -> None:
    before = PartitionRegistration(-1, 5, [3, 1, 2], [], [1], [2], 9, [3], [2])
    assert cancel_reassignment(before) == ([1, 2], [], False)
    assert alter(before, None, TopicRules(min_insync_replicas=2)) == PartitionRegistration(
        1, 6, [1, 2], [1], [], [2], 10
    )
    before = PartitionRegistration(-1, 5, [3, 1, 2], [], [3], [3], 9, [3], [2])
    assert cancel_reassignment(before).unclean


def test_a_reassignment_from_its_begin_to_its_end() -> None:
    before = partition([1, 2], [1, 2])
    begun = alter(before, [3, 4])
    # The leader and its epoch stay, so writes go on.
    assert begun == PartitionRegistration(1, 5, [3, 4, 1, 2], [1, 2], [], [], 10, [3, 4], [1, 2])
    one = change_partition(begun, ALL, RULES, isr=[1, 2, 4])
    assert one == PartitionRegistration(1, 5, [3, 4, 1, 2], [1, 2, 4], [], [], 11, [3, 4], [1, 2])
    # The former leader leaves in the same write in which the last added replica joins.
    assert change_partition(one, ALL, RULES, isr=[1, 2, 4, 3]) == PartitionRegistration(
        3, 6, [3, 4], [4, 3], [], [], 12
    )


def test_a_new_leader_epoch_begins_when_replicas_leave() -> None:
    begun = partition([1, 3, 2], [1, 2], [3], [2])
    assert change_partition(begun, ALL, RULES, isr=[1, 2, 3]) == PartitionRegistration(1, 6, [1, 3], [1, 3], [], [], 10)
    begun = partition([1, 2, 3], [1, 2], [3])
    assert change_partition(begun, ALL, RULES, isr=[1, 2, 3]) == PartitionRegistration(
        1, 5, [1, 2, 3], [1, 2, 3], [], [], 10
    )


def test_another_order_or_fewer_replicas_need_no_wait() -> None:
    assert alter(partition([1, 2, 3], [1, 2]), [3, 2, 1]) == PartitionRegistration(1, 5, [3, 2, 1], [1, 2], [], [], 10)
    assert alter(partition([1, 2, 3], [1, 2]), [2]) == PartitionRegistration(2, 6, [2], [2], [], [], 10)
    assert alter(partition([1, 2, 3], [1, 2]), [1, 2, 3]) is None


def test_replicas_that_leave_are_not_eligible_any_more() -> None:
    rules = TopicRules(Election.ONLINE, 3)
    before = PartitionRegistration(1, 5, [1, 2, 3, 4], [1], [2, 3], [4], 9, [4], [])
    assert alter(before, None, rules) == PartitionRegistration(1, 6, [1, 2, 3], [1], [2, 3], [], 10)
    before = PartitionRegistration(1, 5, [1, 4, 5, 2, 3], [1, 5], [2], [3], 9, [4, 5], [2, 3])
    changed = change_partition(before, ALL, rules, isr=[1, 5, 4])
    assert changed == PartitionRegistration(1, 6, [1, 4, 5], [1, 5, 4], [], [], 10)


def test_a_former_replica_is_not_elected_even_uncleanly() -> None:
    unclean = TopicRules(Election.UNCLEAN, 1)
    before = PartitionRegistration(3, 5, [3, 1], [3], [], [], 9, [3], [1])
    cancelled = alter_reassignment("t:0", before, None, RACKS, {3}.__contains__, unclean, may_change_factor=True)
    assert cancelled == PartitionRegistration(-1, 6, [1], [1], [], [], 10)
    cancelled = alter_reassignment("t:0", before, None, RACKS, {1, 3}.__contains__, unclean, may_change_factor=True)
    assert cancelled == PartitionRegistration(1, 6, [1], [1], [], [], 10)


EMPTY = "The manual partition assignment includes an empty replica list."
UNKNOWN = "The manual partition assignment includes broker 9, but no such broker is registered."
TWICE = "The manual partition assignment includes the broker 2 more than once."
UNCLEAN = "Unable to revert partition assignment for t:0 because it would require an unclean leader election."


@pytest.mark.parametrize(
    ("before", "target", "code", "message"),
    [
        (partition([1], [1]), [], ErrorCode.INVALID_REPLICA_ASSIGNMENT, EMPTY),
        (partition([1], [1]), [1, 9], ErrorCode.INVALID_REPLICA_ASSIGNMENT, UNKNOWN),
        (partition([1], [1]), [2, 1, 2], ErrorCode.INVALID_REPLICA_ASSIGNMENT, TWICE),
        (partition([1], [1]), None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None),
        (partition([2, 1], [2], [2], [1]), None, ErrorCode.INVALID_REPLICA_ASSIGNMENT, UNCLEAN),
        (
            partition([1], [1]),
            [1, 2],
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "The replication factor is changed from 1 to 2",
        ),
        # The target of the reassignment in progress counts.
        (
            partition([2, 3, 1], [1], [2, 3], [1]),
            [1],
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "The replication factor is changed from 2 to 1",
        ),
    ],
)
def test_refusals(
    before: PartitionRegistration, target: list[int] | None, code: ErrorCode, message: str | None
) -> None:
    with pytest.raises(KafkaError) as refused:
        alter(before, target, may_change_factor=False)
    assert (refused.value.code, refused.value.message) == (code, message)


def test_missing_partitions() -> None:
    assert missing_partition({"t"}, "t", 3).message == "Unable to find partition t:3."
    assert missing_partition({"t"}, "u", 3).message == "Unable to find a topic named u."


@pytest.mark.parametrize("seed", third_of(range(300)))
def test_every_sequence_of_changes_keeps_the_replicas_of_before_or_of_a_target(seed: int) -> None:
    random = Random(seed)
    replicas = random.sample(range(1, 8), random.randint(1, 4))
    state, original = partition(replicas, replicas[: random.randint(1, len(replicas))]), replicas
    rules = TopicRules(Election.ONLINE, random.randint(1, 3))
    for _ in range(30):
        alive = set(random.sample(range(1, 8), 6)).__contains__
        kind = random.random()
        changed: PartitionRegistration | None = None
        target = original
        if kind < 0.2:
            target = random.sample(range(1, 8), random.randint(1, 4))
            changed = alter_reassignment("t:0", state, target, RACKS, alive, rules, may_change_factor=True)
        elif kind < 0.3 and state.is_reassigning and not cancel_reassignment(state).unclean:
            changed = alter_reassignment("t:0", state, None, RACKS, alive, rules, may_change_factor=True)
        elif kind < 0.8 and state.leader != -1:
            joining = random.choice(state.replicas)
            changed = change_partition(state, alive, rules, isr=list(dict.fromkeys((*state.isr, joining))))
        else:
            changed = change_partition(state, alive, rules, isr=[replica for replica in state.isr if alive(replica)])
        if changed is None:
            continue
        assert set(changed.isr) <= set(changed.replicas)
        assert {*changed.elr, *changed.last_known_elr} <= set(changed.replicas)
        assert changed.leader == -1 or changed.leader in changed.isr
        assert {*changed.adding_replicas, *changed.removing_replicas} <= set(changed.replicas)
        if not set(state.replicas) <= set(changed.replicas):
            assert changed.leader_epoch > state.leader_epoch
        if changed.is_reassigning:
            assert set(original_replicas(changed)) == set(original)
            # Nothing is lost before the end.
            assert set(state.replicas) <= set(changed.replicas)
        else:
            assert sorted(changed.replicas) in (sorted(original), sorted(target), sorted(target_replicas(state)))
            original = changed.replicas
        state = changed
