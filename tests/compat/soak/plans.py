"""Plans of moves that run during faults: a broker is drained, and gets its share again with the next plan."""

import random
from typing import Any

from tests.compat.cluster.growth.plan_commands import Replicas, check_end, json_of, process, replicas, run, wait_for_end
from tests.compat.soak.servers import HostedCluster

# A plan takes about so long: some seconds before a fault, and during it.
PLAN_S = 12.0
# More than producers send.
LEAST_RATE = 500_000
CONCURRENT = "4"


class Plans:
    """Runs one plan at a time. The seed chooses which broker is drained."""

    def __init__(self, cluster: HostedCluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._drained = ""
        self._before: Replicas = {}
        self._shown: dict[str, Any] = {}

    def begin(self) -> None:
        """Begin a plan, with a throttle. All replicas are in sync."""
        cluster = self._cluster
        command = ["balance"]
        if self._drained:
            run(cluster, "brokers", "drain", self._drained, "--undo")
            self._drained = ""
        else:
            self._drained = str(self._random.choice(cluster.others()))
            command = ["drain", self._drained]
        self._before = replicas(cluster)
        dry = json_of(cluster, "brokers", *command, "--dry-run")
        rate = max(LEAST_RATE, round(max(row["received_bytes"] for row in dry["brokers"]) / PLAN_S))
        options = ("--throttle", str(rate), "--concurrent", CONCURRENT, "--yes", "--detach")
        self._shown = json_of(cluster, "brokers", *command, *options)
        assert self._shown["moves"], f"nothing to move: {command}"

    def finish(self) -> str:
        """Wait until the plan has ended as it has shown, after the fault, and return a report."""
        ended = wait_for_end(process(self._cluster, "brokers", "plan", "--watch", "--json"))
        check_end(self._cluster, self._shown, ended, self._before)
        took_s = (ended["ended_ms"] - ended["created_ms"]) / 1000
        return f"{ended['description']}: {ended['done']} moves in {took_s:.0f} s"
