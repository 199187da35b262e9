"""`kbroker brokers plan`: shows, watches and cancels the plan that runs, or shows the last one."""

import json
import os
import signal
from contextlib import suppress
from typing import Any

import pytest

from kbroker.cli import main
from kbroker.cli.cluster import run_plan
from kbroker.cli.cluster.plan_report import copied_text, limits_text, state_text
from kbroker.cli.cluster.plan_requests import CopiedBytes, MoveDescription, PlanDescription, copied_bytes, copy_rate
from kbroker.cli.common.partitions import ReplicaChanges
from kbroker.client.admin import LogDirs
from kbroker.client.connection import BrokerUnreachable
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterBroker
from protocol.errors import ErrorCode
from protocol.messages.k10000_reassignment_plans import CancelReassignmentPlanResponse
from protocol.schema.message import Message
from tests.unit.cli.cluster.conftest import MIB, FakeCluster

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def running(cluster: FakeCluster, capsys: Capture) -> FakeCluster:
    assert main(["brokers", "drain", "3", "--detach", "--throttle", "1MiB"]) == 0
    capsys.readouterr()
    return cluster


def test_there_was_no_plan(cluster: FakeCluster, capsys: Capture) -> None:
    assert main(["brokers", "plan"]) == 0
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "no plan has run yet\n")
    assert main(["brokers", "plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) is None
    assert main(["brokers", "plan", "--cancel"]) == 1
    assert capsys.readouterr().err == "kbroker: no plan is running\n"


def test_a_plan_that_runs(running: FakeCluster, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    running.partitions[2] = running.partitions[2]._replace(size_bytes=6 * MIB)
    asked: list[Any] = []

    def log_dirs(client: Any, brokers: list[int], partitions: list[tuple[str, int]]) -> dict[int, LogDirs]:
        asked.append((brokers, partitions))
        return {4: LogDirs({("users", 0): MIB}, None)}

    monkeypatch.setattr(run_plan, "describe_log_dirs", log_dirs)
    assert main(["brokers", "plan"]) == 0
    assert asked == [([4], [("users", 0)])]
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC  PARTITION  REPLICAS  TARGET  STATE",
        "users          0  3,2       2,4     running",
        "plan 1 (drain 3) is running: 1 of 2 partitions moved, 1 moving",
        # 5 MiB of 10 MiB in 2 s.
        "copied: 5.0 MiB of 10.0 MiB, 2.5 MiB/s; about 2s left, not counting new records",
        "limits: 10 partitions at once, throttle 1.0 MiB/s",
    ]


def test_a_plan_that_waits_for_a_broker(running: FakeCluster, capsys: Capture) -> None:
    running.brokers[3] = ClusterBroker(4, "c", accepts_replicas=False, is_away=True)
    assert main(["brokers", "plan"]) == 0
    assert capsys.readouterr().err == "the plan waits for broker 4, which is away\n"


def test_a_plan_does_not_wait_for_a_broker_that_is_cordoned(running: FakeCluster, capsys: Capture) -> None:
    running.brokers[3] = ClusterBroker(4, "c", accepts_replicas=False)
    assert main(["brokers", "plan", "--watch"]) == 0
    assert main(["brokers", "plan"]) == 0
    assert capsys.readouterr().err == ""


def test_a_command_that_waits_says_once_for_which_broker(running: FakeCluster, capsys: Capture) -> None:
    # A plan that is cancelled waits for the brokers of before.
    running.brokers[2] = ClusterBroker(3, "c", accepts_replicas=False, is_away=True)
    assert main(["brokers", "plan", "--cancel", "--yes"]) == 0
    assert capsys.readouterr().err == "the plan waits for broker 3, which is away\n"


def test_watching_ends_with_the_plan(running: FakeCluster, capsys: Capture) -> None:
    assert main(["brokers", "plan", "--watch"]) == 0
    assert capsys.readouterr().out == "plan 1 (drain 3) is complete after 3s: 2 of 2 partitions moved\n"
    assert main(["brokers", "plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "complete"


def test_an_interrupt_leaves_the_plan_running(running: FakeCluster, capsys: Capture) -> None:
    def interrupt() -> Message | None:
        raise KeyboardInterrupt

    running.controller.failures = [lambda: None, interrupt]
    assert main(["brokers", "plan", "--watch"]) == 130
    assert capsys.readouterr().err == (
        "plan 1 (drain 3) continues; to watch it: kbroker brokers plan --watch; "
        "to cancel it: kbroker brokers plan --cancel\n"
    )
    assert running.controller.plan is not None
    assert running.controller.plan.state == "running"


def test_an_interrupt_in_a_callback_is_not_lost(
    running: FakeCluster, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> dict[int, LogDirs]:
        with suppress(BaseException):
            os.kill(os.getpid(), signal.SIGINT)
        return {}

    monkeypatch.setattr(run_plan, "describe_log_dirs", interrupt)
    assert main(["brokers", "plan", "--watch"]) == 130
    assert capsys.readouterr().err.startswith("plan 1 (drain 3) continues; ")


def test_a_cancelled_plan_moves_back(running: FakeCluster, capsys: Capture) -> None:
    assert main(["brokers", "plan", "--cancel"]) == 0
    assert running.questions[-1] == "Cancel plan 1 (drain 3)?"
    assert capsys.readouterr().out == "plan 1 (drain 3) is cancelled after 5s: 2 of 2 partitions moved back\n"
    assert main(["brokers", "plan", "--cancel"]) == 1


def test_moves_without_a_plan_are_shown_and_cancelled(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.moving = {("orders", 1): ReplicaChanges([4], [1]), ("orders", 0): ReplicaChanges([4], [])}
    assert main(["brokers", "plan"]) == 0
    assert capsys.readouterr().err.startswith(
        "2 partitions moving without a plan; to see them: kbroker topics describe"
    )
    assert main(["brokers", "plan", "--cancel"]) == 0
    assert cluster.questions == ["Cancel the moves of 2 partitions, which no plan has begun?"]
    assert capsys.readouterr().out == "2 partitions: moves cancelled\n"
    assert main(["brokers", "plan", "--cancel"]) == 1
    assert capsys.readouterr().err == "kbroker: no plan is running\n"


def test_moves_without_a_plan_that_cannot_be_cancelled(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.moving, cluster.errors = {("orders", 1): ReplicaChanges([4], [1])}, ["orders-1: No"]
    assert main(["brokers", "plan", "--cancel", "--yes"]) == 1
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "kbroker: orders-1: No\n")


def test_a_plan_is_cancelled_and_not_its_moves(running: FakeCluster, capsys: Capture) -> None:
    running.moving = {("orders", 1): ReplicaChanges([4], [1])}
    assert main(["brokers", "plan", "--cancel"]) == 0
    assert "plan 1 (drain 3) is cancelled" in capsys.readouterr().out
    assert running.moving


def test_a_cancellation_whose_response_is_lost(running: FakeCluster, capsys: Capture) -> None:
    refusal = CancelReassignmentPlanResponse(
        error_code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, error_message="Plan 1 is not running."
    )

    def cancel_and_lose_response() -> Message | None:
        assert running.controller.plan is not None
        running.controller.plan.state, running.controller.plan.ended_ms = "cancelled", running.controller.now_ms
        raise BrokerUnreachable("no response")

    running.controller.failures = [lambda: None, cancel_and_lose_response, lambda: refusal]
    assert main(["brokers", "plan", "--cancel"]) == 0
    assert "plan 1 (drain 3) is cancelled" in capsys.readouterr().out


def test_a_plan_that_ends_before_it_is_cancelled(running: FakeCluster, capsys: Capture) -> None:
    refusal = CancelReassignmentPlanResponse(
        error_code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, error_message="Plan 1 is not running."
    )
    running.controller.failures = [lambda: None, lambda: refusal]
    assert main(["brokers", "plan", "--cancel"]) == 1
    assert capsys.readouterr().err == "kbroker: Plan 1 is not running (NO_REASSIGNMENT_IN_PROGRESS)\n"


def test_a_command_whose_plan_was_cancelled_fails(cluster: FakeCluster, capsys: Capture) -> None:
    def cancel() -> Message | None:
        assert cluster.controller.plan is not None
        cluster.controller.plan.state = "cancelling"
        return None

    cluster.controller.failures = [lambda: None, lambda: None, cancel]
    assert main(["brokers", "drain", "3"]) == 1
    assert main(["brokers", "plan", "--watch"]) == 1
    assert main(["brokers", "plan"]) == 0
    assert "plan 1 (drain 3) is cancelled" in capsys.readouterr().out


def test_skipped_partitions_are_errors(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.controller.skipped = {("orders", 1): "the topic was deleted", ("users", 0): "odd"}
    assert main(["brokers", "drain", "3"]) == 1
    output = capsys.readouterr()
    assert output.out.endswith("plan 1 (drain 3) is complete after 3s: 0 of 2 partitions moved, 2 skipped\n")
    assert output.err.splitlines()[1:] == [
        "kbroker: orders-1 was skipped: the topic was deleted",
        "kbroker: users-0 was skipped: odd",
    ]


def test_another_plan_began_meanwhile(running: FakeCluster, capsys: Capture) -> None:
    def replace_plan() -> Message | None:
        running.controller.create(running.controller.created[0])
        return None

    running.controller.failures = [lambda: None, replace_plan]
    assert main(["brokers", "plan", "--watch"]) == 1
    assert capsys.readouterr().err == "kbroker: plan 1 (drain 3) has ended, and another plan was begun since\n"


SIZES = {("t", 0): 8 * MIB, ("t", 1): 4 * MIB, ("t", 2): 2 * MIB, ("t", 3): MIB}
MOVES = (
    MoveDescription("t", 0, (1, 2), (3, 4), "done"),
    MoveDescription("t", 1, (1, 2), (2, 3), "running"),
    MoveDescription("t", 2, (1,), (3, 1), "pending"),
    MoveDescription("t", 3, (1,), (3,), "skipped", "deleted"),
)
PLAN = PlanDescription(7, "balance", "running", None, 5, 10_000, None, MOVES)
COMPLETE = PLAN._replace(state="complete", ended_ms=14_000)


def test_done_moves_and_what_targets_have_are_copied() -> None:
    assert copied_bytes(PLAN, SIZES, {}) == CopiedBytes(16 * MIB, 22 * MIB)
    # Records that arrive while a partition moves are not counted.
    for size_bytes, counted in ((MIB, MIB), (9 * MIB, 4 * MIB)):
        assert copied_bytes(PLAN, SIZES, {3: {("t", 1): size_bytes}}).copied == 16 * MIB + counted
    assert copied_bytes(PLAN._replace(state="cancelling"), SIZES, {}) == CopiedBytes(0, 0)


def test_the_rate_is_that_of_the_busiest_broker() -> None:
    # Broker 1 has sent partition 0 twice, in 4 s.
    assert copy_rate(COMPLETE, SIZES) == 4 * MIB


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        COMPLETE._replace(state="cancelled"),
        COMPLETE._replace(throttle_bytes_per_second=MIB),
        COMPLETE._replace(ended_ms=11_000),
        COMPLETE._replace(moves=MOVES[1:]),
    ],
)
def test_plans_that_say_nothing_about_the_rate(plan: PlanDescription) -> None:
    assert copy_rate(plan, SIZES) is None


def test_texts() -> None:
    assert state_text(PLAN) == "plan 7 (balance) is running: 1 of 4 partitions moved, 1 moving, 1 waiting, 1 skipped"
    cancelled = PLAN._replace(state="cancelled", ended_ms=11_500)
    assert state_text(cancelled).startswith("plan 7 (balance) is cancelled after 1s500ms: 1 of 4 partitions moved back")
    half = CopiedBytes(2 * MIB, 4 * MIB)
    assert (
        copied_text(PLAN, half, 11_000)
        == "copied: 2.0 MiB of 4.0 MiB, 2.0 MiB/s; about 1s left, not counting new records"
    )
    # The clock of the controller may be ahead of ours.
    assert copied_text(PLAN, half, 9_000) == "copied: 2.0 MiB of 4.0 MiB"
    assert copied_text(PLAN, CopiedBytes(0, 0), 11_000) == "copied: nothing is copied"
    assert copied_text(PLAN._replace(state="cancelling"), half, 11_000) == "copied: what has moved is copied back"
    assert limits_text(PLAN) == "limits: 5 partitions at once, no throttle"
