"""scripts/bench --scale: its rows, and that both parts run with few partitions."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from kbroker.coordination.embedded import EmbeddedStore
from kbroker.coordination.interface import Create, Delete, Set
from scripts.benchmark.cluster.admin import Admin, start
from scripts.benchmark.cluster.clusters import KbrokerCluster
from scripts.benchmark.scale.__main__ import PROCESSES_HEADING, ManyPartitions, options, rows_of_processes
from scripts.benchmark.scale.metadata_cluster import CountingSession, Traffic
from scripts.benchmark.scale.metadata_costs import HEADING, Cost, measure_metadata, rows_of_costs
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import MemoryDisk, make_environment


@async_test
async def test_each_change_of_the_metadata_is_measured(tmp_path: Path) -> None:
    costs = await measure_metadata(make_environment(MemoryDisk()), tmp_path, brokers=5, partitions=200, repeats=2)
    assert costs["one ISR"].read.nodes_read == 1
    assert costs["death of a broker"].written.operations > costs["one leader"].written.operations
    assert costs["death of the controller"].written.multis == 2  # the campaign, and the failover
    assert costs["start of a broker, which reads everything"].read.bytes_read > 5_000
    assert all(cost.written.multis for cost in costs.values() if cost.controller_ms)


@async_test
async def test_a_session_counts_what_passes_through_it() -> None:
    store = await EmbeddedStore.open(make_environment(MemoryDisk()), "/data")
    session = CountingSession(store.session())
    await session.create("/a", b"123")
    await session.multi([Set("/a", b"12345"), Create("/a/b", b""), Delete("/a/b")])
    assert (await session.get("/a")).data == b"12345"
    assert await session.get_many(["/a", "/missing"]) == [(b"12345", 1, 0), None]
    assert session.traffic == Traffic(3, 10, 2, 4, 5 + 7 + 4 + 4)
    await session.close()


def test_three_brokers_are_measured(tmp_path: Path) -> None:
    cluster = KbrokerCluster(tmp_path)
    try:
        start(cluster)
        figures = ManyPartitions(cluster, 100, idle_s=0.2, settle_s=0.0).measure()
    finally:
        cluster.kill()
    assert figures["resident MiB of a broker"] > 10
    assert 0 < figures["s of failover, first topic"] <= figures["s of failover, last topic"]
    assert 0 < figures["s of restart, until it listens"] <= figures["s of restart, until in sync"]
    rows = rows_of_processes(100, {"kbroker": [figures], "Apache Kafka": [figures]})
    assert {row.count("|") for row in rows} == {PROCESSES_HEADING.splitlines()[0].count("|")}
    assert "**1.00**" in rows[-1]
    (row, *_) = rows_of_processes(100, {"kbroker": [figures]})
    assert row.endswith("|  |  |")


def test_what_a_failed_step_has_not_measured_is_empty() -> None:
    whole, partial = {"s to create": 2.0, "s of restart": 8.0}, {"s to create": 4.0}
    rows = rows_of_processes(100, {"kbroker": [whole], "Apache Kafka": [partial]})
    assert rows[0] == "| 100 partitions, s to create | 2 | 4 | **0.50** |"
    assert rows[1] == "| 100 partitions, s of restart | 8 |  |  |"
    rows = rows_of_processes(100, {"kbroker": [partial], "Apache Kafka": [whole, partial]})
    assert rows[1] == "| 100 partitions, s of restart |  | 8 |  |"


class ClusterWithoutNodes:
    """Like a cluster whose nodes do not listen."""

    name = "none"

    def ports(self) -> list[int]:
        return [1, 1, 1]


def test_the_figures_before_a_failed_step_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> float:
        raise SystemExit("the server did not listen")

    cluster: Any = ClusterWithoutNodes()
    monkeypatch.setattr(Admin, "wait_for_brokers", lambda _: None)
    monkeypatch.setattr(ManyPartitions, "_idle_ms", lambda _: 1.5)
    monkeypatch.setattr(ManyPartitions, "_create", fail)
    assert ManyPartitions(cluster, 100).measure() == {"idle processor ms/s, no partitions": 1.5}
    assert capsys.readouterr().err == "none: nothing more is measured: the server did not listen\n"


def test_rows_of_costs_have_the_columns_of_the_heading() -> None:
    cost = Cost(1.5, Traffic(0, 0, 2, 30, 4_000), 0.5, Traffic(7, 1_200))
    rows = rows_of_costs({200: {"one ISR": cost}, 400: {"one ISR": cost}})
    assert rows[1] == "| one ISR, of 400 partitions | 1.5 | 2 | 30 | 4.0 | 7 | 1.2 | 0.5 |"
    assert rows[0].count("|") == HEADING.splitlines()[0].count("|")


def test_options() -> None:
    args: Namespace = options().parse_args(["--part", "metadata", "--brokers", "7"])
    assert (args.part, args.brokers, args.partitions) == ("metadata", 7, 10_000)
    with pytest.raises(SystemExit):
        options().parse_args(["--part", "data"])
