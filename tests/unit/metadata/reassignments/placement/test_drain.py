"""Drain, replace and the replication factor by example, above all what is refused and with which reason."""

import pytest

from kbroker.metadata.reassignments.placement.balance import balance
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterBroker, PlacedPartition, cluster_layout
from kbroker.metadata.reassignments.placement.drain import change_replication_factor, drain, replace
from kbroker.metadata.reassignments.placement.reassignment_plan import PlanRefused, estimate_copies
from tests.unit.metadata.reassignments.placement.layouts import layout_of, targets

NO_RACKS = dict.fromkeys((1, 2, 3, 4))


def test_drained_replicas_go_to_the_brokers_with_the_fewest() -> None:
    plan = drain(layout_of(NO_RACKS, (1, 2), (2, 3), (3, 2)), [1])
    assert targets(plan) == {0: (2, 4)}
    plan = drain(layout_of(NO_RACKS, (1,), (1,), (1,), sizes=(9, 5, 1)), [1])
    assert {plan.after.loads[broker] for broker in (2, 3, 4)} == {(1, 1, 9), (1, 1, 5), (1, 1, 1)}


def test_several_brokers_are_drained_together_even_if_some_are_gone() -> None:
    layout = cluster_layout(
        [ClusterBroker(3), ClusterBroker(4)],
        [PlacedPartition("t", 0, (1, 2), 2, 7), PlacedPartition("t", 1, (3, 1), 3)],
    )
    plan = drain(layout, [1, 2])
    assert [set(move.target) for move in plan.moves] == [{3, 4}, {3, 4}]
    assert plan.copied_bytes == 14


def test_a_drained_replica_stays_in_its_rack() -> None:
    layout = layout_of({1: "a", 2: "b", 3: "c", 4: "a", 5: "b"}, (1, 2, 3))
    ((_, target),) = targets(drain(layout, [1])).items()
    assert set(target) == {2, 3, 4}


def test_the_last_brokers_that_can_hold_replicas_are_not_drained() -> None:
    layout = layout_of({1: None, 2: None, 3: None}, (1, 2, 3))
    with pytest.raises(PlanRefused, match=r"t-0 has 3 replica\(s\), and only 2 broker\(s\) would accept replicas"):
        drain(layout, [1])
    with pytest.raises(PlanRefused, match=r"only 0 broker\(s\)"):
        drain(layout_of({1: None}, (1,)), [1])


def test_the_last_broker_of_a_rack_is_drained_only_if_fewer_racks_are_allowed() -> None:
    layout = layout_of({1: "a", 2: "b", 3: "b"}, (1, 2), (3, 1))
    with pytest.raises(PlanRefused, match="2 partitions, such as t-0, would be in fewer racks"):
        drain(layout, [1])
    assert drain(layout, [1], allow_fewer_racks=True).after.loads[1].replicas == 0


def test_what_has_no_leader_cannot_be_copied() -> None:
    layout = cluster_layout([ClusterBroker(2)], [PlacedPartition("t", 0, (1,), None)])
    with pytest.raises(PlanRefused, match="t-0 is without a leader, so there is nothing to copy from"):
        drain(layout, [1])


def test_what_is_being_reassigned_is_not_moved_again() -> None:
    parts = [PlacedPartition("t", index, (1,), 1, is_reassigning=True) for index in range(2)]
    layout = cluster_layout([ClusterBroker(1), ClusterBroker(2)], parts)
    with pytest.raises(PlanRefused, match="2 partitions, such as t-0, are being reassigned: wait until that is done"):
        drain(layout, [1])
    assert balance(layout).moves == ()


def test_a_replacement_takes_the_places_of_the_old_broker() -> None:
    plan = replace(layout_of(NO_RACKS, (1, 2), (2, 1), (2, 3)), 1, 4)
    assert targets(plan) == {0: (4, 2), 1: (2, 4)}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (1, 9, "there is no broker 9"),
        (1, 1, "broker 1 cannot replace itself"),
        (1, 2, "broker 2 already has replicas of t-0: drain broker 1 instead"),
        (1, 4, "t-0 would be in fewer racks"),
        (1, 5, "broker 5 accepts no replicas"),
    ],
)
def test_replacements_that_are_refused(old: int, new: int, reason: str) -> None:
    brokers = [ClusterBroker(1, "a"), ClusterBroker(2, "b"), ClusterBroker(4, "b"), ClusterBroker(5, "a", False)]
    with pytest.raises(PlanRefused, match=reason):
        replace(cluster_layout(brokers, [PlacedPartition("t", 0, (1, 2), 1)]), old, new)


def test_a_higher_replication_factor_uses_other_racks_first() -> None:
    layout = layout_of({1: "a", 2: "a", 3: "b", 4: "c"}, (1,), (3, 1))
    assert targets(change_replication_factor(layout, ["t"], 3)) == {0: (1, 4, 3), 1: (3, 1, 4)}
    with pytest.raises(PlanRefused, match=r"t-\d cannot have 5 replicas: only 4 broker\(s\) accept replicas"):
        change_replication_factor(layout, ["t"], 5)
    with pytest.raises(PlanRefused, match="topic x does not exist"):
        change_replication_factor(layout, ["x"], 2)


def test_a_lower_replication_factor_keeps_the_leader_what_is_in_sync_and_racks() -> None:
    brokers = [ClusterBroker(1, "a"), ClusterBroker(2, "a"), ClusterBroker(3, "b"), ClusterBroker(4, "b")]

    def kept(part: PlacedPartition, factor: int) -> tuple[int, ...]:
        return change_replication_factor(cluster_layout(brokers, [part]), ["t"], factor).moves[0].target

    assert kept(PlacedPartition("t", 0, (1, 2, 3), 1), 2) == (1, 3)
    assert kept(PlacedPartition("t", 0, (1, 2, 3), 2), 1) == (2,)
    assert kept(PlacedPartition("t", 0, (1, 2, 3), 1, out_of_sync=frozenset({3})), 2) == (1, 2)
    assert kept(PlacedPartition("t", 0, (1, 3), None), 1) == (1,)
    assert kept(PlacedPartition("t", 0, (1, 3, 4), 3), 2) == (1, 3)


def test_the_time_is_that_of_the_busiest_broker() -> None:
    plan = replace(layout_of(NO_RACKS, (1, 2), (2, 1), (3, 1), sizes=(100, 50, 30)), 1, 4)
    # Broker 4 receives all; the leaders 1, 2 and 3 send 100, 50 and 30.
    assert estimate_copies(plan, 10, {}, 10) == (10, 18, 4, 0)
    plan = drain(layout_of(NO_RACKS, (1,), (1,), (1,), sizes=(100, 50, 30)), [1])
    assert estimate_copies(plan, 10, {}, 10).seconds == 18
    assert estimate_copies(drain(layout_of(NO_RACKS, (2,)), [1]), 10, {}, 10).seconds == 0


def test_new_records_take_their_part_of_the_rate() -> None:
    plan = drain(layout_of(NO_RACKS, (1,), (1,), sizes=(100, 50)), [1])
    (first, second) = [(move.topic, move.partition) for move in plan.moves]
    written = {first: 4.0, second: 3.0}
    assert estimate_copies(plan, 10, written, 10) == (10, 150 / 3, 1, 7)
    # One after the other.
    assert estimate_copies(plan, 10, written, 1) == (10, 150 / 6, 1, 4)
    assert estimate_copies(plan, 7, written, 10).is_endless
    assert not estimate_copies(plan, 7, written, 1).is_endless
    assert estimate_copies(plan, 4, written, 1).is_endless
