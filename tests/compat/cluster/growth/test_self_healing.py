"""Self-healing: a killed broker's replicas are rebuilt elsewhere while clients work, and it takes its share later."""

from collections import Counter
from pathlib import Path

import pytest

from tests.compat.cluster.cluster import IS_KBROKER, Cluster, running_cluster
from tests.compat.cluster.growth.plan_commands import Replicas, json_of, latest_plan, replicas, run
from tests.compat.cluster.work import create_topic, working
from tests.compat.support import DEADLINE_S, eventually

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: another program's brokers")

LOST = 3
ASSIGNED = [[1, 2, 3], [2, 3, 4], [3, 4, 1], [3, 1, 2]]
PARTITIONS = len(ASSIGNED)
AFTER_MS, HOUR_MS = 3000, 3_600_000


def test_a_broker_stays_away_and_returns(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 4, servers=1, min_insync_replicas="2") as cluster:
        heal(cluster)


def heal(cluster: Cluster) -> None:
    topic = create_topic(cluster, ASSIGNED)
    with working(cluster, topic, PARTITIONS) as work:
        # Off by default: nothing happens to a broker that is away.
        cluster.kill(LOST)
        cluster.wait_until(lambda view: LOST not in view.brokers, f"broker {LOST} is fenced")
        work.wait_for_more()
        assert healing(cluster) == []
        switch(cluster, HOUR_MS)
        assert [(row["broker"], row["is_away"], row["state"]) for row in healing(cluster)] == [(LOST, True, "waiting")]
        assert "no plan has run yet" in run(cluster, "brokers", "plan")[1]
        switch(cluster, AFTER_MS)
        wait_for_end(cluster, f"rebuild broker {LOST}")
        rebuilt = replicas(cluster)
        assert all(LOST not in nodes for nodes in rebuilt.values())
        assert all(len(rebuilt[topic, index]) == 3 for index in range(PARTITIONS))
        work.wait_for_more()
        switch(cluster, HOUR_MS)
        cluster.start(LOST)
        assert [(row["broker"], row["is_away"], row["state"]) for row in healing(cluster)] == [(LOST, False, "waiting")]
        assert replicas(cluster) == rebuilt
        switch(cluster, AFTER_MS)
        wait_for_end(cluster, f"give replicas back to broker {LOST}")
        work.wait_for_more()
        assert has_share(replicas(cluster))
        assert healing(cluster) == []


def switch(cluster: Cluster, after_ms: int) -> None:
    run(cluster, "configs", "set", "broker", "--default", f"kbroker.replica.rebuild.after.ms={after_ms}")


def wait_for_end(cluster: Cluster, description: str) -> None:
    """Wait until the controller has run a plan to its end."""

    def has_ended() -> bool:
        plan = latest_plan(cluster)
        return plan is not None and (plan.description, plan.state) == (description, "complete")

    eventually(has_ended, f"the plan: {description}", interval=0.2, timeout=2 * DEADLINE_S)


def healing(cluster: Cluster) -> list[dict[str, object]]:
    """Return what `kbroker cluster status` says about self-healing."""
    rows: list[dict[str, object]] = json_of(cluster, "cluster", "status")["self_healing"]
    return rows


def has_share(found: Replicas) -> bool:
    counts = Counter(node for nodes in found.values() for node in nodes)
    return counts[LOST] > 0 and max(counts.values()) - counts[LOST] <= 1
