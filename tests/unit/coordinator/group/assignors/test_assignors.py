"""Properties of the assignors: each partition has one owner, loads are balanced, and no partition moves needlessly."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordinator.group.assignors.members import Assignments, MemberSpec
from kbroker.coordinator.group.assignors.server_assignors import SERVER_ASSIGNORS
from tests.unit.coordinator.group.assignors.groups import RandomGroup, moves, new_group, steps, topic_id

SEEDS = st.integers(0, 1 << 32)
T0, T1, T2 = map(topic_id, range(3))
UNIFORM, RANGE = SERVER_ASSIGNORS["uniform"], SERVER_ASSIGNORS["range"]


def check_owners(group: RandomGroup, targets: Assignments) -> None:
    """Each partition of a topic with a subscriber has one owner, which subscribes to it."""
    owned = [(topic, p) for target in targets.values() for topic, ps in target.items() for p in ps]
    subscribed = {topic for member in group.members.values() for topic in member.subscribed}
    assert sorted(owned) == sorted((topic, p) for topic in subscribed for p in range(group.counts[topic]))
    assert list(targets) == list(group.members)
    for name, target in targets.items():
        assert group.members[name].subscribed.issuperset(target)
        assert all(isinstance(ps, tuple) and ps and list(ps) == sorted(ps) for ps in target.values())


def evolve(seed: int, assignor: str, is_homogeneous: bool):
    """Yield a random group before each of its assignments, and the targets."""
    random = Random(seed)
    group = new_group(random, assignor, is_homogeneous)
    for _ in steps(random, group, is_homogeneous, 8):
        targets = SERVER_ASSIGNORS[assignor](group.members, group.counts)
        yield group, targets
        for name, target in targets.items():
            group.members[name] = group.members[name]._replace(target=target)


@given(SEEDS, st.sampled_from(sorted(SERVER_ASSIGNORS)), st.booleans())
def test_each_partition_has_one_owner_and_the_result_is_stable(seed: int, assignor: str, is_homogeneous: bool) -> None:
    for group, targets in evolve(seed, assignor, is_homogeneous):
        check_owners(group, targets)
        assert SERVER_ASSIGNORS[assignor](group.members, group.counts) == targets
        kept = {name: member._replace(target=targets[name]) for name, member in group.members.items()}
        if assignor == "range" or is_homogeneous:
            assert SERVER_ASSIGNORS[assignor](kept, group.counts) == targets


@given(SEEDS)
def test_uniform_moves_no_more_than_it_must(seed: int) -> None:
    """With equal subscriptions: shares differ by one at most, and a partition leaves only a member with more than its
    share, or one that has left.
    """
    for group, targets in evolve(seed, "uniform", is_homogeneous=True):
        total, count = sum(group.counts.values()), len(group.members)
        had = {name: sum(map(len, member.target.values())) for name, member in group.members.items()}
        has = {name: sum(map(len, target.values())) for name, target in targets.items()}
        assert sorted(has.values()) == sorted(total // count + (index < total % count) for index in range(count))
        # The members with the most partitions keep the larger shares.
        shares = sorted(has.values(), reverse=True)
        largest_first = sorted(had.values(), reverse=True)
        surplus = sum(max(0, size - share) for size, share in zip(largest_first, shares, strict=True))
        assert moves(group.members, targets) == surplus


@given(SEEDS)
def test_uniform_with_different_subscriptions_is_balanced(seed: int) -> None:
    """No partition can go to a subscriber that has at least two partitions less than its owner."""
    for group, targets in evolve(seed, "uniform", is_homogeneous=False):
        sizes = {name: sum(map(len, target.values())) for name, target in targets.items()}
        for owner, target in targets.items():
            for topic in target:
                subscribers = [name for name, member in group.members.items() if topic in member.subscribed]
                assert sizes[owner] - min(sizes[name] for name in subscribers) <= 1


@pytest.mark.parametrize("assign", [UNIFORM, RANGE])
def test_without_members_or_topics_there_is_nothing_to_assign(assign) -> None:
    assert assign({}, {T0: 3}) == {}
    assert assign({"a": MemberSpec(frozenset(), {T0: (0,)})}, {}) == {"a": {}}
    assert assign({"a": MemberSpec(frozenset([T1]), {})}, {T0: 3}) == {"a": {}}


def test_range_puts_static_members_first_and_gives_the_same_numbers_of_each_topic() -> None:
    both = frozenset([T0, T1])
    members = {"a": MemberSpec(both, {}), "b": MemberSpec(both, {}, "2"), "c": MemberSpec(both, {}, "10")}
    expected = {"c": {T0: (0, 1), T1: (0, 1)}, "b": {T0: (2, 3), T1: (2, 3)}, "a": {T0: (4,), T1: (4,)}}
    assert RANGE(members, {T0: 5, T1: 5}) == expected


@pytest.mark.parametrize("is_homogeneous", [True, False])
def test_a_target_that_is_not_valid_any_more_is_repaired(is_homogeneous: bool) -> None:
    """Two members have partition 0, topic 0 has lost partition 5, topic 2 is deleted."""
    subscribed = frozenset([T0, T1])
    members = {
        "a": MemberSpec(subscribed, {T0: (0, 1, 5), T2: (0,)}),
        "b": MemberSpec(subscribed, {T0: (0, 2), T1: (0,)}),
        "c": MemberSpec(subscribed if is_homogeneous else frozenset([T1]), {}),
    }
    group = RandomGroup("uniform", {T0: 5, T1: 1}, members)
    targets = UNIFORM(members, group.counts)
    check_owners(group, targets)
    assert set(targets["a"][T0]) >= {0, 1}
    assert 2 in targets["b"][T0]
