"""What commands show of partitions: conditions, and reassignments, also while the controller is being replaced."""

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.cli.common import partitions as module
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.partitions import (
    CONDITIONS,
    PartitionHealth,
    ReplicaChanges,
    cancel_reassignments,
    reassignments,
    reassignments_if_known,
)
from kbroker.client.connection import BrokerUnreachable
from kbroker.client.retries import ignore_wait
from protocol.errors import ErrorCode
from protocol.messages.k45_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)


@pytest.mark.parametrize(
    ("partition", "conditions"),
    [
        (PartitionHealth(1, [1, 2, 3], [1, 2, 3], 2), set()),
        (PartitionHealth(2, [1, 2, 3], [1, 2, 3], 2), {"out-of-preference"}),
        (PartitionHealth(1, [1, 2, 3], [1, 2], 1), {"under-replicated"}),
        (PartitionHealth(1, [1, 2, 3], [1, 2], 1, [3]), set()),
        (PartitionHealth(1, [1, 2, 3], [1, 2], 2), {"under-replicated", "at-min-isr"}),
        (PartitionHealth(1, [1, 2, 3], [1], 2), {"under-replicated", "under-min-isr"}),
        (PartitionHealth(-1, [1, 2, 3], [1], 2), {"under-replicated", "under-min-isr", "offline"}),
        # A topic with one replica accepts acks=all, whatever min.insync.replicas is.
        (PartitionHealth(1, [1], [1], 2), set()),
    ],
)
def test_conditions(partition: PartitionHealth, conditions: set[str]) -> None:
    assert {name for name, is_met in CONDITIONS.items() if is_met(partition)} == conditions


MOVING = ListPartitionReassignmentsResponse(
    topics=[
        OngoingTopicReassignment(
            name="t",
            partitions=[
                OngoingPartitionReassignment(
                    partition_index=1, replicas=[4, 1], adding_replicas=[4], removing_replicas=[1]
                )
            ],
        )
    ]
)


class FakeClient:
    """`failures`: what happens instead of a response, the first one first."""

    def __init__(self) -> None:
        self.failures: list[Callable[[], Any]] = []
        self.on_wait = ignore_wait

    def request(self, request: Any, response_type: type, timeout_s: float | None = None) -> Any:
        assert request.topics is None
        return self.failures.pop(0)() if self.failures else MOVING


def refused(code: ErrorCode) -> Callable[[], Any]:
    return lambda: ListPartitionReassignmentsResponse(error_code=code, error_message="No.")


def lost(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    monkeypatch.setattr("kbroker.client.retries.RETRY_EVERY_S", 0.0)
    return FakeClient()


def test_plans_wait_for_another_controller(client: FakeClient) -> None:
    client.failures += [
        lost(BrokerUnreachable("refused")),
        lost(BrokerUnreachable("timed out")),
        refused(ErrorCode.NOT_CONTROLLER),
        refused(ErrorCode.REQUEST_TIMED_OUT),
    ]
    assert reassignments(client) == {("t", 1): ReplicaChanges([4], [1])}
    assert client.failures == []


def test_waiting_has_an_end(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_FOR_S", -1.0)
    client.failures += [refused(ErrorCode.NOT_CONTROLLER), lost(BrokerUnreachable("timed out"))]
    with pytest.raises(CliError, match=r"No \(NOT_CONTROLLER\)"):
        reassignments(client)
    with pytest.raises(BrokerUnreachable):
        reassignments(client)


def test_other_errors_are_not_repeated(client: FakeClient) -> None:
    client.failures.append(refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    with pytest.raises(CliError, match="CLUSTER_AUTHORIZATION_FAILED"):
        reassignments(client)


@pytest.mark.parametrize("failure", [refused(ErrorCode.REQUEST_TIMED_OUT), lost(BrokerUnreachable("timed out"))])
def test_what_only_shows_them_does_not_wait(
    failure: Callable[[], Any], client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reassignments_if_known(client) == {("t", 1): ReplicaChanges([4], [1])}
    assert capsys.readouterr().err == ""
    client.failures.append(failure)
    assert reassignments_if_known(client) == {}
    assert "no controller responds" in capsys.readouterr().err


def test_cancelling_moves() -> None:
    codes = {("t", 0): 0, ("t", 1): ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ("u", 0): ErrorCode.NOT_CONTROLLER}

    class Client:
        def request(self, request: AlterPartitionReassignmentsRequest, response_type: type) -> Any:
            asked = [
                (topic.name, row.partition_index, row.replicas) for topic in request.topics for row in topic.partitions
            ]
            assert asked == [("t", 0, None), ("t", 1, None), ("u", 0, None)]
            assert [topic.name for topic in request.topics] == ["t", "u"]
            rows = [
                (topic, ReassignablePartitionResponse(partition_index=index, error_code=code, error_message="No."))
                for (topic, index), code in codes.items()
            ]
            return AlterPartitionReassignmentsResponse(
                responses=[ReassignableTopicResponse(name=topic, partitions=[row]) for topic, row in rows]
            )

    assert cancel_reassignments(Client(), [("u", 0), ("t", 1), ("t", 0)]) == ["u-0: No (NOT_CONTROLLER)"]
