"""Replica placement: the balance of leaders and replicas, racks, and too few brokers."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.common import KafkaError
from kbroker.metadata.topics.replica_placement import interleave_racks, place_replicas
from protocol.errors import ErrorCode


def test_a_single_broker_gets_all_partitions():
    assert place_replicas(3, 1, {1: None}, Random(1)) == [[1], [1], [1]]


def test_too_few_brokers_are_rejected():
    with pytest.raises(KafkaError) as raised:
        place_replicas(1, 3, {1: None, 2: None}, Random(1))
    assert raised.value.code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_neighbours_are_in_different_racks():
    assert interleave_racks({1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}) == [1, 3, 5, 2, 4]
    assert interleave_racks({3: None, 1: "b", 2: "a"}) == [2, 1, 3]


@given(
    brokers=st.integers(1, 12),
    racks=st.integers(1, 4),
    count=st.integers(1, 60),
    factor=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_replicas_are_distinct_and_spread(brokers: int, racks: int, count: int, factor: int, seed: int):
    rack_of = {broker: f"r{broker % racks}" for broker in range(1, brokers + 1)}
    factor = min(factor, brokers)
    placed = place_replicas(count, factor, rack_of, Random(seed))
    assert len(placed) == count
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders[broker] for broker in rack_of) <= 1
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert len({rack_of[broker] for broker in replicas}) == min(factor, len(set(rack_of.values())))


def test_followers_of_one_leader_are_spread_over_all_others():
    placed = place_replicas(5 * 20, 2, dict.fromkeys(range(5)), Random(3))
    followers = Counter(replicas[1] for replicas in placed if replicas[0] == 0)
    assert set(followers) == {1, 2, 3, 4}
    assert max(followers.values()) - min(followers.values()) <= 1


def test_fenced_brokers_follow_if_there_are_too_few_others():
    placed = place_replicas(4, 3, {1: None, 2: None}, Random(1), {3: None, 4: None})
    assert all(len(set(replicas)) == 3 for replicas in placed)
    assert all(set(replicas[:2]) == {1, 2} for replicas in placed)
    assert [replicas[2] for replicas in placed] == [3, 4, 3, 4]
    assert all(set(replicas) == {1, 2} for replicas in place_replicas(4, 2, {1: None, 2: None}, Random(1), {3: None}))
    with pytest.raises(KafkaError, match="only 3 broker"):
        place_replicas(1, 4, {1: None, 2: None}, Random(1), {3: None})
    with pytest.raises(KafkaError, match="currently fenced"):
        place_replicas(1, 1, {}, Random(1), {3: None})
