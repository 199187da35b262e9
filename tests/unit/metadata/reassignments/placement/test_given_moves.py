"""A plan that was shown before is run exactly as it was, or refused."""

import pytest

from kbroker.metadata.reassignments.placement.balance import balance
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterBroker, cluster_layout, with_replicas
from kbroker.metadata.reassignments.placement.reassignment_plan import PartitionMove as Move
from kbroker.metadata.reassignments.placement.reassignment_plan import PlanRefused, given_moves
from tests.unit.metadata.reassignments.placement.layouts import layout_of

LAYOUT = layout_of(dict.fromkeys((1, 2, 3)), (1, 2), (2, 1), (1, 2))


def test_the_plan_is_the_one_that_was_shown() -> None:
    shown = balance(LAYOUT)
    moves = list(shown.moves)
    assert moves
    assert given_moves(LAYOUT, moves) == shown
    # Also if another plan would be better by now.
    grown = LAYOUT._replace(partitions=tuple(part._replace(size_bytes=9) for part in LAYOUT.partitions))
    assert [move.target for move in given_moves(grown, moves).moves] == [move.target for move in shown.moves]


@pytest.mark.parametrize(
    ("moves", "reason"),
    [
        ([Move("x", 0, (1, 2), (1, 3))], "the partition x-0 does not exist"),
        ([Move("t", 0, (1, 2), (1, 3)), Move("t", 0, (1, 2), (3, 2))], "more than one move of t-0"),
        ([Move("t", 0, (1, 3), (1, 2))], "t-0 has the replicas 1,2, and not 1,3 as in the plan: make a new plan"),
        ([Move("t", 0, (1, 2), (3, 3))], "t-0 would have the replicas 3,3"),
        ([Move("t", 0, (1, 2), ())], "t-0 would have the replicas none"),
        ([Move("t", 0, (1, 2), (1, 7))], "broker 7 accepts no replicas"),
        ([Move("t", 0, (1, 2), (1, 4))], "broker 4 accepts no replicas: it is fenced, cordoned or unknown"),
    ],
)
def test_what_is_not_possible_any_more_is_refused(moves: list[Move], reason: str) -> None:
    brokers = [*LAYOUT.brokers.values(), ClusterBroker(4, accepts_replicas=False)]
    with pytest.raises(PlanRefused, match=reason):
        given_moves(cluster_layout(brokers, LAYOUT.partitions), moves)


def test_a_plan_into_fewer_racks_is_refused_unless_that_is_allowed() -> None:
    layout = layout_of({1: "a", 2: "b", 3: "b"}, (1, 2))
    moves = [Move("t", 0, (1, 2), (3, 2))]
    with pytest.raises(PlanRefused, match="t-0 would be in fewer racks: --allow-fewer-racks accepts that"):
        given_moves(layout, moves)
    assert [move.target for move in given_moves(layout, moves, allow_fewer_racks=True).moves] == [(3, 2)]


def test_a_partition_that_has_moved_already_is_refused() -> None:
    move = Move("t", 0, (1, 2), (3, 2))
    moved = with_replicas(LAYOUT, {("t", 0): move.target})
    with pytest.raises(PlanRefused, match="t-0 has the replicas 3,2, and not 1,2"):
        given_moves(moved, [move])
