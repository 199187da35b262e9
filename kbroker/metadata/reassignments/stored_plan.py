"""A plan of reassignments as it is stored in the coordination service.

The progress of a running plan is not stored: it follows from the partitions. So any controller can continue it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

NO_THROTTLE = -1


class PlanState(StrEnum):
    """CANCELLING: everything moves back. COMPLETE and CANCELLED plans have ended."""

    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETE = "complete"
    CANCELLED = "cancelled"


class PlanOrigin(StrEnum):
    """REQUEST: a client has requested the plan. REBUILD and RETURN: plans of the controller, see self_healing."""

    REQUEST = "request"
    REBUILD = "rebuild"
    RETURN = "return"


class SkipReason(StrEnum):
    """The reason why a plan does not move a partition. The last three occur in plans of the controller only."""

    DELETED = "deleted"
    REASSIGNED = "reassigned"
    UNREGISTERED = "unregistered"
    RETURNED = "returned"
    AWAY = "away"
    CANCELLED = "cancelled"


class StoredMove(NamedTuple):
    """The change of one partition's replicas. `target[0]` is its preferred leader afterwards."""

    topic: str
    topic_id: bytes
    partition: int
    original: tuple[int, ...]
    target: tuple[int, ...]


class StoredPlan(NamedTuple):
    """A plan. `throttle`: bytes per second for each broker, or NO_THROTTLE; it is set before the first move begins.

    `is_throttled`: whether the configs of the throttle have been set. `skipped`: the indexes of the moves that an ended
    plan has skipped; all others are done. `created_ms`, `ended_ms`: wall clock; `ended_ms` is -1 for a running plan.
    `brokers`: the brokers whose replicas a plan of the controller rebuilds or gives back.
    """

    plan_id: int
    description: str
    state: PlanState
    throttle: int
    max_concurrent_moves: int
    created_ms: int
    moves: tuple[StoredMove, ...]
    ended_ms: int = -1
    is_throttled: bool = False
    skipped: Mapping[SkipReason, tuple[int, ...]] = {}
    origin: PlanOrigin = PlanOrigin.REQUEST
    brokers: tuple[int, ...] = ()

    @property
    def is_active(self) -> bool:
        return self.state in (PlanState.RUNNING, PlanState.CANCELLING)

    def direction(self, move: StoredMove) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the replicas before a move and after it.

        A cancelled plan of the controller moves nothing back: it might wait for a broker that never returns.
        """
        if self.origin is not PlanOrigin.REQUEST or self.state in (PlanState.RUNNING, PlanState.COMPLETE):
            return move.original, move.target
        return move.target, move.original
