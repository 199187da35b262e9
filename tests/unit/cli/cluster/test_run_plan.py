"""Commands that make a plan: what they show and send, what they refuse, drains, and plans from files."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import typer

from kbroker.cli import main
from kbroker.cli.cluster import plan_requests, run_plan
from kbroker.cli.cluster.run_plan import drain_description, drained_brokers
from kbroker.client.cluster import UnknownBroker
from kbroker.client.connection import BrokerUnreachable
from kbroker.metadata.reassignments import plan_decisions
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterBroker, PlacedPartition
from protocol.errors import ErrorCode
from protocol.messages.k10000_reassignment_plans import CreateReassignmentPlanResponse, DescribeReassignmentPlanResponse
from protocol.schema.message import Message
from tests.unit.cli.cluster.conftest import MIB, FakeCluster

Capture = pytest.CaptureFixture[str]
HOW_TO = "to watch it: kbroker brokers plan --watch; to cancel it: kbroker brokers plan --cancel"


def test_a_dry_run_shows_the_plan_and_changes_nothing(cluster: FakeCluster, capsys: Capture) -> None:
    assert main(["brokers", "drain", "3", "--dry-run"]) == 0
    output = capsys.readouterr()
    assert output.out.splitlines() == [
        "TOPIC   PARTITION  REPLICAS  TARGET  COPIED",
        "orders          1  3,1       1,4     4.0 MiB",
        "users           0  3,2       2,4     0 bytes",
        "BROKER  RACK  REPLICAS  LEADERS  DISK_USE            RECEIVES",
        "     1  a     2         1 -> 2   10.0 MiB            -",
        "     2  b     2         0 -> 1   6.0 MiB             -",
        "     3  c     2 -> 0    2 -> 0   4.0 MiB -> 0 bytes  -",
        "     4  c     0 -> 2    0        0 bytes -> 4.0 MiB  4.0 MiB",
        "2 partitions: 4.0 MiB to copy",
        "racks: all partitions are spread over the racks as well as possible",
        "time: not estimated, since the rate of copies is not known",
    ]
    assert output.err == ""
    assert cluster.controller.created == []


def test_a_plan_runs_to_its_end(cluster: FakeCluster, capsys: Capture) -> None:
    assert main(["brokers", "drain", "3", "3", "--throttle", "2MiB/s", "--concurrent", "7"]) == 0
    (created,) = cluster.controller.created
    assert (created.description, created.throttle_bytes_per_second, created.max_concurrent_moves) == (
        "drain 3", 2 * MIB, 7
    )  # fmt: skip
    assert [
        (move.topic_name, move.partition_index, move.original_replicas, move.target_replicas) for move in created.moves
    ] == [("orders", 1, [3, 1], [1, 4]), ("users", 0, [3, 2], [2, 4])]
    assert cluster.questions == ["Move 2 partitions, with 4.0 MiB to copy?"]
    output = capsys.readouterr()
    assert output.out.splitlines()[-2:] == [
        "time: about 2s if each broker copies 2.0 MiB/s",
        "plan 1 (drain 3) is complete after 3s: 2 of 2 partitions moved",
    ]
    assert output.err == f"plan 1 (drain 3) has begun; {HOW_TO}\n"


def test_nothing_is_sent_without_confirmation(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(question: str, yes: bool) -> None:
        raise typer.Abort

    monkeypatch.setattr(run_plan, "confirm", refuse)
    assert main(["brokers", "balance"]) == 130
    assert cluster.controller.created == []


def test_nothing_to_move(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.partitions = []
    assert main(["brokers", "balance"]) == 0
    assert "nothing to move" in capsys.readouterr().out.splitlines()
    assert (cluster.controller.created, cluster.questions) == ([], [])


def test_detached_it_returns_when_the_plan_has_begun(cluster: FakeCluster, capsys: Capture) -> None:
    assert main(["brokers", "replace", "3", "4", "--detach", "--yes"]) == 0
    assert cluster.controller.plan is not None
    assert (cluster.controller.plan.state, cluster.controller.plan.description) == ("running", "replace 3 by 4")
    assert cluster.questions == []
    assert "is complete" not in capsys.readouterr().out


def test_a_plan_that_is_too_large_is_run_in_parts(
    cluster: FakeCluster, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_plan.MAX_MOVES == plan_decisions.MAX_MOVES
    monkeypatch.setattr(run_plan, "MAX_MOVES", 1)
    assert main(["brokers", "drain", "3"]) == 0
    assert [move.topic_name for move in cluster.controller.created[0].moves] == ["orders"]
    output = capsys.readouterr()
    assert "1 of 1 partition moved" in output.out
    assert output.err.startswith("these are the first 1 of 2 moves: run the command again for the others\n")


def test_json_has_the_plan_and_its_run(cluster: FakeCluster, capsys: Capture) -> None:
    assert main(["brokers", "drain", "3", "--json", "--dry-run"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (len(shown["moves"]), shown["copied_bytes"], shown["run"]) == (2, 4 * MIB, None)
    assert main(["brokers", "drain", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == shown | {"run": document["run"]}
    run = document["run"]
    assert (run["plan"], run["state"], run["done"], run["running"]) == (1, "complete", 2, 0)
    assert (run["copied_bytes"], run["total_bytes"], run["ended_ms"] - run["created_ms"]) == (4 * MIB, 4 * MIB, 3000)
    assert run["moves"][1] == {
        "topic": "users", "partition": 0, "original": [3, 2], "target": [2, 4], "state": "done", "reason": None
    }  # fmt: skip


def test_the_replication_factor_of_topics(cluster: FakeCluster, capsys: Capture) -> None:
    assert main(["topics", "alter", "orders", "users", "orders", "--replication-factor", "3"]) == 0
    (created,) = cluster.controller.created
    assert created.description == "replication factor 3 of 2 topics"
    assert [len(move.target_replicas) for move in created.moves] == [3, 3, 3]
    assert "3 of 3 partitions moved" in capsys.readouterr().out


def test_options_of_plans_need_another_replication_factor(cluster: FakeCluster, capsys: Capture) -> None:
    options = ["--dry-run", "--throttle", "1MiB", "--concurrent", "10", "--detach", "--yes", "--json"]
    assert main(["topics", "alter", "orders", "--partitions", "4", *options]) == 2
    assert json.loads(capsys.readouterr().err)["error"] == {
        "message": "only with --replication-factor: --dry-run, --throttle, --concurrent, --detach, --yes, --json"
    }


def test_the_rate_of_the_last_plan_estimates_the_next_one(cluster: FakeCluster, capsys: Capture) -> None:
    assert main(["brokers", "drain", "3"]) == 0
    capsys.readouterr()
    assert main(["brokers", "drain", "3", "--dry-run"]) == 0
    assert "time: about 3s if each broker copies 1.3 MiB/s\n" in capsys.readouterr().out


def test_new_records_delay_the_end_or_prevent_it(cluster: FakeCluster, capsys: Capture) -> None:
    cluster.write_rates = {("orders", 1): MIB, ("users", 0): 0.5 * MIB}
    command = ["brokers", "drain", "3", "--dry-run", "--throttle"]
    assert main([*command, "2MiB/s"]) == 0
    shown = capsys.readouterr()
    assert shown.out.endswith("time: about 8s if each broker copies 2.0 MiB/s, 1.5 MiB/s of which are new records\n")
    assert shown.err == ""
    assert main([*command, "1.2MiB/s"]) == 0
    shown = capsys.readouterr()
    assert shown.out.endswith(
        "time: never if each broker copies 1.2 MiB/s, since broker 3 copies 1.5 MiB/s of new records\n"
    )
    assert shown.err == f"{run_plan.ENDLESS}\n"
    # One partition after the other is possible.
    assert main([*command, "1.2MiB/s", "--concurrent", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (round(document["estimated_seconds"]), document["new_bytes_per_second"]) == (20, MIB)
    assert not document["is_endless"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["brokers", "drain", "9"], "there is no broker 9"),
        (["brokers", "replace", "1", "9"], "there is no broker 9"),
        (["brokers", "replace", "1", "1"], "broker 1 cannot replace itself"),
        (["brokers", "drain", "1", "2", "3"], "orders-0 has 2 replica(s), and only 1 broker(s) would accept replicas"),
        (["brokers", "drain", "1", "2"], "would be in fewer racks"),
        (["brokers", "replace", "2", "4"], "broker 4 already has replicas of users-0"),
        (["topics", "alter", "clicks", "--replication-factor", "2"], "topic clicks does not exist"),
        (["topics", "alter", "orders", "--replication-factor", "5"], "only 4 broker(s) accept replicas"),
    ],
)
def test_a_refusal_is_one_line(cluster: FakeCluster, capsys: Capture, command: list[str], reason: str) -> None:
    cluster.partitions[2] = cluster.partitions[2]._replace(replicas=(4, 2))
    assert main(command) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert reason in output.err
    assert output.err.count("\n") == 1
    assert cluster.controller.created == []


def test_fewer_racks_are_allowed_on_request(cluster: FakeCluster) -> None:
    cluster.brokers = [ClusterBroker(1, "b"), ClusterBroker(2, "b"), ClusterBroker(3, "c"), ClusterBroker(4, "b")]
    assert main(["brokers", "drain", "3"]) == 1
    assert main(["brokers", "drain", "3", "--allow-fewer-racks"]) == 0
    assert [request.allow_fewer_racks for request in cluster.controller.created] == [True]


def test_one_plan_at_a_time(cluster: FakeCluster, capsys: Capture) -> None:
    assert main(["brokers", "drain", "3", "--detach"]) == 0
    capsys.readouterr()
    assert main(["brokers", "balance"]) == 1
    assert capsys.readouterr().err == f"kbroker: plan 1 (drain 3) is running; {HOW_TO}\n"
    # It can be looked at.
    assert main(["brokers", "drain", "4", "--dry-run"]) == 0


def test_the_controller_refuses(cluster: FakeCluster, capsys: Capture) -> None:
    refusal = CreateReassignmentPlanResponse(
        error_code=ErrorCode.REASSIGNMENT_IN_PROGRESS, error_message="The partition orders-1 is being reassigned."
    )
    cluster.controller.failures = [lambda: None, lambda: refusal]
    assert main(["brokers", "drain", "3"]) == 1
    assert capsys.readouterr().err == (
        "kbroker: The partition orders-1 is being reassigned (REASSIGNMENT_IN_PROGRESS)\n"
    )


def test_brokers_that_run_no_plans(cluster: FakeCluster, capsys: Capture) -> None:
    """Apache Kafka disconnects. A plan can be shown nevertheless."""

    def disconnect() -> Message | None:
        raise BrokerUnreachable("the broker closed the connection")

    cluster.controller.failures = [disconnect] * plan_requests.REFUSALS
    assert main(["brokers", "drain", "3"]) == 1
    assert capsys.readouterr().err == "kbroker: these brokers run no plans: use kafka-reassign-partitions\n"
    cluster.controller.failures = [disconnect] * plan_requests.REFUSALS
    assert main(["brokers", "drain", "3", "--dry-run"]) == 0
    assert "orders" in capsys.readouterr().out


def test_a_plan_whose_response_is_lost_has_begun(cluster: FakeCluster, capsys: Capture) -> None:
    controller = cluster.controller

    def lose_response() -> Message | None:
        raise BrokerUnreachable("timed out")

    assert main(["brokers", "drain", "3", "--detach"]) == 0
    (request,) = controller.created
    assert main(["brokers", "plan", "--watch"]) == 0

    def create_and_lose_response() -> Message | None:
        controller.create(request)
        return lose_response()

    controller.failures = [lambda: None, create_and_lose_response]
    assert main(["brokers", "drain", "3"]) == 0
    capsys.readouterr()
    controller.failures = [lambda: None, lose_response]
    assert main(["brokers", "drain", "3"]) == 1
    assert capsys.readouterr().err == "kbroker: the plan was not begun: timed out\n"


def test_without_a_controller_a_command_gives_up_soon_unless_it_waits_for_its_plan(
    cluster: FakeCluster, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count()
    monkeypatch.setattr("kbroker.client.retries.monotonic", lambda: next(seconds))
    absent = DescribeReassignmentPlanResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message="No ZooKeeper.")
    cluster.controller.failures = [lambda: absent] * 20
    assert main(["brokers", "drain", "3"]) == 1
    assert capsys.readouterr().err == "kbroker: No ZooKeeper (REQUEST_TIMED_OUT)\n"
    assert len(cluster.controller.failures) > 10
    # The plan has begun.
    cluster.controller.failures = [lambda: None, lambda: None, *[lambda: absent] * 20]
    assert main(["brokers", "drain", "3"]) == 0


def test_no_controller_for_a_while(cluster: FakeCluster) -> None:
    def disconnect() -> Message | None:
        raise BrokerUnreachable("the broker closed the connection")

    absent = DescribeReassignmentPlanResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)
    cluster.controller.failures = [lambda: absent, lambda: None, lambda: None, *[disconnect] * 5, lambda: absent]
    assert main(["brokers", "drain", "3"]) == 0


def test_the_description_names_the_drained_brokers() -> None:
    assert drained_brokers(drain_description([3, 12])) == [3, 12]
    assert drained_brokers("balance") == []


def test_a_drained_broker_is_cordoned_until_that_is_undone(cluster: FakeCluster, capsys: Capture) -> None:
    assert main(["brokers", "drain", "3", "--dry-run"]) == 0
    assert cluster.cordoned == set()
    assert main(["brokers", "drain", "3"]) == 0
    assert cluster.cordoned == {"3"}
    capsys.readouterr()
    assert main(["brokers", "drain", "3", "--undo"]) == 0
    assert capsys.readouterr().out == "broker 3: accepts replicas again\n"
    assert cluster.cordoned == set()


def test_partitions_that_are_created_while_the_plan_is_made(
    cluster: FakeCluster, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alter_configs(*args: Any) -> None:
        cluster.partitions += [PlacedPartition("new", 0, (3, 1), 3), PlacedPartition("new", 1, (1, 2), 1)]

    monkeypatch.setattr(run_plan, "alter_configs", alter_configs)
    assert main(["brokers", "drain", "3"]) == 0
    note = "1 partition got replicas there since this plan was made: drain once more"
    assert note in capsys.readouterr().err.splitlines()


def test_an_empty_broker_is_cordoned(cluster: FakeCluster) -> None:
    assert main(["brokers", "drain", "4"]) == 0
    assert (cluster.cordoned, cluster.controller.created) == ({"4"}, [])


def test_other_plans_cordon_no_broker(cluster: FakeCluster) -> None:
    assert main(["brokers", "replace", "3", "4"]) == 0
    assert cluster.cordoned == set()


def test_a_drain_that_is_cancelled_cordons_no_broker(cluster: FakeCluster) -> None:
    assert main(["brokers", "drain", "3", "--detach"]) == 0
    assert cluster.cordoned == {"3"}
    assert main(["brokers", "plan", "--cancel"]) == 0
    assert cluster.cordoned == set()


def test_a_drain_that_is_refused_changes_nothing(cluster: FakeCluster) -> None:
    refusal = CreateReassignmentPlanResponse(error_code=ErrorCode.REASSIGNMENT_IN_PROGRESS)
    cluster.controller.failures = [lambda: None, lambda: refusal]
    assert main(["brokers", "drain", "3"]) == 1
    assert cluster.cordoned == set()


def test_a_broker_with_static_cordons_is_drained_and_not_cordoned(cluster: FakeCluster) -> None:
    cluster.brokers[2] = ClusterBroker(3, "c", accepts_replicas=False)
    assert main(["brokers", "drain", "3"]) == 0
    assert cluster.cordoned == set()


@pytest.mark.parametrize("failure", [BrokerUnreachable("no response"), UnknownBroker(2)])
def test_another_broker_cordons_one_that_is_away(cluster: FakeCluster, failure: Exception) -> None:
    cluster.no_response = failure
    cluster.brokers[1] = ClusterBroker(2, "b", accepts_replicas=False, is_away=True)
    assert main(["brokers", "drain", "2", "--allow-fewer-racks"]) == 0
    assert cluster.cordoned == {"2"}
    assert main(["brokers", "drain", "2", "--undo"]) == 0
    assert cluster.cordoned == set()


def test_a_broker_that_is_silent_and_not_known_to_be_away_is_not_cordoned(
    cluster: FakeCluster, capsys: Capture
) -> None:
    cluster.away = set()
    assert main(["brokers", "drain", "2", "--allow-fewer-racks"]) == 0
    assert cluster.cordoned == set()
    assert "broker 2: new partitions may get replicas on it: no response\n" in capsys.readouterr().err
    assert main(["brokers", "drain", "2", "--undo"]) == 1
    assert capsys.readouterr().err == "broker 2: it stays cordoned: no response\n"


def test_undo_moves_nothing(cluster: FakeCluster, capsys: Capture) -> None:
    assert main(["brokers", "drain", "3", "--undo", "--dry-run"]) == 2
    assert capsys.readouterr().err == "kbroker: --undo has no other options\n"


def test_exactly_the_plan_of_a_dry_run_is_run(cluster: FakeCluster, tmp_path: Path, capsys: Capture) -> None:
    assert main(["brokers", "drain", "3", "--dry-run", "--json"]) == 0
    file = tmp_path / "plan.json"
    file.write_text(capsys.readouterr().out)
    # A new plan would choose other targets now.
    cluster.partitions[2] = cluster.partitions[2]._replace(size_bytes=100 * MIB)
    assert main(["brokers", "execute", str(file), "--throttle", "2MiB", "--yes"]) == 0
    (created,) = cluster.controller.created
    assert (created.description, created.throttle_bytes_per_second) == ("drain 3", 2 * MIB)
    assert [
        {
            "topic": move.topic_name,
            "partition": move.partition_index,
            "original": move.original_replicas,
            "target": move.target_replicas,
        }
        for move in created.moves
    ] == [
        {name: move[name] for name in ("topic", "partition", "original", "target")}
        for move in json.loads(file.read_text())["moves"]
    ]


def test_brokers_that_do_not_exist_are_not_drained(cluster: FakeCluster, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "plan.json"
    move = {"topic": "orders", "partition": 0, "original": [1, 2], "target": [1, 3]}
    file.write_text(json.dumps({"description": "drain 9", "moves": [move]}))
    assert main(["brokers", "execute", str(file), "--yes"]) == 1
    assert capsys.readouterr().err == "kbroker: there is no broker 9\n"
    file.write_text(json.dumps({"description": "drain x", "moves": [move]}))
    assert main(["brokers", "execute", str(file), "--yes"]) == 1
    assert "is not a plan" in capsys.readouterr().err
    file.write_text(json.dumps({"moves": [move]}))
    assert main(["brokers", "execute", str(file), "--yes"]) == 0
    assert [created.description for created in cluster.controller.created] == ["execute plan.json"]


def test_a_plan_for_another_state_of_the_cluster_is_refused(
    cluster: FakeCluster, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"moves": [{"topic": "orders", "partition": 0, "original": [2, 1], "target": [2, 3]}]}))
    assert main(["brokers", "execute", str(file), "--yes"]) == 1
    assert capsys.readouterr().err == (
        "kbroker: orders-0 has the replicas 1,2, and not 2,1 as in the plan: make a new plan\n"
    )
    assert cluster.controller.created == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"moves": [{"topic": "t"}]}', '{"moves": 1}', '"x"', "\ud83d"])
def test_files_that_are_no_plans(text: str, cluster: FakeCluster, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(text.encode("utf-16", "surrogatepass"))
    assert main(["brokers", "execute", str(file)]) == 1
    assert "plan.json is not a plan: it must have what --dry-run --json prints" in capsys.readouterr().err
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert main(["brokers", "execute", str(file)]) == 1
    assert "plan.json is not a plan" in capsys.readouterr().err


def test_a_file_that_does_not_exist(cluster: FakeCluster, tmp_path: Path, capsys: Capture) -> None:
    assert main(["brokers", "execute", str(tmp_path / "none.json")]) == 1
    assert "none.json: No such file" in capsys.readouterr().err
