"""Invariants of plans of reassignments, checked on each state of the plan that the controller writes.

- A plan runs, is perhaps cancelled, and ends. Only then another one begins, with a higher id.
- When self-healing begins to rebuild, the brokers are away, and not more brokers with replicas are away than live. Each
  move adds one replica elsewhere, and removes one of them.
- When it ends, each move that it has not skipped is done: the partition has the replicas of the plan, and the first of
  them leads if it can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.metadata.reassignments.stored_plan import PlanOrigin, PlanState, StoredPlan
from kbroker.metadata.replication.alter_partition import write_health_by_broker
from kbroker.metadata.replication.broker_changes import acceptable_leaders

if TYPE_CHECKING:
    from kbroker.metadata.image import PartitionRegistration
    from kbroker.simulation.invariants.controller_state import ControllerState

RUNNING, CANCELLING = PlanState.RUNNING, PlanState.CANCELLING
_NEXT_STATES = {
    RUNNING: {RUNNING, CANCELLING, PlanState.COMPLETE},
    CANCELLING: {CANCELLING, PlanState.CANCELLED},
}


class Plans:
    """Remembers the last plan. `plan`: the one that was stored before."""

    def __init__(self, state: ControllerState, plan: StoredPlan | None = None) -> None:
        self._state = state
        self._plan = plan

    def fault(self) -> str | None:
        """Record the plan as it is stored now. Returns what is wrong with it."""
        old, new = self._plan, self._state.reassignment_plan()
        if new is None or new is old:
            return None
        self._plan = new
        if old is None or old.plan_id != new.plan_id:
            is_next = old is None or (not old.is_active and new.plan_id > old.plan_id)
            is_valid = is_next and new.state is RUNNING
        else:
            is_valid = new.state in _NEXT_STATES.get(old.state, ())
        if not is_valid:
            before = "none" if old is None else f"{old.plan_id}, {old.state}"
            return f"plan {new.plan_id} is {new.state}, and the plan before was {before}"
        if new.origin is PlanOrigin.REBUILD and (old is None or old.plan_id != new.plan_id):
            return self._fault_of_rebuild(new)
        return None if new.is_active else self._fault_at_end(new)

    def _fault_of_rebuild(self, plan: StoredPlan) -> str | None:
        live = {broker for broker, known in self._state.brokers().items() if not known.fenced}
        holders = {broker for stored in self._state.partitions().values() for broker in stored.registration.replicas}
        away = holders - live
        if not away.issuperset(plan.brokers) or len(away) > len(live):
            return f"plan {plan.plan_id} rebuilds {plan.brokers}, {sorted(away)} are away, and {sorted(live)} live"
        for move in plan.moves:
            added, removed = set(move.target) - set(move.original), set(move.original) - set(move.target)
            if len(added) != 1 or len(removed) != 1 or not removed <= set(plan.brokers) or not added <= live:
                return f"plan {plan.plan_id} rebuilds {plan.brokers} with {move}"
        return None

    def _fault_at_end(self, plan: StoredPlan) -> str | None:
        partitions = {(stored.topic_id, tp[1]): stored.registration for tp, stored in self._state.partitions().items()}
        skipped = {index for indexes in plan.skipped.values() for index in indexes}
        known = self._state.brokers()
        # One that cannot write to its disk, or is on probation, is not elected as the preferred leader.
        alive = acceptable_leaders(known) - write_health_by_broker(known).keys()
        for index, move in enumerate(plan.moves):
            partition = partitions.get((move.topic_id, move.partition))
            # A topic may be deleted once the move of its partition is done.
            if index in skipped or partition is None:
                continue
            goal = list(plan.direction(move)[1])
            if not _is_done(partition, goal, alive):
                name = f"{move.topic}-{move.partition}"
                return f"plan {plan.plan_id} is {plan.state}, and {name} is not at {goal}: {partition}"
        return None


def _is_done(partition: PartitionRegistration, goal: list[int], alive: frozenset[int]) -> bool:
    can_lead = goal[0] in partition.isr and goal[0] in alive
    has_leader = partition.leader == goal[0] if can_lead else partition.leader in (*goal, -1)
    return has_leader and partition.replicas == goal and not partition.is_reassigning
