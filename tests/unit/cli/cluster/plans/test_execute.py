"""`kbroker brokers execute`: runs a plan from the JSON of a dry run."""

import json
from pathlib import Path

import pytest

from kbroker.cli import main
from tests.unit.cli.cluster.plans.conftest import MIB, FakeCluster

Capture = pytest.CaptureFixture[str]


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
