"""A controller that runs plans: one more move is done each time that a plan is described."""

from collections.abc import Callable
from typing import Any

from protocol.messages.k10000_create_reassignment_plan import (
    CreateReassignmentPlanRequest,
    CreateReassignmentPlanResponse,
)
from protocol.messages.k10001_describe_reassignment_plan import (
    DescribedMove,
    DescribedPlan,
    DescribeReassignmentPlanResponse,
)
from protocol.messages.k10002_cancel_reassignment_plan import (
    CancelReassignmentPlanRequest,
    CancelReassignmentPlanResponse,
)
from protocol.schema.message import Message

# Plans begin at this time, and each description is a second later.
CREATED_MS = 1_000_000


class FakeController:
    """`failures`: called instead of a response, the first one first; each may raise. `created`: the requests so far."""

    def __init__(self) -> None:
        self.plan: DescribedPlan | None = None
        self.created: list[CreateReassignmentPlanRequest] = []
        self.failures: list[Callable[[], Message | None]] = []
        self.skipped: dict[tuple[str, int], str] = {}
        self.now_ms = CREATED_MS

    def send(self, client: Any, request: Message, response_type: type[Message]) -> Message:
        if self.failures and (response := self.failures.pop(0)()) is not None:
            return response
        if isinstance(request, CreateReassignmentPlanRequest):
            return CreateReassignmentPlanResponse(plan_id=self.create(request))
        if isinstance(request, CancelReassignmentPlanRequest):
            assert self.plan is not None
            assert self.plan.plan_id == request.plan_id
            self.plan.state = "cancelling"
            for move in self.plan.moves:
                move.state = "done" if move.state == "pending" else "pending"
            return CancelReassignmentPlanResponse()
        self._advance()
        return DescribeReassignmentPlanResponse(plan=self.plan)

    def create(self, request: CreateReassignmentPlanRequest) -> int:
        self.created.append(request)
        self.plan = DescribedPlan(
            plan_id=len(self.created),
            description=request.description,
            state="running",
            throttle_bytes_per_second=request.throttle_bytes_per_second,
            max_concurrent_moves=request.max_concurrent_moves,
            created_ms=CREATED_MS,
            moves=[
                DescribedMove(
                    topic_name=move.topic_name,
                    partition_index=move.partition_index,
                    original_replicas=move.original_replicas,
                    target_replicas=move.target_replicas,
                    state="pending",
                )
                for move in request.moves
            ],
        )
        return self.plan.plan_id

    def _advance(self) -> None:
        """The move in progress is done or skipped, and the next one begins."""
        if self.plan is None or self.plan.ended_ms >= 0:
            return
        self.now_ms += 1000
        waiting = [move for move in self.plan.moves if move.state == "pending"]
        for move in self.plan.moves:
            if move.state == "running":
                move.reason = self.skipped.get((move.topic_name, move.partition_index))
                move.state = "done" if move.reason is None else "skipped"
        if waiting:
            waiting[0].state = "running"
        else:
            self.plan.state = "complete" if self.plan.state == "running" else "cancelled"
            self.plan.ended_ms = self.now_ms
