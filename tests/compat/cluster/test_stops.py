"""Clean stops hand leadership over: a rolling restart under load, without an error that a client sees."""

import pytest

from tests.compat.cluster.cluster import Cluster
from tests.compat.cluster.work import GapMeter, create_topic, working
from tests.compat.reports import reports


def test_a_rolling_restart_under_load(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    topic = create_topic(cluster, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    with working(cluster, topic, 3) as work:
        for node_id in cluster.brokers:
            with GapMeter(work) as meter:
                cluster.stop(node_id)
                # No session has to expire: the broker has left before it ended.
                cluster.wait_until(
                    lambda view, left=node_id: left not in view.brokers and leads_nothing(view.partitions, left),
                    f"broker {node_id} leads nothing",
                )
                work.wait_for_more()
            reports(request.config).section("clean stop").append(
                f"broker {node_id}: longest time without an acknowledgement {meter.longest_s * 1000:.0f} ms"
            )
            cluster.start(node_id)
            cluster.wait_until_healthy()


def leads_nothing(partitions: dict, node_id: int) -> bool:
    """Return whether other brokers lead all partitions that have other replicas."""
    return all(part.leader not in (node_id, -1) for part in partitions.values() if part.replicas != (node_id,))
