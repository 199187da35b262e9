"""The reassignments in progress, also while the controller is being replaced."""

from collections.abc import Callable
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError, NodeNotReadyError
from kafka.protocol.admin import AlterPartitionReassignmentsResponse, ListPartitionReassignmentsResponse

from kbroker.cli.common.errors import CliError
from kbroker.cli.common.partitions import reassignments as module
from kbroker.cli.common.partitions.reassignments import (
    ReplicaChanges,
    cancel_reassignments,
    reassignments,
    reassignments_if_known,
)
from protocol.errors import ErrorCode

Topic = ListPartitionReassignmentsResponse.OngoingTopicReassignment
Row = Topic.OngoingPartitionReassignment
MOVING = ListPartitionReassignmentsResponse(
    error_code=0,
    topics=[
        Topic(
            name="t", partitions=[Row(partition_index=1, replicas=[4, 1], adding_replicas=[4], removing_replicas=[1])]
        )
    ],
)


def refused(code: ErrorCode) -> Callable[[], Any]:
    return lambda: ListPartitionReassignmentsResponse(error_code=code, error_message="No.", topics=[])


def lost(error: Exception) -> Callable[[], Any]:
    def fail() -> Any:
        raise error

    return fail


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """What happens instead of a response, the first one first."""
    pending: list[Callable[[], Any]] = []

    def send_request(client: Any, request: Any, timeout_ms: int | None) -> Any:
        assert request.topics is None
        return pending.pop(0)() if pending else MOVING

    monkeypatch.setattr(module, "send_request", send_request)
    monkeypatch.setattr(module, "RETRY_EVERY_S", 0.0)
    return pending


def test_plans_wait_for_another_controller(failures: list[Callable[[], Any]]) -> None:
    failures += [
        lost(KafkaConnectionError("refused")),
        lost(NodeNotReadyError(2)),
        refused(ErrorCode.NOT_CONTROLLER),
        refused(ErrorCode.REQUEST_TIMED_OUT),
    ]
    assert reassignments(None) == {("t", 1): ReplicaChanges([4], [1])}
    assert failures == []


def test_waiting_has_an_end(failures: list[Callable[[], Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_FOR_S", -1.0)
    failures += [refused(ErrorCode.NOT_CONTROLLER), lost(NodeNotReadyError(2))]
    with pytest.raises(CliError, match=r"No \(NOT_CONTROLLER\)"):
        reassignments(None)
    with pytest.raises(NodeNotReadyError):
        reassignments(None)


def test_other_errors_are_not_repeated(failures: list[Callable[[], Any]]) -> None:
    failures.append(refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    with pytest.raises(CliError, match="CLUSTER_AUTHORIZATION_FAILED"):
        reassignments(None)


@pytest.mark.parametrize("failure", [refused(ErrorCode.REQUEST_TIMED_OUT), lost(NodeNotReadyError(2))])
def test_what_only_shows_them_does_not_wait(
    failure: Callable[[], Any], failures: list[Callable[[], Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reassignments_if_known(None) == {("t", 1): ReplicaChanges([4], [1])}
    assert capsys.readouterr().err == ""
    failures.append(failure)
    assert reassignments_if_known(None) == {}
    assert "no controller responds" in capsys.readouterr().err


def test_cancelling_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    result = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
    row = result.ReassignablePartitionResponse
    codes = {("t", 0): 0, ("t", 1): ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ("u", 0): ErrorCode.NOT_CONTROLLER}

    def send_request(client: Any, request: Any) -> Any:
        asked = [
            (topic.name, row.partition_index, row.replicas) for topic in request.topics for row in topic.partitions
        ]
        assert asked == [("t", 0, None), ("t", 1, None), ("u", 0, None)]
        assert [topic.name for topic in request.topics] == ["t", "u"]
        return AlterPartitionReassignmentsResponse(
            error_code=0,
            responses=[
                result(name=topic, partitions=[row(partition_index=index, error_code=code, error_message="No.")])
                for (topic, index), code in codes.items()
            ],
        )

    monkeypatch.setattr(module, "send_request", send_request)
    assert cancel_reassignments(None, [("u", 0), ("t", 1), ("t", 0)]) == ["u-0: No (NOT_CONTROLLER)"]
