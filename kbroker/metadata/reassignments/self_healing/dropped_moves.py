"""Moves that a plan of the controller drops before they are done. A running move gets its original replicas back.

A plan on request waits for absent brokers. A plan of the controller must not: no user watches it, and no other plan can
begin until it ends.
"""

from collections.abc import Collection

from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.reassignments.stored_plan import PlanOrigin, PlanState, SkipReason, StoredMove, StoredPlan


def drop_reason(
    plan: StoredPlan,
    move: StoredMove,
    partition: PartitionRegistration,
    alive: Collection[int],
    away: Collection[int],
) -> SkipReason | None:
    """Return why a move that is not done is dropped, None if it continues.

    `alive`: the brokers that can lead and follow. `away`: brokers that have been away long enough to be rebuilt.
    """
    if plan.origin is PlanOrigin.REQUEST:
        return None
    if plan.state is PlanState.CANCELLING:
        return SkipReason.CANCELLED
    if plan.origin is PlanOrigin.REBUILD and all(broker in alive for broker in set(move.original) - set(move.target)):
        # Its log lacks only recent records, so it is in sync again long before a new copy would be.
        return SkipReason.RETURNED
    if any(broker in away for broker in set(move.target) - set(move.original)):
        return SkipReason.AWAY
    return None
