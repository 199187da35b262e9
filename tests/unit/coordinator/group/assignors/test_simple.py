"""The simple assignor: partitions have members, members have partitions, both evenly, and little moves."""

import random
from collections import Counter

import pytest

from kbroker.coordinator.group.assignors.members import Assignments, MemberSpec
from kbroker.coordinator.group.assignors.simple import assign_simple

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def specs(members: dict[str, set[bytes]], targets: Assignments) -> dict[str, MemberSpec]:
    return {name: MemberSpec(frozenset(topics), targets.get(name, {})) for name, topics in members.items()}


def pairs(targets: Assignments, name: str) -> set[tuple[bytes, int]]:
    return {(topic_id, index) for topic_id, indexes in targets[name].items() for index in indexes}


@pytest.mark.parametrize(
    ("members", "partitions", "counts", "sharers"),
    [
        (1, 3, [3], [1, 1, 1]),
        (2, 3, [1, 2], [1, 1, 1]),
        (3, 3, [1, 1, 1], [1, 1, 1]),
        (3, 2, [1, 1, 2], [2, 2]),
        (5, 2, [1, 1, 1, 1, 2], [3, 3]),
        (4, 1, [1, 1, 1, 1], [4]),
        (3, 0, [0, 0, 0], []),
    ],
)
def test_shares_are_even(members: int, partitions: int, counts: list[int], sharers: list[int]):
    names = {f"m{number}": {A} for number in range(members)}
    targets = assign_simple(specs(names, {}), {A: range(partitions)})
    assert sorted(len(pairs(targets, name)) for name in names) == counts
    found = Counter(pair for name in names for pair in pairs(targets, name))
    assert [found[A, index] for index in range(partitions)] == sharers


@pytest.mark.parametrize("seed", range(200))
def test_random_groups(seed: int):
    rng = random.Random(seed)
    partitions = {topic: range(rng.randrange(1, 7)) for topic in (A, B, C)}
    members: dict[str, set[bytes]] = {}
    targets: Assignments = {}
    for _ in range(12):
        name = f"m{rng.randrange(6)}"
        if rng.random() < 0.3:
            members.pop(name, None)
        else:
            members[name] = {A, B} if seed % 2 else set(rng.sample([A, B, C], rng.randrange(1, 4)))
        new = assign_simple(specs(members, targets), partitions)
        assert new.keys() == members.keys()
        for topic in partitions:
            subscribers = [name for name in members if topic in members[name]]
            for index in partitions[topic] if subscribers else ():
                assert any((topic, index) in pairs(new, name) for name in subscribers)
        for name, topics in members.items():
            assert pairs(new, name)
            assert new[name].keys() <= topics
        sizes = [len(pairs(new, name)) for name in members]
        if seed % 2 and members:
            assert max(sizes) - min(sizes) <= 1
        assert assign_simple(specs(members, new), partitions) == new, "a repeated assignment moves partitions"
        targets = new


def test_a_member_that_joins_takes_only_what_it_needs():
    members = {f"m{number}": {A} for number in range(3)}
    targets = assign_simple(specs(members, {}), {A: range(12)})
    after = assign_simple(specs({**members, "new": {A}}, targets), {A: range(12)})
    assert len(pairs(after, "new")) == 3
    for name in members:
        assert pairs(after, name) < pairs(targets, name)
