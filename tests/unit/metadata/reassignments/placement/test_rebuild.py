"""Self-healing's plans: replicas of brokers that are away go elsewhere, and a broker that is back takes its share."""

from hypothesis import given
from hypothesis import strategies as st

from kbroker.metadata.reassignments.placement.cluster_layout import (
    ClusterBroker,
    ClusterLayout,
    PlacedPartition,
    cluster_layout,
)
from kbroker.metadata.reassignments.placement.drain import Rebuild, rebuild, take_share
from tests.unit.metadata.reassignments.placement.layouts import apply, goals, layout_of, layouts, targets

MANY = 1000


def without(layout: ClusterLayout, *away: int) -> ClusterLayout:
    """Return the layout after brokers have gone: they are not in sync and lead nothing."""
    brokers = {
        broker_id: broker._replace(accepts_replicas=broker.accepts_replicas and broker_id not in away)
        for broker_id, broker in layout.brokers.items()
    }
    return ClusterLayout(brokers, tuple(_without(part, away) for part in layout.partitions))


def _without(part: PlacedPartition, away: tuple[int, ...]) -> PlacedPartition:
    left = [broker for broker in part.replicas if broker not in away]
    leader = part.leader if part.leader in left else next(iter(left), None)
    return part._replace(leader=leader, out_of_sync=part.out_of_sync.union(set(part.replicas) - set(left)))


def names(partitions: tuple[PlacedPartition, ...]) -> list[str]:
    return [str(part) for part in partitions]


def test_replicas_go_to_other_racks_and_the_preferred_leader_is_one_that_lives():
    layout = layout_of({1: "a", 2: "b", 3: "c", 4: "c", 5: "a"}, (1, 2, 3), (3, 1, 2), (2, 3, 1))
    plan = rebuild(without(layout, 3), [3], MANY).plan
    assert targets(plan) == {0: (1, 2, 4), 1: (4, 1, 2), 2: (2, 4, 1)}


def test_fewer_racks_are_better_than_fewer_replicas():
    layout = layout_of({1: "a", 2: "b", 3: "c", 4: "a"}, (1, 2, 3))
    assert targets(rebuild(without(layout, 3), [3], MANY).plan) == {0: (1, 2, 4)}


def test_the_most_endangered_partitions_come_first_if_a_plan_has_no_room_for_all():
    layout = layout_of(dict.fromkeys(range(1, 6)), (1, 2, 3), (1, 4, 3), (1, 2, 3))
    endangered = layout.partitions[1]._replace(out_of_sync=frozenset({4}))
    layout = layout._replace(partitions=(layout.partitions[0], endangered, layout.partitions[2]))
    assert list(targets(rebuild(without(layout, 3), [3], 1).plan)) == [1]


def test_one_replica_of_a_partition_is_replaced_in_each_plan():
    layout = without(layout_of(dict.fromkeys(range(1, 6)), (1, 2, 3)), 2, 3)
    first = rebuild(layout, [2, 3], MANY).plan
    (move,) = first.moves
    assert (len(move.added), len(move.removed)) == (1, 1)
    second = rebuild(without(apply(first), 2, 3), [2, 3], MANY).plan
    assert set(second.moves[0].target) == {1, 4, 5}


def test_what_cannot_be_rebuilt_is_named():
    layout = without(layout_of({1: None, 2: None, 3: None}, (1, 2, 3), (3,), (2, 3)), 3)
    result = rebuild(layout, [3], MANY)
    assert (targets(result.plan), names(result.homeless), names(result.leaderless)) == ({2: (2, 1)}, ["t-0"], ["t-1"])


def test_disks_are_not_filled():
    brokers = [ClusterBroker(1), ClusterBroker(2, accepts_replicas=False), ClusterBroker(3, free_bytes=150)]
    parts = [PlacedPartition("t", index, (1, 2), 1, 100, frozenset({2})) for index in range(2)]
    result = rebuild(cluster_layout(brokers, parts), [2], MANY)
    assert (list(targets(result.plan)), names(result.homeless)) == ([0], ["t-1"])


@given(layouts(), st.data())
def test_a_rebuild_leaves_no_replica_that_could_be_elsewhere(layout: ClusterLayout, data: st.DataObject):
    away = data.draw(st.sampled_from(sorted(layout.brokers)))
    layout = without(layout, away)
    result: Rebuild = rebuild(layout, [away], MANY)
    left = {str(part) for part in apply(result.plan).partitions if away in part.replicas}
    moving = {str(part) for part in layout.partitions if part.is_reassigning}
    assert left <= {*names(result.homeless), *names(result.leaderless), *moving}
    for move in result.plan.moves:
        assert len(set(move.target)) == len(move.target) == len(move.original)
        assert set(move.original) - set(move.target) == {away}
        assert layout.brokers[move.added[0]].accepts_replicas
    accepting = [broker.id for broker in layout.brokers.values() if broker.accepts_replicas]
    for part in result.homeless:
        assert set(accepting) <= set(part.replicas)


def test_a_broker_that_is_back_takes_its_share_of_replicas_and_leaders():
    layout = layout_of(dict.fromkeys(range(1, 5)), *[(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2)])
    after = apply(take_share(layout, 4, MANY))
    counts = [sum(broker in part.replicas for part in after.partitions) for broker in range(1, 5)]
    assert counts == [3, 3, 3, 3]
    assert sorted(part.replicas[0] for part in after.partitions) == [1, 2, 3, 4]


def test_it_takes_no_more_than_it_is_owed_and_nothing_that_does_not_fit():
    layout = layout_of(dict.fromkeys(range(1, 5)), *[(1, 2, 3)] * 8)
    assert len(take_share(layout, 4, 2).moves) == 2
    full = {**layout.brokers, 4: ClusterBroker(4, free_bytes=3)}
    assert len(take_share(layout._replace(brokers=full), 4, MANY).moves) == 3


def test_partitions_get_back_into_racks_that_they_have_left():
    layout = layout_of({1: "a", 2: "b", 3: "c", 4: "a"}, (1, 2, 4), (4, 2, 1))
    after = apply(take_share(layout, 3, MANY))
    assert [set(part.replicas) >= {2, 3} for part in after.partitions] == [True, True]


@given(layouts(), st.data())
def test_a_share_improves_the_goals_and_moves_only_to_the_broker(layout: ClusterLayout, data: st.DataObject):
    taker = data.draw(st.sampled_from(sorted(layout.brokers)))
    plan = take_share(layout, taker, MANY)
    after = apply(plan)
    assert goals(after)[:2] <= goals(layout)[:2]
    for move in plan.moves:
        assert move.added == [taker]
        assert len(set(move.target)) == len(move.target) == len(move.original)
    # A second plan has nothing to do.
    assert take_share(after, taker, MANY).moves == ()
