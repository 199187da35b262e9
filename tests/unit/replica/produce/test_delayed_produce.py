"""Which acknowledgements wait for the followers, which for the leader's disk, and how they fail."""

import asyncio

from kbroker.metadata.image import BrokerRegistration, MetadataDelta, PartitionRegistration
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import ProduceResponse
from tests.unit.support.client import batch
from tests.unit.support.replicated_partition import ReplicatedPartition
from tests.unit.support.simulated_broker import Machine, broker_test


@broker_test
async def test_acks_1_waits_for_the_sync_of_the_leader_only(m: Machine) -> None:
    """With flush.before.ack. acks=all also waits for the followers, which claim what they have synced."""
    client, other = await m.client(), await m.client()
    await client.create_topic("t", flush_before_ack=True)
    t = ReplicatedPartition(m)
    t.lead([1, 2, 3])
    m.threads.held.add("flush_blocking")
    one, everyone = client.send_produce("t", batch(b"a"), acks=1), other.send_produce("t", batch(b"b"))
    await m.until(lambda: t.partition.log.log_end_offset == 2)
    for replica in (2, 3):
        t.claim(replica, 2)
    await asyncio.sleep(1)
    assert not one.done()
    assert t.high_watermark == 0
    m.threads.release("flush_blocking")
    assert (await one).error_code == ErrorCode.NONE
    assert (await everyone).error_code == ErrorCode.NONE
    later = client.send_produce("t", batch(b"c"), acks=1)
    assert (await later).error_code == ErrorCode.NONE
    assert t.high_watermark == 2


@broker_test
async def test_a_sync_that_fails_fails_acks_1(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("t", flush_before_ack=True)
    t = ReplicatedPartition(m)
    t.lead([1, 2, 3])
    m.disk.faults.fail_next("sync", lambda path: path.endswith(".log"))
    assert (await client.produce("t", batch(b"a"), acks=1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


@broker_test
async def test_a_lost_leadership_names_the_new_leader(m: Machine) -> None:
    """KIP-951: the producer sends the batch to the new leader without asking for metadata."""
    client = await m.client()
    await client.create_topic("t")
    t = ReplicatedPartition(m)
    t.lead([1, 2, 3])
    request = client.produce_request("t", {0: batch(b"a")})
    waiting = client.send(request, 11, ProduceResponse)
    await asyncio.sleep(1)
    image = m.broker.services.metadata
    image.apply(MetadataDelta(brokers={2: BrokerRegistration(2, "b2", 9092, "rack", 102)}))
    epoch = t.partition.leader_epoch + 1
    image.topics["t"].partitions[0] = PartitionRegistration(2, epoch, [1, 2, 3], [1, 2, 3], partition_epoch=99)
    t.follow(2)
    for response in (await waiting, await client.request(request, 11, ProduceResponse)):
        (result,) = response.responses[0].partition_responses
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (result.current_leader.leader_id, result.current_leader.leader_epoch) == (2, epoch)
        (node,) = response.node_endpoints
        assert (node.node_id, node.host, node.port, node.rack) == (2, "b2", 9092, "rack")


@broker_test
async def test_the_isr_is_too_small_when_the_records_are_committed(m: Machine) -> None:
    """Possible if another batch of the request is validated meanwhile; here the test moves the high watermark."""
    client = await m.client()
    await client.create_topic("t", min_insync_replicas=2)
    t = ReplicatedPartition(m)
    t.lead([1, 2, 3])
    waiting = client.send_produce("t", batch(b"a"))
    await asyncio.sleep(1)
    t.partition.state.high_watermark = 1
    t.lead([1], t.partition.leader_epoch)
    t.partition._waiting.popleft()[1](ErrorCode.NONE)
    assert (await waiting).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
