"""A plan with given moves, such as those of a plan that was saved to a file."""

from collections.abc import Iterable
from typing import NamedTuple

from kbroker.metadata.topics.placement.cluster_layout import ClusterLayout
from kbroker.metadata.topics.placement.placement_goals import has_fewer_racks
from kbroker.metadata.topics.placement.reassignment_plan import PlanRefused, ReassignmentPlan, plan_of


class GivenMove(NamedTuple):
    """`original`: the replicas that the partition must have now. `target[0]` is its preferred leader afterwards."""

    topic: str
    partition: int
    original: tuple[int, ...]
    target: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def given_moves(
    layout: ClusterLayout, moves: Iterable[GivenMove], drained: Iterable[int] = (), *, allow_fewer_racks: bool = False
) -> ReassignmentPlan:
    """Return the plan with exactly these moves. Raises PlanRefused if one is no longer possible, or violates a goal.

    `drained`: the brokers that the plan is to drain, which must be known. Without `allow_fewer_racks`, no partition may
    be spread worse over racks.
    """
    unknown = [broker for broker in drained if broker not in layout.brokers]
    if unknown:
        raise PlanRefused(f"there is no broker {unknown[0]}")
    current = {(part.topic, part.partition): part.replicas for part in layout.partitions}
    targets: dict[tuple[str, int], tuple[int, ...]] = {}
    for move in moves:
        key = (move.topic, move.partition)
        if key not in current:
            raise PlanRefused(f"the partition {move} does not exist")
        if key in targets:
            raise PlanRefused(f"the plan has more than one move of {move}")
        if current[key] != move.original:
            raise PlanRefused(
                f"{move} has the replicas {_ids(current[key])}, and not {_ids(move.original)} as in the plan: make a "
                "new plan"
            )
        if not move.target or len(set(move.target)) < len(move.target):
            raise PlanRefused(f"{move} would have the replicas {_ids(move.target) or 'none'}")
        for broker in set(move.target).difference(move.original):
            if broker not in layout.brokers or not layout.brokers[broker].accepts_replicas:
                raise PlanRefused(f"broker {broker} accepts no replicas: it is fenced, cordoned or unknown")
        racks = [[layout.brokers[broker].rack for broker in replicas] for replicas in (move.original, move.target)]
        if not allow_fewer_racks and has_fewer_racks(*racks):
            raise PlanRefused(f"{move} would be in fewer racks: --allow-fewer-racks accepts that")
        targets[key] = move.target
    return plan_of(layout, targets)


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))
