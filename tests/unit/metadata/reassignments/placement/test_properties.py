"""What holds for every plan, whatever the layout: generated clusters, each plan against the goals in their order."""

from hypothesis import assume, given
from hypothesis import strategies as st

from kbroker.metadata.reassignments.placement.balance import STEPS, balance
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterLayout, ReplicaTable, evaluate, with_replicas
from kbroker.metadata.reassignments.placement.drain import change_replication_factor, drain, replace
from kbroker.metadata.reassignments.placement.reassignment_plan import PlanRefused, ReassignmentPlan
from tests.unit.metadata.reassignments.placement.layouts import apply, goals, layouts


def assert_sound(plan: ReassignmentPlan) -> None:
    """No broker has a partition twice, none receives one that may not, and the end is what the plan shows."""
    for move in plan.moves:
        assert len(set(move.target)) == len(move.target)
        assert all(plan.layout.brokers[broker].accepts_replicas for broker in move.added)
        assert not (move.added and move.source is None)
    assert all(
        part.replicas == former.replicas
        for part, former in zip(apply(plan).partitions, plan.layout.partitions, strict=True)
        if former.is_reassigning
    )
    assert evaluate(apply(plan)) == plan.after
    assert evaluate(plan.layout) == plan.before
    assert plan.copied_bytes == sum(
        part.size_bytes * len(set(part.replicas) - set(former.replicas))
        for part, former in zip(apply(plan).partitions, plan.layout.partitions, strict=True)
    )


def factors(layout: ClusterLayout) -> list[int]:
    return [len(part.replicas) for part in layout.partitions]


@given(layouts())
def test_a_balance_worsens_no_goal_for_a_later_one_and_a_second_one_moves_nothing(layout: ClusterLayout) -> None:
    plan = balance(layout)
    assert_sound(plan)
    after = apply(plan)
    assert factors(after) == factors(layout)
    assert goals(after) <= goals(layout)
    assert (goals(after) == goals(layout)) == (not plan.moves)
    assert balance(layout) == plan
    assert balance(after).moves == ()
    for move in plan.moves:
        # Replicas on brokers that accept none stay.
        assert all(layout.brokers[broker].accepts_replicas for broker in move.removed)


@given(layouts())
def test_each_step_of_a_balance_improves_a_goal_without_worsening_an_earlier_one(layout: ClusterLayout) -> None:
    table = ReplicaTable(layout)
    before = goals(layout)
    for step in STEPS:
        has_changed = step(table)
        after = goals(with_replicas(layout, table.result()))
        assert after < before if has_changed else after == before
        before = after


@given(layouts(all_accept=True, all_movable=True))
def test_a_balance_spreads_partitions_over_racks_and_replicas_within_each(layout: ClusterLayout) -> None:
    after = balance(layout).after
    assert after.rack_violations == 0
    racks = [broker.rack for broker in layout.brokers.values()]
    for rack in set(racks):
        counts = [load.replicas for broker, load in after.loads.items() if layout.brokers[broker].rack == rack]
        assert max(counts) - min(counts) <= 1
    if len(set(racks)) == 1:
        assert after.replica_spread <= 1


@given(layouts(), st.sets(st.integers(1, 7), min_size=1, max_size=3), st.booleans())
def test_a_drained_broker_is_empty(layout: ClusterLayout, drained: set[int], allow_fewer_racks: bool) -> None:
    assume(drained <= set(layout.brokers))
    try:
        plan = drain(layout, drained, allow_fewer_racks=allow_fewer_racks)
    except PlanRefused as refused:
        assert_refusal_is_right(layout, drained, allow_fewer_racks, str(refused))
        return
    assert_sound(plan)
    after = apply(plan)
    assert all(plan.after.loads[broker].replicas == 0 for broker in drained)
    assert factors(after) == factors(layout)
    assert allow_fewer_racks or goals(after)[0] <= goals(layout)[0]
    for move in plan.moves:
        assert set(move.removed) == drained.intersection(move.original)
    assert drain(after, drained).moves == ()


def assert_refusal_is_right(layout: ClusterLayout, drained: set[int], allow_fewer_racks: bool, reason: str) -> None:
    left = {broker.id for broker in layout.brokers.values() if broker.accepts_replicas} - drained
    affected = [part for part in layout.partitions if drained.intersection(part.replicas)]
    if "would accept replicas" in reason:
        assert any(len(left | (set(part.replicas) - drained)) < len(part.replicas) for part in affected)
    elif "without a leader" in reason or "being reassigned" in reason:
        assert not all(part.is_movable for part in affected)
    else:
        assert "fewer racks" in reason
        assert not allow_fewer_racks


@given(layouts(), st.integers(1, 7), st.integers(1, 7))
def test_a_replaced_broker_hands_everything_to_the_new_one(layout: ClusterLayout, old: int, new: int) -> None:
    assume({old, new} <= set(layout.brokers))
    try:
        plan = replace(layout, old, new)
    except PlanRefused:
        return
    assert_sound(plan)
    assert plan.after.loads[old].replicas == 0
    assert plan.after.loads[new].replicas == plan.before.loads[new].replicas + plan.before.loads[old].replicas
    assert plan.after.loads[new].leaders == plan.before.loads[new].leaders + plan.before.loads[old].leaders
    others = set(layout.brokers) - {old, new}
    assert all(plan.after.loads[broker] == plan.before.loads[broker] for broker in others)
    assert goals(apply(plan))[0] <= goals(layout)[0]


@given(layouts(), st.integers(1, 5))
def test_a_changed_replication_factor(layout: ClusterLayout, factor: int) -> None:
    topics = {"t0", "t1"} & {part.topic for part in layout.partitions}
    try:
        plan = change_replication_factor(layout, topics, factor)
    except PlanRefused:
        accepting = [broker for broker in layout.brokers.values() if broker.accepts_replicas]
        assert len(accepting) < factor or not all(part.is_movable for part in layout.partitions)
        return
    assert_sound(plan)
    for former, part in zip(layout.partitions, apply(plan).partitions, strict=True):
        assert len(part.replicas) == (factor if part.topic in topics else len(former.replicas))
        assert former.leader is None or former.leader in part.replicas
        if len(part.replicas) >= len(former.replicas):
            assert part.replicas[: len(former.replicas)] == former.replicas
        else:
            assert set(part.replicas) <= set(former.replicas)
