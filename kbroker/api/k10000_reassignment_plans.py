"""Plans of moves, which the controller runs: CreateReassignmentPlan (key 10000), DescribeReassignmentPlan (10001) and
CancelReassignmentPlan (10002), version 0. Kafka has no such APIs; only kbroker's command line sends them.

- CreateReassignmentPlan: the response is sent when the plan is stored. The plan then runs without the client, even if
  the controller fails. One plan runs at a time; a second one gets REASSIGNMENT_IN_PROGRESS. An invalid move refuses the
  whole plan. Moves must begin with the current replicas of their partitions. A plan may not spread a partition worse
  over racks than before, unless the request allows it.
- DescribeReassignmentPlan: the running plan or the last one, null if there has been none. The states of the moves are
  current; in a plan that has ended they are those at its end. The tagged field of self-healing has the brokers that are
  away, and those that are to get replicas back.
- CancelReassignmentPlan: the response is sent when the cancellation is stored. The controller then moves partitions
  back with the same limits. A plan that is not running gets NO_REASSIGNMENT_IN_PROGRESS. Cancelling a plan twice is not
  an error.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.metadata.reassignments.healing_states import HealedBroker
from kbroker.metadata.reassignments.placement.reassignment_plan import PartitionMove
from kbroker.metadata.reassignments.plan_decisions import MoveState, MoveStatus, RequestedPlan
from kbroker.metadata.reassignments.reassignment_control_manager import PlanProgress
from kbroker.metadata.reassignments.stored_plan import SkipReason, StoredMove
from kbroker.runtime.turns import paced, release
from protocol.apis import ApiKey
from protocol.messages.k10000_reassignment_plans import (
    CancelReassignmentPlanRequest,
    CancelReassignmentPlanResponse,
    CreateReassignmentPlanRequest,
    CreateReassignmentPlanResponse,
    DescribedHealing,
    DescribedMove,
    DescribedPlan,
    DescribeReassignmentPlanRequest,
    DescribeReassignmentPlanResponse,
)

FORWARDED = True
# A plan may have 10,000 moves.
RUNS_IN_TURNS = {ApiKey.DESCRIBE_REASSIGNMENT_PLAN}

REASONS = {
    SkipReason.DELETED: "the topic was deleted",
    SkipReason.REASSIGNED: "it was reassigned outside of the plan",
    SkipReason.UNREGISTERED: "a broker that it moves to is not registered any more",
    SkipReason.RETURNED: "its broker has returned",
    SkipReason.AWAY: "a broker that it moves to stays away",
    SkipReason.CANCELLED: "the plan was cancelled",
}


async def create_reassignment_plan(
    services: Services, context: RequestContext, request: CreateReassignmentPlanRequest
) -> CreateReassignmentPlanResponse:
    moves = [
        PartitionMove(move.topic_name, move.partition_index, tuple(move.original_replicas), tuple(move.target_replicas))
        for move in paced(request.moves)
    ]
    plan = RequestedPlan(
        request.description, request.throttle_bytes_per_second, request.max_concurrent_moves, moves,
        request.allow_fewer_racks,
    )  # fmt: skip
    try:
        return CreateReassignmentPlanResponse(plan_id=await services.controller.plans.create_plan(plan))
    finally:
        release(moves)


async def describe_reassignment_plan(
    services: Services, context: RequestContext, request: DescribeReassignmentPlanRequest
) -> DescribeReassignmentPlanResponse:
    progress = await services.controller.plans.describe_plan()
    healing = [_described_healing(broker) for broker in await services.controller.self_healing.describe()]
    plan = None if progress is None else _described(progress, request.include_moves)
    return DescribeReassignmentPlanResponse(plan=plan, healing=healing)


async def cancel_reassignment_plan(
    services: Services, context: RequestContext, request: CancelReassignmentPlanRequest
) -> CancelReassignmentPlanResponse:
    await services.controller.plans.cancel_plan(request.plan_id)
    return CancelReassignmentPlanResponse()


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


HANDLERS = {
    ApiKey.CREATE_REASSIGNMENT_PLAN: create_reassignment_plan,
    ApiKey.DESCRIBE_REASSIGNMENT_PLAN: describe_reassignment_plan,
    ApiKey.CANCEL_REASSIGNMENT_PLAN: cancel_reassignment_plan,
}
