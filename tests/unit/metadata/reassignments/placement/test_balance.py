"""Balance by example: a new broker, racks, chains of leaders, large partitions, brokers that accept no replicas."""

from collections import Counter
from random import Random

import pytest

from kbroker.metadata.reassignments.placement.balance import balance
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterBroker, PlacedPartition, cluster_layout
from kbroker.metadata.reassignments.placement.reassignment_plan import PlanRefused
from tests.unit.metadata.reassignments.placement.layouts import apply, layout_of, spreads, targets


def test_a_balanced_cluster_does_not_move() -> None:
    assert balance(layout_of({1: None, 2: None}, (1, 2), (2, 1))).moves == ()
    assert balance(layout_of({1: None})).moves == ()
    assert balance(cluster_layout([], [])).moves == ()


def test_a_new_broker_receives_its_share_and_nothing_else_moves() -> None:
    layout = layout_of({1: None, 2: None, 3: None}, *[(1,), (2,)] * 6)
    plan = balance(layout)
    assert len(plan.moves) == 4
    assert all(move.target == (3,) for move in plan.moves)
    assert (plan.before.replica_spread, plan.after.replica_spread) == (6, 0)


def test_small_partitions_move_if_bytes_are_equal() -> None:
    layout = layout_of({1: None, 2: None}, (1,), (1,), (1,), (2,), sizes=(1, 4, 5, 10))
    assert balance(layout).copied_bytes == 1


def test_partitions_of_all_topics_move_to_a_new_broker() -> None:
    partitions = [PlacedPartition(f"t{n // 20}", n % 20, (n % 2 + 1,), n % 2 + 1, 1) for n in range(80)]
    plan = balance(cluster_layout([ClusterBroker(broker) for broker in (1, 2, 3, 4)], partitions))
    moved = [sum(move.topic == f"t{topic}" for move in plan.moves) for topic in range(4)]
    assert sum(moved) == 40
    assert min(moved) >= 8


def test_racks_come_before_counts() -> None:
    """The only broker of rack b has a replica of each partition, which is better than equal counts."""
    plan = balance(layout_of({1: "a", 2: "a", 3: "b"}, (1, 2), (2, 1), (1, 2), (2, 1)))
    assert plan.after.rack_violations == 0 < plan.before.rack_violations == 4
    assert [plan.after.loads[broker].replicas for broker in (1, 2, 3)] == [2, 2, 4]


def test_four_replicas_in_two_racks_are_two_and_two() -> None:
    plan = balance(layout_of({1: "a", 2: "a", 3: "a", 4: "b", 5: "b"}, (1, 2, 3, 4)))
    assert plan.before.rack_violations == 1
    assert set(targets(plan)[0]) >= {4, 5}


def test_leaders_are_handed_over_along_a_chain_without_copies() -> None:
    """Broker 1 leads three, and shares partitions with broker 2 only, which shares one with broker 3."""
    layout = layout_of({1: None, 2: None, 3: None, 4: None}, (1, 2), (1, 2), (1, 3), (3, 4), (4, 3), (2, 4))
    plan = balance(layout)
    assert plan.copied_bytes == 0
    assert spreads(plan.after) == (0, 0, 1)


def test_the_leaders_of_each_topic_are_spread_without_copies() -> None:
    """The totals are equal before: each broker leads all partitions of one topic, which is all of the topic's load."""
    partitions = [
        PlacedPartition(topic, index, (leader, leader % 3 + 1, (leader + 1) % 3 + 1), leader)
        for leader, topic in enumerate("abc", 1)
        for index in range(4)
    ]
    plan = balance(cluster_layout([ClusterBroker(broker) for broker in (1, 2, 3)], partitions))
    led = Counter((part.topic, part.replicas[0]) for part in apply(plan).partitions)
    assert sorted(led.values()) == [1, 1, 1, 1, 1, 1, 2, 2, 2]
    assert (spreads(plan.after), plan.copied_bytes) == ((0, 0, 0), 0)


def test_a_new_broker_leads_its_share_of_each_topic() -> None:
    """As Kafka places the partitions of 12 topics on three brokers, in the order of each topic's first broker."""
    partitions = []
    for number in range(144):
        first = (number + number // 12) % 3
        replicas = tuple((first + place) % 3 + 1 for place in range(3))
        partitions.append(PlacedPartition(f"t{number // 12}", number % 12, replicas, replicas[0]))
    plan = balance(cluster_layout([ClusterBroker(broker) for broker in (1, 2, 3, 4)], partitions))
    led = Counter((part.topic, part.replicas[0]) for part in apply(plan).partitions)
    assert (set(led.values()), spreads(plan.after)) == ({3}, (0, 0, 0))


def test_large_replicas_are_exchanged_for_small_ones() -> None:
    plan = balance(layout_of({1: None, 2: None}, (1,), (1,), (2,), (2,), sizes=(100, 90, 10, 1)))
    assert plan.after.replica_spread == 0
    assert {load.size_bytes for load in plan.after.loads.values()} == {101, 100}


def test_bytes_within_the_tolerance_do_not_move() -> None:
    assert balance(layout_of({1: None, 2: None}, (1,), (1,), (2,), (2,), sizes=(55, 54, 46, 45))).moves == ()


def test_replicas_on_a_broker_that_accepts_none_stay() -> None:
    brokers = [ClusterBroker(1), ClusterBroker(2), ClusterBroker(3, accepts_replicas=False)]
    partitions = [PlacedPartition("t", index, (3, 1), 1, 1) for index in range(4)]
    plan = balance(cluster_layout(brokers, partitions))
    assert [plan.after.loads[broker].replicas for broker in (1, 2, 3)] == [2, 2, 4]
    # A broker that no list of brokers has, but a partition.
    assert balance(cluster_layout(brokers[:2], partitions)).after.loads == plan.after.loads


def test_a_partition_without_a_leader_stays() -> None:
    partitions = [PlacedPartition("t", index, (1,), None, 1) for index in range(4)]
    assert balance(cluster_layout([ClusterBroker(1), ClusterBroker(2)], partitions)).moves == ()


def test_copies_that_do_not_fit_are_refused() -> None:
    brokers = [ClusterBroker(1), ClusterBroker(2, free_bytes=9)]
    partitions = [PlacedPartition("t", index, (1,), 1, 10) for index in range(2)]
    with pytest.raises(PlanRefused, match="broker 2 would receive 10 bytes and has space for 9"):
        balance(cluster_layout(brokers, partitions))


def test_ten_thousand_partitions() -> None:
    random = Random(1)
    brokers = [ClusterBroker(number, f"r{number % 4}") for number in range(10)]
    partitions = []
    for number in range(10_000):
        replicas = tuple(random.sample(range(8), 3))
        size_bytes = int(random.lognormvariate(18, 1))
        partitions.append(PlacedPartition(f"t{number // 100}", number % 100, replicas, replicas[0], size_bytes))
    plan = balance(cluster_layout(brokers, partitions))
    assert spreads(plan.after) == (0, 0, 0)
    sizes = [load.size_bytes for load in plan.after.loads.values()]
    assert max(sizes) <= 1.11 * sum(sizes) / len(sizes)
    assert balance(apply(plan)).moves == ()
