"""Commands of plans as processes, and the replicas that the brokers have in the end."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from protocol.messages.k10000_reassignment_plans import (
    DescribedPlan,
    DescribeReassignmentPlanRequest,
    DescribeReassignmentPlanResponse,
)
from tests.compat.broker_connection import BrokerConnection
from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.views import FAILURES, TIMEOUT_S
from tests.compat.support import DEADLINE_S, eventually

# The replicas of partitions, in order: the first is the preferred leader.
Replicas = dict[tuple[str, int], tuple[int, ...]]


def process(cluster: Cluster, *args: str) -> "subprocess.Popen[str]":
    """Start a command line."""
    command = [sys.executable, "-m", "kbroker", *args, "--bootstrap", cluster.bootstrap]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(cluster: Cluster, *args: str, status: int = 0) -> tuple[str, str]:
    """Run a command line, and return its output and its errors."""
    running = process(cluster, *args)
    output, errors = running.communicate(timeout=2 * DEADLINE_S)
    assert running.returncode == status, errors
    return output, errors


def json_of(cluster: Cluster, *args: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run(cluster, *args, "--json")[0])
    return document


def replicas(cluster: Cluster) -> Replicas:
    """Return the replicas of all partitions, when all brokers agree on them and all are in sync."""
    found: list[Replicas] = []

    def agree() -> bool:
        views = [view for view in cluster.views().values() if view is not None and view.is_fully_replicated]
        found[:] = [{key: part.replicas for key, part in view.partitions.items()} for view in views]
        return len(found) == len(cluster.running) and all(one == found[0] for one in found)

    eventually(agree, "the brokers agree on the replicas", interval=0.1)
    return found[0]


def latest_plan(cluster: Cluster) -> DescribedPlan | None:
    """Return the latest plan; None if there is none or no controller.

    Starting a command takes half a second of the processor, so what is waited for is asked of a broker.
    """
    node_id = cluster.running[-1]
    try:
        with BrokerConnection(cluster.brokers[node_id].bootstrap, timeout_s=TIMEOUT_S) as connection:
            request = DescribeReassignmentPlanRequest(include_moves=True)
            return connection.request(request, 0, DescribeReassignmentPlanResponse).plan
    except FAILURES:
        return None


def targets(plan: Mapping[str, Any], field: str = "target") -> Replicas:
    """Return the replicas of the partitions that a plan moves, from its JSON. `field`: target or original."""
    return {(move["topic"], move["partition"]): tuple(move[field]) for move in plan["moves"]}


def wait_for_end(watching: "subprocess.Popen[str]") -> dict[str, Any]:
    """Return what `kbroker brokers plan --watch --json` prints in the end. The plan must be complete."""
    output, errors = watching.communicate(timeout=2 * DEADLINE_S)
    assert watching.returncode == 0, errors
    ended: dict[str, Any] = json.loads(output)
    return ended


def check_end(cluster: Cluster, shown: Mapping[str, Any], ended: Mapping[str, Any], before: Replicas) -> None:
    """Check that a plan has ended with the replicas that it has shown, and has left no throttle."""
    assert (ended["state"], ended["skipped"], ended["done"]) == ("complete", 0, len(shown["moves"])), ended
    moved = targets(shown)
    assert targets(ended) == moved
    found = replicas(cluster)
    assert found == before | moved
    counts = Counter(node_id for part in found.values() for node_id in part)
    assert {row["broker"]: row["after"]["replicas"] for row in shown["brokers"]} == {
        node_id: counts[node_id] for node_id in cluster.brokers
    }
    resources = [("broker", "--default"), *(("topic", name) for name in sorted({topic for topic, _ in moved})[:3])]
    for resource in resources:
        assert "throttled" not in run(cluster, "configs", "get", *resource)[0]
