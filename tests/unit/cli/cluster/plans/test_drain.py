"""`kbroker brokers drain` cordons brokers, and undoes that."""

from typing import Any

import pytest
from kafka.errors import KafkaConnectionError

from kbroker.cli import main
from kbroker.cli.cluster.plans import cordon
from kbroker.cli.cluster.plans.cordon import drain_description, drained_brokers
from kbroker.cli.common.errors import CliError
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterBroker, PlacedPartition
from protocol.errors import ErrorCode
from protocol.messages.k10000_create_reassignment_plan import CreateReassignmentPlanResponse
from tests.unit.cli.cluster.plans.conftest import FakeCluster

Capture = pytest.CaptureFixture[str]


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

    monkeypatch.setattr(cordon, "alter_configs", alter_configs)
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


@pytest.mark.parametrize("failure", [KafkaConnectionError("no response"), CliError("there is no broker 2")])
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
    assert (
        "broker 2: new partitions may get replicas on it: KafkaConnectionError: no response\n"
        in capsys.readouterr().err
    )
    assert main(["brokers", "drain", "2", "--undo"]) == 1
    assert capsys.readouterr().err == "broker 2: it stays cordoned: KafkaConnectionError: no response\n"


def test_undo_moves_nothing(cluster: FakeCluster, capsys: Capture) -> None:
    assert main(["brokers", "drain", "3", "--undo", "--dry-run"]) == 2
    assert capsys.readouterr().err == "kbroker: --undo has no other options\n"
