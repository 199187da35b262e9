"""scripts/bench --cluster: its rows, and that its cases run against brokers of kbroker."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.benchmark.cluster.__main__ import rows_of
from scripts.benchmark.cluster.admin import Admin, balanced
from scripts.benchmark.cluster.cases import Case, balanced_over, memory, other_than
from scripts.benchmark.cluster.clusters import KbrokerCluster
from scripts.benchmark.cluster.scaling import BROKERS, SCALING_HEADING, ScalingRound, scaling_cases, scaling_row
from scripts.benchmark.frame import COMPARISON


@pytest.fixture(scope="module")
def scaling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScalingRound]:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    two = ScalingRound(tmp_path_factory.mktemp("scaling"), BROKERS)
    yield two
    two.remove()


@pytest.mark.parametrize("case", scaling_cases(), ids=lambda case: case.name)
def test_both_brokers_respond_in_each_scaling_case(case: Case, scaling: ScalingRound) -> None:
    figures = scaling.measure(case, 0.02)
    assert figures["responses/s"] > 0
    assert figures["client us"] > 0


def test_partitions_of_a_topic_are_led_as_assigned(tmp_path: Path) -> None:
    cluster = KbrokerCluster(tmp_path)
    cluster.start()
    try:
        admin = Admin(cluster)
        admin.wait_for_brokers()
        topic = admin.new_topic(balanced(4))
        assert [admin.leaders(node_id, topic) for node_id in (1, 2, 3)] == [{0: 1, 1: 2, 2: 3, 3: 1}] * 3
        assert admin.controller() in (1, 2, 3)
        admin.close()
        figures = memory(cluster)
        assert figures["MiB, Pss"] < figures["MiB, VmRSS"]
        pids = {cluster.broker_pid(node_id) for node_id in (1, 2, 3)}
        assert pids < set(cluster.processes())
        assert len(pids) == 3
    finally:
        cluster.kill()


def test_assignments_without_the_victim_as_leader() -> None:
    rest = balanced_over(1, 3, 2)
    assert len(rest) == 500
    assert {brokers[0] for brokers in rest} == {1, 3}
    assert {brokers[2] for brokers in rest} == {2}


def test_the_victim_is_not_the_controller() -> None:
    assert [other_than(controller) for controller in (1, 2, 3)] == [2, 3, 1]


def test_rows_have_ratios_of_medians() -> None:
    case = Case("gap", lambda cluster: {}, {"s": ("≤", 1.0)})
    ours, theirs = ([{"gap": {"s": figure}} for figure in side] for side in ((3.0, 1.0, 2.0), (4.0, 4.0, 5.0)))
    [row] = rows_of(case, ours, theirs)
    assert row == "| gap, s | 2 | 4 | **0.50** | ≤ 1.00 |"
    assert row.count("|") == COMPARISON.splitlines()[0].count("|")
    [alone] = rows_of(case, ours, [])
    assert alone.count("|") == row.count("|")


def test_scaling_row() -> None:
    def figures(rate: float) -> list[dict[str, float]]:
        return [{"responses/s": rate, "broker us": 16.0, "client us": 3.0}]

    row = scaling_row("produce", {1: figures(1000.0), 2: figures(1700.0)})
    assert row == "| produce | 1,000 | 1,700 | **1.70** (≥ 1.6) | 16.0 + 3.0 |"
    assert row.count("|") == SCALING_HEADING.splitlines()[0].count("|")
