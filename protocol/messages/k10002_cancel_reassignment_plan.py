"""CancelReassignmentPlan: let the controller move everything back that a plan has moved. Kafka has no such API."""

from protocol.schema.message import Message, row


class CancelReassignmentPlanRequest(Message, key=10002, kind="request", versions="0", flexible="0+"):
    plan_id: int = row("int64", "0+")


class CancelReassignmentPlanResponse(Message, key=10002, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
