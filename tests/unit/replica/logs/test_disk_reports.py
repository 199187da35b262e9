"""Reports to the controller: failed logs, and disks that cannot be written to."""

import asyncio
from types import SimpleNamespace
from typing import Any

from kbroker.metadata.image import WriteHealth
from kbroker.replica.logs.disk_reports import DIRECTORY_IDS, DiskReporter
from protocol.messages.k73_assign_replicas_to_dirs import AssignReplicasToDirsRequest
from tests.unit.support.client import batch
from tests.unit.support.replica_cluster import ReplicaCluster, replica_test
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated


class Reports:
    """The reports of one broker: the indexes of the partitions of each."""

    def __init__(self, cluster: ReplicaCluster, node_id: int) -> None:
        self.received: list[list[int]] = []
        node = cluster.nodes[node_id]
        self._reporter = DiskReporter(node.environment, node.replicas, node.image, lambda: node.epoch, self._send)

    async def _send(self, request: AssignReplicasToDirsRequest) -> None:
        (directory,) = request.directories
        (topic,) = directory.topics
        self.received.append([partition.partition_index for partition in topic.partitions])

    async def check(self) -> list[list[int]]:
        self.received.clear()
        await self._reporter.report_logs()
        return list(self.received)


@replica_test
async def test_a_leader_whose_log_has_failed_is_replaced(c: ReplicaCluster) -> None:
    await c.replicate(1, 2, 3, partitions=3, min_insync_replicas="2")
    reports = Reports(c, 1)
    await c.commit(1, b"a", index=1)
    assert await reports.check() == []
    c.nodes[1].partition(1).log.health.mark_offline("sync failed")
    assert await reports.check() == [[1]]
    assert await reports.check() == [[1]], "repeated until the image has the effect"
    c.elect(2, isr=[2, 3], index=1)
    assert await reports.check() == []
    await c.commit(2, b"b", index=1)
    await asyncio.sleep(5)
    claimed = c.nodes[2].partition(1).state.followers[1].log_end_offset
    assert claimed == -1, "the failed replica does not fetch"


@replica_test
async def test_a_follower_whose_log_has_failed_claims_nothing_in_the_next_epoch(c: ReplicaCluster) -> None:
    await c.replicate(1, 2)
    await c.commit(1, b"a")
    c.nodes[2].partition().log.health.mark_offline("sync failed")
    assert await Reports(c, 2).check() == [[0]]
    c.elect(1, isr=[1])
    await asyncio.sleep(5)
    assert c.nodes[1].partition().state.followers[2].log_end_offset == -1


@replica_test
async def test_the_only_replica_in_sync_is_not_reported(c: ReplicaCluster) -> None:
    await c.replicate(1, 2)
    c.elect(1, isr=[1])
    c.nodes[1].partition().log.health.mark_offline("sync failed")
    assert await Reports(c, 1).check() == []


@replica_test
async def test_a_log_that_cannot_be_opened_is_reported(c: ReplicaCluster) -> None:
    await c.replicate(1, 2)
    node = c.nodes[1]
    node.replicas.maintenance.unopened[node.partition().tp] = node.partition().topic_id
    assert await Reports(c, 1).check() == [[0]]


@simulated(SimulatedCluster, range(2))
async def test_producers_go_on_with_another_leader(s: SimulatedCluster) -> None:
    await s.create([1, 2, 3], [1, 2, 3], min_insync_replicas="2")
    await s.produce(1, batch(b"a"))
    s.replica(1).log.health.mark_offline("sync failed: [Errno 5] Input/output error")
    await s.until(lambda: s.registration(2).leader == 2, 10)
    assert s.registration(2, index=1).leader == 1, "the log of the other partition works"
    await s.produce(2, batch(b"b"))
    assert s.registration(2).isr == [2, 3]
    await s.machines[1].stop()
    await s.machines[1].start()
    await s.until(lambda: sorted(s.registration(2).isr) == [1, 2, 3], 30)
    assert s.replica(1).log.log_end_offset == 2


OK, PROBATION, FAILING = WriteHealth


class HealthReports:
    def __init__(self, cluster: ReplicaCluster, node_id: int) -> None:
        self.health = OK
        self._node = node = cluster.nodes[node_id]
        self._received: list[WriteHealth] = []
        monitor: Any = SimpleNamespace(health=OK)
        self._monitor = monitor
        node.replicas.write_health = monitor
        self._reporter = DiskReporter(node.environment, node.replicas, node.image, lambda: node.epoch, self._send)

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
        await self._reporter.report_health()
        return list(self._received)


@replica_test
async def test_a_report_is_repeated_until_the_image_has_its_effect(c: ReplicaCluster) -> None:
    await c.replicate(1, 2, 3)
    reports = HealthReports(c, 1)
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
    assert await HealthReports(c, 1).check(FAILING, FAILING) == []


@replica_test
async def test_if_all_replicas_in_sync_fail_none_gives_up(c: ReplicaCluster) -> None:
    await c.replicate(1, 2)
    brokers = c.nodes[1].image.brokers
    brokers[2] = brokers[2]._replace(write_health=FAILING)
    assert await HealthReports(c, 1).check(FAILING, FAILING) == []
