"""`kbroker cluster status` and `info`, and filters of `kbroker topics describe`, on a broker without problems."""

import pytest

from tests.compat.cli.conftest import Kbroker

pytestmark = pytest.mark.compat


def test_the_status_of_a_cluster(kbroker: Kbroker, name: str) -> None:
    kbroker("topics", "create", name, "--partitions", "3", "--config", "min.insync.replicas=2")
    summary = kbroker("cluster", "status", "--json").json()
    assert summary["partition_count"] >= 3
    assert summary["conditions"]["offline"] == summary["conditions"]["under_min_isr"] == 0
    assert sum(broker["leads"] for broker in summary["brokers"]) == summary["partition_count"]
    lines = kbroker("cluster", "status").out.splitlines()
    assert lines[0].startswith(f"cluster {summary['cluster_id']}  ")
    assert lines[1].split() == [
        "BROKER",
        "ADDRESS",
        "RACK",
        "STATE",
        "LEADS",
        "PREFERRED",
        "REPLICAS",
        "IN_SYNC",
        "LAG",
    ]


def test_the_facts_of_a_cluster(kbroker: Kbroker) -> None:
    info, status = (kbroker("cluster", command, "--json").json() for command in ("info", "status"))
    assert (info["cluster_id"], info["controller"]) == (status["cluster_id"], status["controller"])
    assert [broker["address"] for broker in info["brokers"]] == [broker["address"] for broker in status["brokers"]]
    levels = {feature["feature"]: feature["level"] for feature in info["features"]}
    assert levels["metadata.version"] > 0
    assert "metadata.version" in kbroker("cluster", "info").out


def test_the_lag_of_replicas(kbroker: Kbroker, name: str) -> None:
    kbroker("topics", "create", name)
    kbroker("produce", name, "a", "b")
    ((topic,),) = [kbroker("topics", "describe", name, "--lag", "--json").json()]
    (partition,) = topic["partitions"]
    assert partition["latest_offset"] == 2
    assert partition["replica_lag"] == [{"broker": broker, "lag": 0} for broker in partition["replicas"]]
    header, row = kbroker("topics", "describe", name, "--lag").out.splitlines()[1:]
    assert dict(zip(header.split(), row.split(), strict=True))["LAG"] == "0"


def test_partitions_without_a_problem_are_not_shown(kbroker: Kbroker, try_kbroker: Kbroker, name: str) -> None:
    kbroker("topics", "create", name)
    assert kbroker("topics", "describe", name, "--under-replicated", "--at-min-isr", "--offline").out == ""
    assert kbroker("topics", "describe", name, "--under-min-isr", "--out-of-preference", "--json").json() == []
    refused = try_kbroker("topics", "describe")
    assert refused.status == 2
    assert "name a topic, or use a filter such as --under-replicated" in refused.err
