"""CreateReassignmentPlan: let the controller run a plan of moves. Kafka has no such API.

DescribeReassignmentPlan: the plan that the controller runs, or the last one. Kafka has no such API.

CancelReassignmentPlan: let the controller move everything back that a plan has moved. Kafka has no such API.
"""

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


class DescribedMove(Struct):
    topic_name: str = row("string", "0+")
    partition_index: int = row("int32", "0+")
    original_replicas: list[int] = row(["int32"], "0+")
    target_replicas: list[int] = row(["int32"], "0+")
    state: str = row("string", "0+")
    reason: str | None = row("string", "0+", nullable="0+", default=None)


class DescribedPlan(Struct):
    plan_id: int = row("int64", "0+")
    description: str = row("string", "0+")
    state: str = row("string", "0+")
    throttle_bytes_per_second: int = row("int64", "0+", default=-1)
    max_concurrent_moves: int = row("int32", "0+")
    created_ms: int = row("int64", "0+")
    ended_ms: int = row("int64", "0+", default=-1)
    moves_done: int = row("int32", "0+")
    moves_running: int = row("int32", "0+")
    moves_pending: int = row("int32", "0+")
    moves_skipped: int = row("int32", "0+")
    moves: list[DescribedMove] = row([DescribedMove], "0+")
    origin: str = row("string", "0+", tag=0, default="request")


class DescribedHealing(Struct):
    broker_id: int = row("int32", "0+")
    is_away: bool = row("bool", "0+")
    state: str = row("string", "0+")
    replicas: int = row("int32", "0+")
    since_ms: int = row("int64", "0+", default=-1)
    remaining_ms: int = row("int64", "0+")


class DescribeReassignmentPlanRequest(Message, key=10001, kind="request", versions="0", flexible="0+"):
    include_moves: bool = row("bool", "0+")


class DescribeReassignmentPlanResponse(Message, key=10001, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
    plan: DescribedPlan | None = row(DescribedPlan, "0+", nullable="0+", default=None)
    healing: list[DescribedHealing] = row([DescribedHealing], "0+", tag=0)


class CancelReassignmentPlanRequest(Message, key=10002, kind="request", versions="0", flexible="0+"):
    plan_id: int = row("int64", "0+")


class CancelReassignmentPlanResponse(Message, key=10002, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = row("int32", "0+")
    error_code: int = row("int16", "0+")
    error_message: str | None = row("string", "0+", nullable="0+", default=None)
