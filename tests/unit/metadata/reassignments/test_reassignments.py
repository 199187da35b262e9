"""Reassignments in a cluster of three brokers: they begin, complete and are cancelled, and controllers die."""

import pytest

from kbroker.common import KafkaError
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.replication.isr_change_queue import AlterPartitionResult
from kbroker.metadata.replication.partition_requests import RequestedReassignment
from kbroker.metadata.store.znodes import decode_chunk, encode_chunk
from kbroker.metadata.topics.topic_requests import NewPartitions, TopicNameOrId
from protocol.errors import ErrorCode
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import settle
from tests.unit.support.metadata_cluster import Cluster, cluster_of_three


async def reassign(cluster: Cluster, target: list[int] | None, topic: str = "t", index: int = 0) -> ErrorCode | None:
    """Request one reassignment; return its error code."""
    requested = [RequestedReassignment(topic, index, target)]
    (outcome,) = await cluster.elected.reassignments.alter_reassignments(requested)
    await settle()
    return outcome.error.code if outcome.error else None


async def propose(cluster: Cluster, isr: list[int]) -> AlterPartitionResult:
    """Let the leader request an ISR."""
    result = await cluster.propose("t", isr)
    await settle()
    return result


@async_test
async def test_a_partition_moves_and_its_leader_learns_that_another_one_leads():
    cluster = await cluster_of_three()
    await cluster.create("t", [1, 2])
    assert await reassign(cluster, [3, 2]) is None
    begun = cluster.partition("t")
    assert (begun.replicas, begun.adding_replicas, begun.removing_replicas) == ([3, 2, 1], [3], [1])
    assert cluster.state("t") == (1, 0, [1, 2])
    assert await propose(cluster, [1, 2, 3]) == ErrorCode.NEW_LEADER_ELECTED
    assert cluster.partition("t") == PartitionRegistration(3, 1, [3, 2], [2, 3], partition_epoch=2)


@async_test
async def test_the_leader_stays_if_it_is_in_the_target():
    cluster = await cluster_of_three()
    await cluster.create("t", [1, 2])
    assert await reassign(cluster, [1, 3]) is None
    result = await propose(cluster, [1, 2, 3])
    assert result == cluster.partition("t") == PartitionRegistration(1, 1, [1, 3], [1, 3], partition_epoch=2)


@async_test
async def test_a_new_controller_continues():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 1])
    assert await reassign(cluster, [3, 2]) is None
    dead = cluster.elected.node_id
    await cluster.vanish(dead)
    assert cluster.partition("t").adding_replicas == [3]
    assert isinstance(await propose(cluster, [2, 3]), PartitionRegistration)
    partition = cluster.partition("t")
    assert (partition.replicas, partition.isr, partition.is_reassigning) == ([3, 2], [2, 3], False)
    assert cluster.failures == []


@async_test
async def test_a_broker_that_dies_completes_nothing_and_its_return_may():
    cluster = await cluster_of_three()
    await cluster.create("t", [1, 2])
    # Fewer replicas: all of the target must be in sync.
    await cluster.vanish(2)
    assert await reassign(cluster, [2]) is None
    assert cluster.partition("t").removing_replicas == [1]
    await cluster.start(2)
    assert cluster.state("t")[2] == [1]
    assert await propose(cluster, [1, 2]) == ErrorCode.NEW_LEADER_ELECTED
    assert cluster.partition("t").replicas == [2]


