"""Share groups over three brokers: states are initialized once, before partitions are assigned, whoever fails."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.group.share.share_groups import ShareGroups
from kbroker.coordinator.share.share_partition_state import SharePartitionKey, StateBatch, StateWrite
from kbroker.metadata.features import FORMER_FINALIZED
from protocol.errors import ErrorCode
from protocol.messages.k42_delete_groups import DeleteGroupsRequest
from protocol.messages.k76_share_groups import ShareGroupHeartbeatRequest
from tests.unit.support.coordinator_cluster import GROUPS, SHARES, A, Cluster
from tests.unit.support.share_coordinator import outcome

ACKNOWLEDGED = 2
GROUP = "g"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


class Member:
    """Sends heartbeats to the current coordinator, as a client does."""

    def __init__(self, cluster: Cluster, member_id: str) -> None:
        self._cluster = cluster
        self._id = member_id
        self.epoch = 0
        self.assigned: dict[bytes, list[int]] = {}

    async def beat(self) -> None:
        names = ["a"] if self.epoch == 0 else None
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP, member_id=self._id, member_epoch=self.epoch, subscribed_topic_names=names
        )
        response = await self._cluster.leader(GROUPS).serve(request, 1)
        if response.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.assigned = 0, {}
        elif response.error_code == ErrorCode.NONE:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.assigned = {topic.topic_id: topic.partitions for topic in response.assignment.topic_partitions}

    async def wait_for_partitions(self) -> None:
        while not self.assigned:
            await self.beat()
            await asyncio.sleep(0.3)


async def consume(cluster: Cluster, key: SharePartitionKey, member: Member) -> None:
    """Get the partition, acknowledge records, and stay in the group."""
    await member.wait_for_partitions()
    assert member.assigned == {key.topic_id: [0]}
    persister = cluster.nodes[2].persister
    state = await persister.read(key, 1)
    assert state.start_offset == -1, "the state is read before its initialization, or it is not that of a new topic"
    batches = (StateBatch(0, 4, ACKNOWLEDGED, 1),)
    await persister.write(key, StateWrite(state.state_epoch, 1, 5, 0, batches))
    for _ in range(40):
        await member.beat()
        await asyncio.sleep(1)
    state = await persister.read(key, 1)
    assert state.start_offset == 5, "the state was initialized again"


@pytest.mark.parametrize("step", range(0, 48, 2))
@pytest.mark.parametrize("failing", [GROUPS, SHARES])
def test_states_are_initialized_once_when_a_coordinator_fails_at_any_step(cluster: Cluster, step: int, failing: Any):
    """`step`: the iterations of the event loop after which it fails. Requests to another broker take a millisecond."""
    key = SharePartitionKey(GROUP, cluster.topic_id(A), 0)
    member = Member(cluster, "m")
    cluster.elect(SHARES, 2)
    cluster.loop.pass_ms(10)
    consuming = cluster.start(consume(cluster, key, member))
    for failure in range(4):
        for _ in range(step):
            cluster.loop.run_until_complete(asyncio.sleep(0.0005 if failure else 0))
        old = cluster.partition(failing).leader
        if failure % 2:
            cluster.kill(old, old % 3 + 1)
            cluster.loop.pass_ms(30)
            cluster.restart(old)
        else:
            cluster.elect(failing, old % 3 + 1)
    cluster.loop.pass_ms(120_000)
    assert outcome(consuming) is None


def test_the_states_of_a_deleted_group_are_deleted_although_a_share_coordinator_was_away(cluster: Cluster):
    key = SharePartitionKey(GROUP, cluster.topic_id(A), 0)
    member = Member(cluster, "m")
    cluster.loop.run_until_complete(member.wait_for_partitions())
    leave = ShareGroupHeartbeatRequest(group_id=GROUP, member_id="m", member_epoch=-1)
    cluster.request(GROUPS, leave, 1)
    cluster.elect(SHARES, 2)
    cluster.kill(2, 2)
    # A group can be deleted after share.version was lowered, as in Kafka.
    cluster.leader(GROUPS).image.features = FORMER_FINALIZED
    deleting = cluster.start(cluster.leader(GROUPS).serve(DeleteGroupsRequest(groups_names=[GROUP]), 2))
    cluster.loop.pass_ms(500)
    assert not deleting.done()
    # Nobody joins with the states that are about to be deleted.
    assert cluster.leader(GROUPS).groups.shard(GROUP).kind(ShareGroups).existing_group(GROUP).states.initialized == {}
    cluster.restart(2)
    cluster.elect(SHARES, 3)
    cluster.loop.pass_ms(5_000)
    assert [result.error_code for result in deleting.result().results] == [ErrorCode.NONE]
    with pytest.raises(KafkaError):
        cluster.loop.run_until_complete(cluster.nodes[1].persister.read(key, 0))
    assert cluster.leader(SHARES).share_states.runtime.contexts()[0].shard.partitions == {}


def test_no_partition_is_assigned_while_the_share_coordinator_is_away(cluster: Cluster):
    cluster.elect(SHARES, 2)
    cluster.kill(2, 2)
    member = Member(cluster, "m")
    waiting = cluster.start(member.wait_for_partitions())
    # Longer than requests to the share coordinator are repeated.
    cluster.loop.pass_ms(75_000)
    assert not waiting.done()
    cluster.restart(2)
    cluster.elect(SHARES, 3)
    cluster.loop.pass_ms(60_000)
    assert outcome(waiting) is None
    state = cluster.start(cluster.nodes[1].persister.read(SharePartitionKey(GROUP, cluster.topic_id(A), 0), 1))
    cluster.loop.pass_ms(20)
    assert state.result().start_offset == -1
