"""A broker whose disk fails for one log: another replica leads, and the failed one no longer counts as a replica."""

import asyncio

from kbroker.replica.isr.disk_reports import FailedLogReporter
from protocol.messages.k73_assign_replicas_to_dirs import AssignReplicasToDirsRequest
from tests.unit.support.replica_cluster import ReplicaCluster, replica_test


class Reports:
    """The reports of one broker: the indexes of the partitions of each."""

    def __init__(self, cluster: ReplicaCluster, node_id: int) -> None:
        self.received: list[list[int]] = []
        node = cluster.nodes[node_id]
        self._reporter = FailedLogReporter(node.environment, node.replicas, node.image, lambda: node.epoch, self._send)

    async def _send(self, request: AssignReplicasToDirsRequest) -> None:
        (directory,) = request.directories
        (topic,) = directory.topics
        self.received.append([partition.partition_index for partition in topic.partitions])

    async def check(self) -> list[list[int]]:
        self.received.clear()
        await self._reporter.report()
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
