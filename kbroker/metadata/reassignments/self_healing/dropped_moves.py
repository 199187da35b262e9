"""Moves that a plan of the controller drops before they are done. One that has begun gets its former replicas back.

A plan on request waits for brokers that are away. A plan of the controller must not: nobody looks after it, and no
other plan can begin until it ends.
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
    """Return why a move that is not done is dropped, None if it goes on.

    `alive`: the brokers that can lead and follow. `away`: those that have been away so long that they are rebuilt.
    """
    if plan.origin is PlanOrigin.REQUEST:
        return None
    if plan.state is PlanState.CANCELLING:
        return SkipReason.CANCELLED
    if plan.origin is PlanOrigin.REBUILD and all(broker in alive for broker in set(move.original) - set(move.target)):
        # Its log lacks only what was written meanwhile: it is in sync again long before a copy of everything.
        return SkipReason.RETURNED
    if any(broker in away for broker in set(move.target) - set(move.original)):
        return SkipReason.AWAY
    return None
