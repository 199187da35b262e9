"""Reassignment plans: requests to the controller, which every broker forwards, and how far a plan is."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from kbroker.cli.common.client import CLIENT_ERRORS, client_error_text, error_code_text, raise_error, request_if_known
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.partitions import NO_CONTROLLER
from kbroker.client.admin import describe_cluster
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import CONTROLLER_ERRORS, Partition
from kbroker.client.retries import Retries
from kbroker.metadata.reassignments.placement.reassignment_plan import PartitionMove
from protocol.errors import ErrorCode
from protocol.messages.k10000_reassignment_plans import (
    CancelReassignmentPlanRequest,
    CancelReassignmentPlanResponse,
    CreateReassignmentPlanRequest,
    CreateReassignmentPlanResponse,
    DescribedPlan,
    DescribeReassignmentPlanRequest,
    DescribeReassignmentPlanResponse,
    PlannedMove,
)
from protocol.schema.message import Message

RUNNING, CANCELLING, COMPLETE, CANCELLED = "running", "cancelling", "complete", "cancelled"
ON_REQUEST = "request"
DONE, MOVING, PENDING, SKIPPED = "done", "running", "pending", "skipped"


class MoveDescription(NamedTuple):
    """The change of one partition's replicas, and how far it is. `reason`: why it is skipped, None otherwise.

    Of a plan that is cancelled, moves are done when their partitions have the original replicas again.
    """

    topic: str
    partition: int
    original: tuple[int, ...]
    target: tuple[int, ...]
    state: str = PENDING
    reason: str | None = None

    @property
    def key(self) -> Partition:
        return self.topic, self.partition

    @property
    def added(self) -> list[int]:
        """The brokers that copy the partition."""
        return [broker for broker in self.target if broker not in self.original]

    @property
    def removed(self) -> list[int]:
        """The brokers that copy the partition if it moves back."""
        return [broker for broker in self.original if broker not in self.target]


class PlanDescription(NamedTuple):
    """The plan that runs, or the last one. The controller's clock sets the times, in milliseconds since the epoch.

    `throttle_bytes_per_second` is None without a throttle, `ended_ms` until the plan has ended. `origin` is ON_REQUEST
    unless the controller has made the plan itself.
    """

    plan_id: int
    description: str
    state: str
    throttle_bytes_per_second: int | None
    max_concurrent_moves: int
    created_ms: int
    ended_ms: int | None
    moves: tuple[MoveDescription, ...]
    origin: str = ON_REQUEST

    @property
    def moves_back(self) -> bool:
        """Whether it is or was cancelled, and restores the original replicas. A plan of the controller only stops."""
        return self.state in (CANCELLING, CANCELLED) and self.origin == ON_REQUEST

    @property
    def is_running(self) -> bool:
        return self.state in (RUNNING, CANCELLING)

    @property
    def is_cancelling(self) -> bool:
        return self.state == CANCELLING

    def awaited(self, away: Collection[int]) -> list[int]:
        """Return the brokers of those that are away which the plan waits for, as they have to copy partitions."""
        if self.is_cancelling and not self.moves_back:
            return []
        moves = self.in_state(MOVING) + self.in_state(PENDING)
        copying = {broker for move in moves for broker in (move.removed if self.moves_back else move.added)}
        return sorted(copying.intersection(away))

    def count(self, state: str) -> int:
        """Return the number of moves in a state."""
        return sum(move.state == state for move in self.moves)

    def in_state(self, state: str) -> list[MoveDescription]:
        return [move for move in self.moves if move.state == state]


class CopiedBytes(NamedTuple):
    """The bytes that a plan has copied, of those that it copies in total."""

    copied: int
    total: int


# The bytes that brokers have of partitions that move to them.
ReplicaSizes = Mapping[int, Mapping[Partition, int]]


def copied_bytes(plan: PlanDescription, sizes: Mapping[Partition, int], replicas: ReplicaSizes) -> CopiedBytes:
    """Return how far a plan is. `sizes`: of one replica, by partition. `replicas`: of the moves that are running.

    Of a plan that is cancelled it is not known which partitions have to be copied back: nothing is counted.
    """
    if plan.moves_back:
        return CopiedBytes(0, 0)
    copied = total = 0
    for move in plan.moves:
        size_bytes = sizes.get(move.key, 0)
        if move.state != SKIPPED:
            total += size_bytes * len(move.added)
        if move.state == DONE:
            copied += size_bytes * len(move.added)
        elif move.state == MOVING:
            copied += sum(min(replicas.get(broker, {}).get(move.key, 0), size_bytes) for broker in move.added)
    return CopiedBytes(copied, total)


def copy_rate(plan: PlanDescription, sizes: Mapping[Partition, int]) -> float | None:
    """Return the bytes per second that the busiest broker of a complete plan received or sent.

    None if that says nothing about another plan: the plan had a throttle, or was too short to measure. It is assumed
    that the partitions had their current sizes then.
    """
    if plan.state != COMPLETE or plan.ended_ms is None or plan.throttle_bytes_per_second is not None:
        return None
    duration_ms = plan.ended_ms - plan.created_ms
    busiest = max(_loads(plan.in_state(DONE), sizes), default=0)
    return busiest * 1000 / duration_ms if duration_ms >= MEASURABLE_MS and busiest >= MEASURABLE_BYTES else None


# What passes before and after the copies of a shorter or smaller plan is no small part of its time.
MEASURABLE_MS, MEASURABLE_BYTES = 2000, 1 << 20


def _loads(moves: Iterable[MoveDescription], sizes: Mapping[Partition, int]) -> Iterable[int]:
    received: dict[int, int] = {}
    sent: dict[int, int] = {}
    for move in moves:
        size_bytes = sizes.get(move.key, 0)
        for broker in move.added:
            received[broker] = received.get(broker, 0) + size_bytes
            # The preferred leader was probably the leader.
            sent[move.original[0]] = sent.get(move.original[0], 0) + size_bytes
    return [*received.values(), *sent.values()]


R = TypeVar("R", DescribeReassignmentPlanResponse, CancelReassignmentPlanResponse)

# A controller may have to be elected. A command that has not reached one yet gives up earlier if a broker reports that
# there is none, or that it cannot reach ZooKeeper: the broker itself has waited, for up to 30 s, or most of the session
# timeout.
RETRY_FOR_S, FIRST_RETRY_FOR_S = 60.0, 5.0
# Apache Kafka disconnects a client whose request it does not know. One broker may have been killed just then.
REFUSALS = 3


class PlansNotSupported(CliError):
    """The brokers are those of Apache Kafka, or of an earlier version of kbroker."""


class PlanRequests:
    """Creates, describes and cancels plans through an admin client."""

    def __init__(self, client: ClusterClient) -> None:
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
        raise_error(response.error_code, response.error_message)
        return None if response.plan is None else _described_plan(response.plan)

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
            response = self._client.request(request, CreateReassignmentPlanResponse)
        except CLIENT_ERRORS as error:
            return self._id_of(request, client_error_text(error))
        if response.error_code == ErrorCode.REQUEST_TIMED_OUT:
            return self._id_of(request, error_code_text(response.error_code, response.error_message))
        raise_error(response.error_code, response.error_message)
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
        raise_error(response.error_code, response.error_message)

    def _send_again(self, request: Message, response_type: type[R]) -> R:
        """Send a request that may be repeated until there is a response of a controller."""
        retries = Retries(self._client.on_wait, RETRY_FOR_S)
        refusals = 0
        while True:
            try:
                response = self._client.request(request, response_type)
                self._is_supported = True
                is_reached = response.error_code not in CONTROLLER_ERRORS
                self._has_reached_controller |= is_reached
                retries.for_s = RETRY_FOR_S if self._has_reached_controller else FIRST_RETRY_FOR_S
                if is_reached or not retries.again(NO_CONTROLLER):
                    return response
            except CLIENT_ERRORS as error:
                retries.for_s = RETRY_FOR_S
                if not retries.again(error):
                    raise
                describe_cluster(self._client)
                refusals += 1
                if refusals == REFUSALS and not self._is_supported:
                    raise PlansNotSupported("these brokers run no plans: use kafka-reassign-partitions") from None


def plan_if_known(client: ClusterClient) -> PlanDescription | None:
    """Return the plan that runs, or the last one; None if there was none, or no controller of kbroker says so now."""
    request = DescribeReassignmentPlanRequest(include_moves=True)
    response = request_if_known(client, request, DescribeReassignmentPlanResponse)
    return None if response is None or response.plan is None else _described_plan(response.plan)


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
