"""DescribeReassignmentPlan (key 10001), version 0: the running plan or the last one. Kafka has no such API.

- The plan is null if there has been none.
- The tagged field of self-healing has the brokers that are away, and those that are to get replicas back.
- The states of the moves are current; in a plan that has ended they are those at its end.
- ApiVersions does not list it, so only kbroker's command line sends it.
"""

from __future__ import annotations

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.reassignments.healing_states import HealedBroker
from kbroker.metadata.reassignments.plan_decisions import MoveState, MoveStatus
from kbroker.metadata.reassignments.reassignment_control_manager import PlanProgress
from kbroker.metadata.reassignments.stored_plan import SkipReason, StoredMove
from kbroker.runtime.turns import paced
from protocol.messages.k10001_describe_reassignment_plan import (
    DescribedHealing,
    DescribedMove,
    DescribedPlan,
    DescribeReassignmentPlanRequest,
    DescribeReassignmentPlanResponse,
)

# A plan may have 10,000 moves.
RUNS_IN_TURNS = True

REASONS = {
    SkipReason.DELETED: "the topic was deleted",
    SkipReason.REASSIGNED: "it was reassigned outside of the plan",
    SkipReason.UNREGISTERED: "a broker that it moves to is not registered any more",
    SkipReason.RETURNED: "its broker has returned",
    SkipReason.AWAY: "a broker that it moves to stays away",
    SkipReason.CANCELLED: "the plan was cancelled",
}


async def handle(
    services: Services, context: RequestContext, request: DescribeReassignmentPlanRequest
) -> DescribeReassignmentPlanResponse:
    try:
        progress = await services.controller.plans.describe_plan()
        healing = [_described_healing(broker) for broker in await services.controller.self_healing.describe()]
    except KafkaError as error:
        return DescribeReassignmentPlanResponse(error_code=error.code, error_message=error.message)
    if progress is None:
        return DescribeReassignmentPlanResponse(healing=healing)
    return DescribeReassignmentPlanResponse(plan=_described(progress, request.include_moves), healing=healing)


def _described(progress: PlanProgress, include_moves: bool) -> DescribedPlan:
    plan, states = progress.plan, [move.state for move in progress.moves]
    moves = zip(plan.moves, progress.moves, strict=True) if include_moves else ()
    return DescribedPlan(
        plan_id=plan.plan_id,
        description=plan.description,
        state=plan.state.value,
        throttle_bytes_per_second=plan.throttle,
        max_concurrent_moves=plan.max_concurrent_moves,
        created_ms=plan.created_ms,
        ended_ms=plan.ended_ms,
        moves_done=states.count(MoveState.DONE),
        moves_running=states.count(MoveState.RUNNING),
        moves_pending=states.count(MoveState.PENDING),
        moves_skipped=states.count(MoveState.SKIPPED),
        moves=[_described_move(move, state) for move, state in paced(moves)],
        origin=plan.origin.value,
    )


def _described_healing(broker: HealedBroker) -> DescribedHealing:
    return DescribedHealing(
        broker_id=broker.broker_id,
        is_away=broker.is_away,
        state=broker.state.value,
        replicas=broker.replicas,
        since_ms=broker.since_ms,
        remaining_ms=broker.remaining_ms,
    )


def _described_move(move: StoredMove, progress: MoveStatus) -> DescribedMove:
    return DescribedMove(
        topic_name=move.topic,
        partition_index=move.partition,
        original_replicas=list(move.original),
        target_replicas=list(move.target),
        state=progress.state.value,
        reason=None if progress.reason is None else REASONS[progress.reason],
    )
