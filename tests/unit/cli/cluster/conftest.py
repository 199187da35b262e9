"""A cluster of three brokers in three racks, and a controller that runs plans."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from kbroker.cli.cluster import brokers, run_plan
from kbroker.cli.common.client import CLIENT_ERRORS, client_error_text
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.partitions import ReplicaChanges
from kbroker.cli.common.values import parse_host_port
from kbroker.cli.configs.requests import Resource
from kbroker.client.admin import ConfigChanges
from kbroker.client.connection import BrokerUnreachable
from kbroker.client.retries import ignore_wait
from kbroker.metadata.reassignments.placement.cluster_layout import (
    ClusterBroker,
    ClusterLayout,
    PlacedPartition,
    cluster_layout,
)
from protocol.messages.k60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from protocol.messages.k10000_reassignment_plans import (
    CancelReassignmentPlanRequest,
    CancelReassignmentPlanResponse,
    CreateReassignmentPlanRequest,
    CreateReassignmentPlanResponse,
    DescribedMove,
    DescribedPlan,
    DescribeReassignmentPlanResponse,
)
from protocol.schema.message import Message

MIB = 1 << 20


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

    def send(self, request: Message) -> Message:
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


class FakeCluster:
    """What the commands ask brokers for. `questions`: those that were asked."""

    def __init__(self) -> None:
        self.controller = FakeController()
        self.on_wait = ignore_wait
        self.brokers = [ClusterBroker(1, "a"), ClusterBroker(2, "b"), ClusterBroker(3, "c"), ClusterBroker(4, "c")]
        self.partitions = [
            PlacedPartition("orders", 0, (1, 2), 1, 6 * MIB),
            PlacedPartition("orders", 1, (3, 1), 3, 4 * MIB),
            PlacedPartition("users", 0, (3, 2), 3),
        ]
        # The partitions that move without a plan, and the errors if that is cancelled.
        self.moving: dict[tuple[str, int], ReplicaChanges] = {}
        self.errors: list[str] = []
        self.questions: list[str] = []
        self.write_rates: dict[tuple[str, int], float] = {}
        self.cordoned: set[str] = set()
        # Brokers that do not respond, and those of them that other brokers know to be away.
        self.silent, self.away = {"2"}, {"2"}
        self.no_response: Exception = BrokerUnreachable("no response")

    @contextmanager
    def admin_client(self, bootstrap: str) -> Iterator[Any]:
        parse_host_port(bootstrap, "--bootstrap")
        try:
            yield self
        except CLIENT_ERRORS as error:
            raise CliError(client_error_text(error)) from error

    def version(self, api_key: int) -> int:
        return 2

    def request(self, request: Message, response_type: type[Message]) -> Message:
        if isinstance(request, DescribeClusterRequest):
            rows = [DescribeClusterBroker(broker_id=broker.id, is_fenced=broker.is_away) for broker in self.brokers]
            return DescribeClusterResponse(brokers=rows)
        return self.controller.send(request)

    def layout(self, client: Any) -> ClusterLayout:
        return cluster_layout(self.brokers, self.partitions)

    def alter_configs(self, client: Any, resource: Resource, changes: ConfigChanges, *, at_any: bool = False) -> None:
        ((operation, value),) = [changes["cordoned.log.dirs"]]
        assert (operation, value) in (("SET", "*"), ("DELETE", None))
        if resource.name in self.silent and not at_any:
            raise self.no_response
        if at_any and resource.name not in self.away:
            raise CliError(f"Unexpected broker id, expected 1, but received {resource.name}")
        (self.cordoned.add if operation == "SET" else self.cordoned.discard)(resource.name)

    def cancel_reassignments(self, client: Any, partitions: Sequence[tuple[str, int]]) -> list[str]:
        assert list(partitions) == sorted(self.moving)
        self.moving = {}
        return self.errors

    def confirm(self, question: str, yes: bool) -> None:
        if not yes:
            self.questions.append(question)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster()
    monkeypatch.setattr("kbroker.client.retries.RETRY_EVERY_S", 0.0)
    monkeypatch.setattr(run_plan, "EVERY_S", 0.0)
    monkeypatch.setattr(run_plan, "AWAY_EVERY_S", 0.0)
    monkeypatch.setattr(run_plan, "describe_log_dirs", lambda *_: {})
    monkeypatch.setattr(run_plan, "measure_write_rates", lambda *_: cluster.write_rates)
    monkeypatch.setattr(run_plan, "alter_configs", cluster.alter_configs)
    monkeypatch.setattr(brokers, "reassignments_if_known", lambda _: cluster.moving)
    monkeypatch.setattr(brokers, "cancel_reassignments", cluster.cancel_reassignments)
    for module in (brokers, run_plan):
        monkeypatch.setattr(module, "admin_client", cluster.admin_client)
        monkeypatch.setattr(module, "read_layout", cluster.layout)
        monkeypatch.setattr(module, "confirm", cluster.confirm)
        monkeypatch.setattr(module, "now_ms", lambda: cluster.controller.now_ms)
    return cluster
