"""Requests to the controller about reassignment plans. Every broker forwards them."""

import time
from collections.abc import Sequence
from typing import Any, TypeVar

from kbroker.cli.cluster.plans.broker_message import send_message
from kbroker.cli.cluster.plans.plan_description import CANCELLED, MoveDescription, PlanDescription
from kbroker.cli.common.client import client_error_text, error_code_text, read_again
from kbroker.cli.common.errors import CliError
from kbroker.metadata.reassignments.placement.reassignment_plan import PartitionMove
from protocol.errors import ErrorCode
from protocol.messages.k10000_create_reassignment_plan import (
    CreateReassignmentPlanRequest,
    CreateReassignmentPlanResponse,
    PlannedMove,
)
from protocol.messages.k10001_describe_reassignment_plan import (
    DescribedHealing,
    DescribedPlan,
    DescribeReassignmentPlanRequest,
    DescribeReassignmentPlanResponse,
)
from protocol.messages.k10002_cancel_reassignment_plan import (
    CancelReassignmentPlanRequest,
    CancelReassignmentPlanResponse,
)
from protocol.schema.message import Message

Response = TypeVar("Response", bound=Message)

# A controller may have to be elected. A command that has not reached one yet gives up earlier if a broker reports that
# there is none, or that it cannot reach ZooKeeper: the broker itself has waited, for up to 30 s, or most of the session
# timeout.
RETRY_FOR_S, FIRST_RETRY_FOR_S, RETRY_EVERY_S = 60.0, 5.0, 0.2
UNAVAILABLE = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT})
# Apache Kafka disconnects a client whose request it does not know. One broker may have been killed just then.
REFUSALS = 3


class PlansNotSupported(CliError):
    """The brokers are those of Apache Kafka, or of an earlier version of kbroker."""


class PlanRequests:
    """Creates, describes and cancels plans through an admin client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._is_supported = False
        self._has_reached_controller = False

    def describe(self) -> PlanDescription | None:
        """Return the plan that runs, or the last one; None if there was none.

        Tries again while there is no controller. Raises CliError if that takes too long, and PlansNotSupported.
        """
        response = self._send_again(
            DescribeReassignmentPlanRequest(include_moves=True), DescribeReassignmentPlanResponse
        )
        if response.error_code:
            raise CliError(error_code_text(response.error_code, response.error_message))
        return None if response.plan is None else _described_plan(response.plan)

    def healing_if_known(self) -> list[DescribedHealing]:
        """Return what self-healing does about brokers; [] if no controller responds, as those of Apache Kafka."""
        from kafka.errors import KafkaError

        request = DescribeReassignmentPlanRequest(include_moves=False)
        try:
            return send_message(self._client, request, DescribeReassignmentPlanResponse).healing
        except KafkaError:
            return []

    def create(
        self,
        description: str,
        moves: Sequence[PartitionMove],
        throttle: int | None,
        concurrent: int,
        *,
        allow_fewer_racks: bool,
    ) -> int:
        """Let the controller run a plan and return its id. `throttle`: bytes per second.

        Raises CliError if the controller refuses, or if it is unknown whether the plan runs.
        """
        from kafka.errors import KafkaError

        request = CreateReassignmentPlanRequest(
            description=description,
            throttle_bytes_per_second=-1 if throttle is None else throttle,
            max_concurrent_moves=concurrent,
            moves=[
                PlannedMove(
                    topic_name=move.topic,
                    partition_index=move.partition,
                    original_replicas=list(move.original),
                    target_replicas=list(move.target),
                )
                for move in moves
            ],
            allow_fewer_racks=allow_fewer_racks,
        )
        try:
            response = send_message(self._client, request, CreateReassignmentPlanResponse)
        except KafkaError as error:
            return self._id_of(request, client_error_text(error))
        if response.error_code == ErrorCode.REQUEST_TIMED_OUT:
            return self._id_of(request, error_code_text(response.error_code, response.error_message))
        if response.error_code:
            raise CliError(error_code_text(response.error_code, response.error_message))
        return response.plan_id

    def _id_of(self, request: CreateReassignmentPlanRequest, error: str) -> int:
        """Return the id of the plan that a request without a response has begun. Raises CliError if none has."""
        plan = self.describe()
        moves = [] if plan is None else [(*move.key, list(move.target)) for move in plan.moves]
        wanted = [(move.topic_name, move.partition_index, move.target_replicas) for move in request.moves]
        if plan is None or not plan.is_running or sorted(moves) != sorted(wanted):
            raise CliError(f"the plan was not begun: {error}")
        return plan.plan_id

    def cancel(self, plan_id: int) -> None:
        """Let the controller cancel a plan. Raises CliError if it has ended."""
        response = self._send_again(CancelReassignmentPlanRequest(plan_id=plan_id), CancelReassignmentPlanResponse)
        if response.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
            # The response to an earlier attempt may have been lost.
            plan = self.describe()
            if plan is not None and (plan.plan_id, plan.state) == (plan_id, CANCELLED):
                return
        if response.error_code:
            raise CliError(error_code_text(response.error_code, response.error_message))

    def _send_again(self, request: Message, response_type: type[Response]) -> Response:
        """Send a request that may be repeated until there is a response of a controller."""
        from kafka.errors import KafkaError

        began = time.monotonic()
        refusals = 0
        while True:
            try:
                response: Any = send_message(self._client, request, response_type)
                self._is_supported = True
                is_reached = response.error_code not in UNAVAILABLE
                self._has_reached_controller |= is_reached
                retry_for_s = RETRY_FOR_S if self._has_reached_controller else FIRST_RETRY_FOR_S
                if is_reached or time.monotonic() > began + retry_for_s:
                    result: Response = response
                    return result
            except KafkaError:
                if time.monotonic() > began + RETRY_FOR_S:
                    raise
                read_again(self._client.describe_cluster)
                refusals += 1
                if refusals == REFUSALS and not self._is_supported:
                    raise PlansNotSupported("these brokers run no plans: use kafka-reassign-partitions") from None
            time.sleep(RETRY_EVERY_S)


def _described_plan(plan: DescribedPlan) -> PlanDescription:
    return PlanDescription(
        plan.plan_id,
        plan.description,
        plan.state,
        plan.throttle_bytes_per_second if plan.throttle_bytes_per_second >= 0 else None,
        plan.max_concurrent_moves,
        plan.created_ms,
        plan.ended_ms if plan.ended_ms >= 0 else None,
        tuple(
            MoveDescription(
                move.topic_name,
                move.partition_index,
                tuple(move.original_replicas),
                tuple(move.target_replicas),
                move.state,
                move.reason,
            )
            for move in plan.moves
        ),
        plan.origin,
    )
