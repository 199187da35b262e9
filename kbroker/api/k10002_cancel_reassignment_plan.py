"""CancelReassignmentPlan (key 10002), version 0: move back everything that a plan has moved. Kafka has no such API.

- The response is sent when the cancellation is stored. The controller then moves partitions back with the same limits.
- A plan that is not running gets NO_REASSIGNMENT_IN_PROGRESS. Cancelling a plan twice is not an error.
- ApiVersions does not list it, so only kbroker's command line sends it.
"""

from __future__ import annotations

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from protocol.messages.k10002_cancel_reassignment_plan import (
    CancelReassignmentPlanRequest,
    CancelReassignmentPlanResponse,
)


async def handle(
    services: Services, context: RequestContext, request: CancelReassignmentPlanRequest
) -> CancelReassignmentPlanResponse:
    try:
        await services.controller.plans.cancel_plan(request.plan_id)
    except KafkaError as error:
        return CancelReassignmentPlanResponse(error_code=error.code, error_message=error.message)
    return CancelReassignmentPlanResponse()
