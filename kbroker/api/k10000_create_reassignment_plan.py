"""CreateReassignmentPlan (key 10000), version 0: make the controller run a plan of moves. Kafka has no such API.

- The response is sent when the plan is stored. The plan then runs without the client, even if the controller fails.
- One plan runs at a time; a second one gets REASSIGNMENT_IN_PROGRESS.
- An invalid move refuses the whole plan. Moves must begin with the current replicas of their partitions.
- A plan may not spread a partition worse over racks than before, unless the request allows it.
- ApiVersions does not list it, so only kbroker's command line sends it.
"""

from __future__ import annotations

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.reassignments.placement.reassignment_plan import PartitionMove
from kbroker.metadata.reassignments.plan_decisions import RequestedPlan
from kbroker.runtime.turns import paced, release
from protocol.messages.k10000_create_reassignment_plan import (
    CreateReassignmentPlanRequest,
    CreateReassignmentPlanResponse,
    PlannedMove,
)


async def handle(
    services: Services, context: RequestContext, request: CreateReassignmentPlanRequest
) -> CreateReassignmentPlanResponse:
    moves = [_requested_move(move) for move in paced(request.moves)]
    plan = RequestedPlan(
        request.description, request.throttle_bytes_per_second, request.max_concurrent_moves, moves,
        request.allow_fewer_racks,
    )  # fmt: skip
    try:
        response = CreateReassignmentPlanResponse(plan_id=await services.controller.plans.create_plan(plan))
    except KafkaError as error:
        response = CreateReassignmentPlanResponse(error_code=error.code, error_message=error.message)
    release(moves)
    return response


def _requested_move(move: PlannedMove) -> PartitionMove:
    return PartitionMove(
        move.topic_name, move.partition_index, tuple(move.original_replicas), tuple(move.target_replicas)
    )
