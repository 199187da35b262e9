"""Commands of plans as processes, and the replicas that the brokers have in the end."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tests.compat.cluster.cluster import Cluster
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


def targets(plan: Mapping[str, Any], field: str = "target") -> Replicas:
    """Return the replicas of the partitions that a plan moves, from its JSON. `field`: target or original."""
    return {(move["topic"], move["partition"]): tuple(move[field]) for move in plan["moves"]}
