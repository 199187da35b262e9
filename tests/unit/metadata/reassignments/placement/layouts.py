"""Layouts for the tests of placement: small ones written by hand, and generated ones."""

from collections import Counter
from collections.abc import Mapping

from hypothesis import strategies as st

from kbroker.metadata.reassignments.placement.cluster_layout import (
    ClusterBroker,
    ClusterLayout,
    PlacedPartition,
    PlacementState,
    cluster_layout,
    rack_pairs,
    with_replicas,
)
from kbroker.metadata.reassignments.placement.reassignment_plan import ReassignmentPlan


def layout_of(
    racks: Mapping[int, str | None], *replicas: tuple[int, ...], sizes: tuple[int, ...] = ()
) -> ClusterLayout:
    """Return a layout with one topic `t`. Each partition is led by its first replica; sizes are 1 byte by default."""
    sizes = sizes or (1,) * len(replicas)
    return cluster_layout(
        [ClusterBroker(broker, rack) for broker, rack in racks.items()],
        [PlacedPartition("t", index, of, of[0], sizes[index]) for index, of in enumerate(replicas)],
    )


def targets(plan: ReassignmentPlan) -> dict[int, tuple[int, ...]]:
    """Return the replicas that a plan moves partitions to, by index."""
    return {move.partition: move.target for move in plan.moves}


def apply(plan: ReassignmentPlan) -> ClusterLayout:
    """Return the layout after all moves of a plan, each of which must begin with what is there."""
    replicas = {(part.topic, part.partition): part.replicas for part in plan.layout.partitions}
    for move in plan.moves:
        assert replicas[move.topic, move.partition] == move.original != move.target
        replicas[move.topic, move.partition] = move.target
    return with_replicas(plan.layout, replicas)


def goals(layout: ClusterLayout) -> tuple[int, ...]:
    """Return the measure of each goal in the order of their weight; lower is better.

    For the rack goal these are pairs of replicas in one rack, for the others sums of squares.
    """
    rack_of = {broker.id: broker.rack for broker in layout.brokers.values()}
    pairs = sum(rack_pairs(rack_of[broker] for broker in part.replicas) for part in layout.partitions)
    accepting = [broker.id for broker in layout.brokers.values() if broker.accepts_replicas]
    parts = layout.partitions
    counts = [sum(broker in part.replicas for part in parts) for broker in accepting]
    leaders = [sum(part.replicas[0] == broker for part in parts) for broker in accepting]
    sizes = [sum(part.size_bytes for part in parts if broker in part.replicas) for broker in accepting]
    of_topics = Counter((part.topic, part.replicas[0]) for part in parts if part.replicas[0] in accepting).values()
    return (pairs, *(sum(value * value for value in values) for values in (counts, leaders, sizes, of_topics)))


def spreads(state: PlacementState) -> tuple[int, int, int]:
    return state.rack_violations, state.replica_spread, state.leader_spread


@st.composite
def layouts(draw: st.DrawFn, *, all_accept: bool = False, all_movable: bool = False) -> ClusterLayout:
    """Generate a layout of up to 7 brokers in up to 4 racks."""
    count = draw(st.integers(1, 7))
    racks = draw(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=count, max_size=count))
    closed = draw(st.sets(st.integers(1, count), max_size=0 if all_accept else 2))
    brokers = [ClusterBroker(number, rack, number not in closed) for number, rack in enumerate(racks, 1)]
    sizes = st.one_of(st.integers(0, 4), st.integers(0, 10**6))
    rarely = st.just(False) if all_movable else st.integers(0, 9).map(lambda number: number == 9)
    partitions = []
    for index in range(draw(st.integers(0, 30))):
        replicas = tuple(draw(st.permutations(range(1, count + 1)))[: draw(st.integers(1, 4))])
        leader = None if draw(rarely) else draw(st.sampled_from(replicas))
        topic = f"t{index % 3}"
        is_reassigning = leader is not None and draw(rarely)
        part = PlacedPartition(topic, index // 3, replicas, leader, draw(sizes), is_reassigning=is_reassigning)
        partitions.append(part)
    return cluster_layout(brokers, partitions)