@async_test
async def test_a_reassignment_is_cancelled():
    cluster = await cluster_of_three()
    await cluster.create("t", [1, 2])
    assert await reassign(cluster, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert await reassign(cluster, [3]) is None
    assert await reassign(cluster, None) is None
    assert cluster.partition("t") == PartitionRegistration(1, 1, [1, 2], [1, 2], partition_epoch=2)
    # A proposal of before the end is refused.
    assert await reassign(cluster, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@async_test
async def test_each_partition_of_a_request_has_its_own_outcome():
    cluster = await cluster_of_three()
    await cluster.create("t", [1], [1], [1])
    requested = [
        RequestedReassignment("t", 0, [2]),
        RequestedReassignment("t", 1, [9]),
        RequestedReassignment("t", 2, []),
        RequestedReassignment("t", 3, [2]),
        RequestedReassignment("u", 0, [2]),
    ]
    outcomes = await cluster.elected.reassignments.alter_reassignments(requested)
    invalid, unknown = ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    codes = [outcome.error.code if outcome.error else None for outcome in outcomes]
    assert codes == [None, invalid, invalid, unknown, unknown]
    await settle()
    assert [cluster.partition("t", index).adding_replicas for index in range(3)] == [[2], [], []]
    # New partitions have the replication factor of the reassignment, as in Kafka.
    result = await cluster.elected.topics.create_partitions([NewPartitions("t", 4)], False)
    assert result[0].error is None
    await settle()
    assert not cluster.partition("t", 3).is_reassigning
    (deletion,) = await cluster.elected.topics.delete_topics([TopicNameOrId("t")])
    assert deletion.error is None


@async_test
async def test_only_the_controller_reassigns():
    cluster = await cluster_of_three()
    other = next(broker for broker in cluster.brokers.values() if not broker.controller.is_elected)
    with pytest.raises(KafkaError) as refused:
        await other.controller.reassignments.alter_reassignments([])
    assert refused.value.code == ErrorCode.NOT_CONTROLLER


@async_test
async def test_a_broker_that_has_gone_is_unregistered():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    await cluster.vanish(3)
    assert set(cluster.controller.image.fenced_brokers) == {3}
    await cluster.elected.replication.unregister_broker(3)
    await settle()
    image = cluster.controller.image
    assert (set(image.brokers), set(image.fenced_brokers)) == ({1, 2}, set())
    # Its replicas stay assigned to it.
    assert cluster.partition("t").replicas == [2, 3]
    with pytest.raises(KafkaError) as refused:
        await cluster.elected.replication.unregister_broker(3)
    assert refused.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert await reassign(cluster, [2, 3]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await reassign(cluster, [2]) is None
    assert cluster.partition("t").replicas == [2]


@async_test
async def test_a_live_broker_registers_again_when_it_is_unregistered():
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    await cluster.elected.replication.unregister_broker(2)
    await settle()
    assert set(cluster.controller.image.brokers) == {1, 2, 3}
    assert cluster.state("t") == (3, 1, [3])
    assert cluster.failures == []


@async_test
async def test_a_broker_that_a_partition_waits_for_stays_registered():
    """Otherwise it could come back with an empty disk, and nothing would show that (KIP-966)."""
    cluster = await cluster_of_three()
    await cluster.create("t", [2, 3])
    controller = cluster.elected
    await cluster.vanish(3)
    await cluster.vanish(2)
    assert cluster.partition("t").leader == -1
    with pytest.raises(KafkaError, match=r"Only broker 2 is known to have all records of t-0: start it"):
        await controller.replication.unregister_broker(2)
    assert set(cluster.controller.image.fenced_brokers) == {2, 3}
    await controller.replication.unregister_broker(3)
    await settle()
    assert set(cluster.controller.image.fenced_brokers) == {2}


@async_test
async def test_a_broker_is_unregistered_although_it_has_the_only_replica():
    cluster = await cluster_of_three()
    await cluster.create("t", [3])
    await cluster.vanish(3)
    await cluster.elected.replication.unregister_broker(3)
    await settle()
    assert set(cluster.controller.image.fenced_brokers) == set()


def test_chunks_of_partitions_with_and_without_reassignments():
    topic_id = bytes(range(16))
    plain = PartitionRegistration(1, 5, [1, 2], [1], partition_epoch=7)
    moving = PartitionRegistration(1, 5, [3, 1, 2], [1], [], [], 7, [3], [2])
    eligible = PartitionRegistration(1, 5, [3, 1, 2], [1], [2], [3], 7)
    chunk = {topic_id: {0: plain, 1: moving, 2: eligible}}
    encoded = encode_chunk(chunk)
    assert encoded == (
        b'{"%s":{"0":[1,5,7,[1,2],[1]],"1":[1,5,7,[3,1,2],[1],[],[],[3],[2]],"2":[1,5,7,[3,1,2],[1],[2],[3]]}}'
        % topic_id.hex().encode()
    )
    assert decode_chunk(0, encoded) == chunk
