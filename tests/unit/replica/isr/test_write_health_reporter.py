"""A broker reports to the controller that it cannot write, until the image has the effect."""

from types import SimpleNamespace
from typing import Any

from kbroker.metadata.image import WriteHealth
from kbroker.replica.isr.disk_reports import DIRECTORY_IDS, WriteHealthReporter
from protocol.messages.k73_assign_replicas_to_dirs import AssignReplicasToDirsRequest
from tests.unit.support.replica_cluster import ReplicaCluster, replica_test

OK, PROBATION, FAILING = WriteHealth


class Reports:
    def __init__(self, cluster: ReplicaCluster, node_id: int) -> None:
        self.health = OK
        self._node = node = cluster.nodes[node_id]
        self._received: list[WriteHealth] = []
        monitor: Any = SimpleNamespace(health=OK)
        self._monitor = monitor
        self._reporter = WriteHealthReporter(
            node.environment, node.replicas, monitor, node.image, lambda: node.epoch, self._send
        )

    async def _send(self, request: AssignReplicasToDirsRequest) -> None:
        (directory,) = request.directories
        self._received += [health for health, id in DIRECTORY_IDS.items() if id == directory.id]

    async def check(self, health: WriteHealth, stored: WriteHealth) -> list[WriteHealth]:
        """Return what is reported with this health, and the one that the image has."""
        self._received.clear()
        self._monitor.health = health
        brokers = self._node.image.brokers
        own = self._node.replicas.node_id
        brokers[own] = brokers[own]._replace(write_health=stored)
        await self._reporter.report()
        return list(self._received)


@replica_test
async def test_a_report_is_repeated_until_the_image_has_its_effect(c: ReplicaCluster) -> None:
    await c.replicate(1, 2, 3)
    reports = Reports(c, 1)
    assert await reports.check(OK, OK) == []
    assert await reports.check(FAILING, OK) == [FAILING]
    assert await reports.check(FAILING, FAILING) == [FAILING], "it still leads, and is in sync"
    c.elect(2, isr=[2, 3])
    assert await reports.check(FAILING, FAILING) == []
    assert await reports.check(PROBATION, FAILING) == [PROBATION]
    assert await reports.check(PROBATION, PROBATION) == []
    assert await reports.check(OK, PROBATION) == [OK]


@replica_test
async def test_the_only_replica_in_sync_is_reported_once(c: ReplicaCluster) -> None:
    await c.replicate(1, 2)
    c.elect(1, isr=[1])
    assert await Reports(c, 1).check(FAILING, FAILING) == []


@replica_test
async def test_if_all_replicas_in_sync_fail_none_gives_up(c: ReplicaCluster) -> None:
    await c.replicate(1, 2)
    brokers = c.nodes[1].image.brokers
    brokers[2] = brokers[2]._replace(write_health=FAILING)
    assert await Reports(c, 1).check(FAILING, FAILING) == []
