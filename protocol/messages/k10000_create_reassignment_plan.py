"""CreateReassignmentPlan: let the controller run a plan of moves. Kafka has no such API."""

from protocol.schema.message import Message, Struct, row


class PlannedMove(Struct):
    topic_name: str = row("string", "0+")
    partition_index: int = row("int32", "0+")
    original_replicas: list[int] = row(["int32"], "0+")
    target_replicas: list[int] = row(["int32"], "0+")


class CreateReassignmentPlanRequest(Message, key=10000, kind="request", versions="0", flexible="0+"):
    description: str = row("string", "0+")
    throttle_bytes_per_second: int = row("int64", "0+", default=-1)
    max_concurrent_moves: int = row("int32", "0+")
    moves: list[PlannedMove] = row([PlannedMove], "0+")
    allow_fewer_racks: bool = row("bool", "0+", tag=0, default=False)


class CreateReassignmentPlanResponse(Message, key=10000, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    plan_id: int = row("int64", "0+", default=-1)
