"""Closing partitions retire when consumers have nothing left to read: only producers that know them still use them."""

import asyncio
from dataclasses import replace

from kbroker.common import KafkaError
from kbroker.config.config_def import ConfigResourceType
from kbroker.metadata.image import Forwarding, is_retired
from kbroker.metadata.topics.topic_requests import NewPartitions
from kbroker.queues.closing.retired_partitions import RECONNECT_MS
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tests.unit.support.client import Client, batch
from tests.unit.support.deletion import delete_records
from tests.unit.support.queue_cluster import (
    CLOSING,
    REMOVED,
    REOPENED,
    alter,
    closing,
    idempotent,
    leader_of,
    produce,
    until_applied,
    until_forwarded,
    visible,
)
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated

ASSIGNMENT = ([1, 2], [2, 3], [3, 1])
ALL, LISTED = 3, 1
IDLE_MS = 20_000


async def retire(s: SimulatedCluster) -> None:
    """Close partitions 1 and 2, each with a record, and delete these."""
    await s.create(*ASSIGNMENT)
    for index in (1, 2):
        await produce(s, idempotent(b"old", 0), index)
    await closing(s, LISTED)
    await asyncio.sleep(30)
    assert not is_retired(s.registration(1, index=2)), "consumers see a record"
    for index in (1, 2):
        leader = leader_of(s, index)
        assert leader is not None
        partition = s.replica(leader, index=index)
        await s.machines[leader].loop.run(delete_records(s.broker(leader).services.replicas, partition, 1))
    await s.until(lambda: all(s.replica(n, index=2).is_retired for n in (1, 3)), 60)


async def listed(client: Client) -> int:
    """Return the number of partitions in a Metadata response, which must name all their leaders."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
    response = await client.request(request, 12, MetadataResponse)
    [topic] = response.topics
    assert all(row.leader_id >= 0 for row in topic.partitions)
    return len(topic.partitions)


async def create(s: SimulatedCluster, count: int, assignments: list[list[int]] | None = None) -> KafkaError | None:
    controller = s.broker(s.controller).services.controller
    adding = controller.topics.create_partitions([NewPartitions("t", count, assignments)], validate_only=False)
    [result] = await s.machines[s.controller].loop.run(adding)
    return result.error


@simulated(SimulatedCluster, range(2))
async def test_only_producers_see_retired_partitions(s: SimulatedCluster) -> None:
    await retire(s)

    async def as_producer(client: Client) -> None:
        assert await listed(client) == LISTED
        # A connection that sends to them is that of a producer which knows them.
        assert (await client.produce("t", batch(b"b"), 2)).error_code == 0
        # Twice, since responses to consumers are cached.
        assert [await listed(client), await listed(client)] == [ALL, ALL]

    async def as_consumer(client: Client) -> None:
        assert [await listed(client), await listed(client)] == [LISTED, LISTED]
        data = await client.fetch_partition("t", 1, partition=2, max_wait_ms=0)
        assert data.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        topic = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=2, timestamp=-1)])
        offsets = await client.request(ListOffsetsRequest(topics=[topic]), 7, ListOffsetsResponse)
        assert offsets.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    leader = leader_of(s, 2)
    assert leader is not None
    await s.client(leader, as_consumer)
    await s.client(leader, as_producer)
    await s.client(leader, as_consumer)
    await produce(s, idempotent(b"c", 1), 2)
    await until_forwarded(s, 0, [b"b", b"c"])
    # franz-go asks for metadata on a connection of its own: errors name the leader (KIP-951). Broker 2 has no replica.
    for node_id in {1, 2, 3} - {leader}:
        response = await s.client(node_id, lambda client: client.produce("t", batch(b"d"), 2))
        assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert response.current_leader.leader_id == leader


@simulated(SimulatedCluster, range(2))
async def test_only_producers_of_before_see_retired_partitions(s: SimulatedCluster) -> None:
    """Others would use them, and they would never be idle."""
    await asyncio.sleep(RECONNECT_MS / 1000)
    await s.create(*ASSIGNMENT)
    leader = leader_of(s, 0)
    assert leader is not None

    async def producer(client: Client) -> int:
        assert (await client.produce("t", batch(b"a"), 0)).error_code == 0
        stages.append("produced")
        while "retired" not in stages:
            await asyncio.sleep(0.1)
        return await listed(client)

    stages: list[str] = []
    old = asyncio.ensure_future(s.client(leader, producer))
    await s.until(lambda: stages == ["produced"], 10)
    assert (await alter(s, LISTED)).error_code == 0
    await s.until(lambda: all(s.broker(n).services.metadata.retired_versions for n in (1, 2, 3)), 60)
    stages.append("retired")
    assert await s.client(leader, producer) == LISTED
    assert await old == ALL

    # Producers reconnect when a broker was restarted.
    for machine in s.machines.values():
        machine.kill()
        await machine.start()
    await produce(s, batch(b"d"), 0)
    restarted_leader = leader_of(s, 0)
    assert restarted_leader is not None
    assert await s.client(restarted_leader, producer) == ALL


@simulated(SimulatedCluster, range(2))
async def test_a_consumer_that_has_read_everything_is_not_overtaken(s: SimulatedCluster) -> None:
    """Partition 1 has a record, so partition 2, which has none, is still there for consumers."""
    await s.create(*ASSIGNMENT)
    for index in (1, 2):
        await produce(s, idempotent(b"old", 0), index)
    await closing(s, LISTED)
    leader = leader_of(s, 2)
    assert leader is not None
    partition = s.replica(leader, index=2)
    await s.machines[leader].loop.run(delete_records(s.broker(leader).services.replicas, partition, 1))
    await produce(s, idempotent(b"b", 1), 2)
    await until_forwarded(s, 0, [b"b"])
    await asyncio.sleep(30)
    data = await s.client(leader, lambda client: client.fetch_partition("t", 1, partition=2, max_wait_ms=0))
    assert data.error_code == 0
    assert not is_retired(s.registration(leader, index=2))


@simulated(SimulatedCluster, range(2))
async def test_a_consumer_learns_that_its_partition_has_retired(s: SimulatedCluster) -> None:
    """Its fetch session has the partition since it was open."""

    async def read(client: Client) -> None:
        opened = await client.fetch({("t", 2): 0}, session=(0, 0))
        retiring = asyncio.get_running_loop().create_task(retire_on_its_leader())
        epoch, codes = 1, set[int]()
        while ErrorCode.UNKNOWN_TOPIC_OR_PARTITION not in codes:
            response = await client.fetch({}, session=(opened.session_id, epoch), max_wait_ms=500)
            assert response.error_code == 0
            epoch += 1
            codes |= {row.error_code for topic in response.responses for row in topic.partitions}
            assert not retiring.done() or s.replica(3, index=2).is_retired
        await retiring

    async def retire_on_its_leader() -> None:
        s.replica(3, index=2).apply_registration(retired, 3, 0)

    await s.create(*ASSIGNMENT)
    registration = s.registration(3, index=2)
    retired = replace(
        registration,
        partition_epoch=registration.partition_epoch + 1,
        forwarding=Forwarding(registration.leader_epoch, 0, is_retired=True),
    )
    await asyncio.wait_for(s.client(3, read), 60)


@simulated(SimulatedCluster, range(2))
async def test_idle_retired_partitions_are_removed(s: SimulatedCluster) -> None:
    altering = s.broker(s.controller).services.controller.alter_configs(
        ConfigResourceType.BROKER, "", {"kbroker.retired.partition.idle.ms": str(IDLE_MS)}
    )
    await s.machines[s.controller].loop.run(altering)
    await retire(s)
    for sequence in range(1, 6):
        await asyncio.sleep(IDLE_MS / 2000)
        await produce(s, idempotent(b"%d" % sequence, sequence), 2)
    assert is_retired(s.registration(1, index=2))
    await s.until(lambda: all(len(s.broker(n).services.metadata.topics["t"].partitions) == 1 for n in s.machines), 120)
    assert await visible(s, 0) == [b"%d" % sequence for sequence in range(1, 6)]
    assert await create(s, ALL) is None


@simulated(SimulatedCluster, range(2))
async def test_retired_partitions_are_opened_again(s: SimulatedCluster) -> None:
    await retire(s)
    await produce(s, idempotent(b"hidden", 1), 1)
    error = await create(s, 2, [[2, 3]])
    assert error is not None
    assert error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await create(s, 2) is None
    await until_applied(s, 1, is_active=False)
    await produce(s, idempotent(b"hidden", 1), 1)  # a retry of what was hidden
    await produce(s, idempotent(b"visible", 2), 1)
    await until_forwarded(s, 0, [b"hidden"])
    assert await visible(s, 1) == [b"visible"]
    assert await s.client(1, listed) == 2
    # With all that the topic ever had, and one more.
    assert await create(s, ALL + 1) is None
    await s.until(lambda: all(len(s.broker(n).services.metadata.topics["t"].partitions) == 4 for n in s.machines), 60)
    await until_applied(s, 2, is_active=False)
    await produce(s, idempotent(b"again", 1), 2)
    assert await visible(s, 2) == [b"again"]
    assert await s.client(1, listed) == 4


@simulated(SimulatedCluster, range(1))
async def test_retired_partitions_count_as_removed(s: SimulatedCluster) -> None:
    await retire(s)
    for count in (LISTED, ALL):
        response = await alter(s, count)
        assert response.error_code == ErrorCode.INVALID_PARTITIONS
        assert response.error_message == "Topic already has 1 partition(s)."
    error = await create(s, LISTED)
    assert error is not None
    assert error.message == "Topic already has 1 partition(s)."
    assert await create(s, 2) is None
    # Partition 2 has remained retired.
    await until_applied(s, 1, is_active=False)
    await produce(s, idempotent(b"visible", 1), 1)
    assert (await alter(s, 1)).outcome == CLOSING
    assert is_retired(s.registration(1, index=2))
    assert (await alter(s, 2)).outcome == REOPENED
    await s.until(lambda: visible_partitions(s) == {2}, 60)
    await produce(s, idempotent(b"hidden", 1), 2)
    await until_forwarded(s, 0, [b"hidden"])
    assert await visible(s, 1) == [b"visible"]


def visible_partitions(s: SimulatedCluster) -> set[int]:
    return {s.broker(node_id).services.metadata.topics["t"].listed_partitions for node_id in s.machines}


@simulated(SimulatedCluster, range(2))
async def test_empty_partitions_retire_at_once(s: SimulatedCluster) -> None:
    """One after the other: the records for all of them are forwarded."""
    await s.create(*ASSIGNMENT)
    for count in (2, 1):
        response = await alter(s, count)
        assert (response.error_code, response.outcome) == (0, REMOVED)
        await s.until(lambda count=count: visible_partitions(s) == {count}, 60)
    await produce(s, idempotent(b"for 1", 0), 1)
    await produce(s, idempotent(b"for 2", 0), 2)
    async with asyncio.timeout(60):
        while sorted(await visible(s, 0)) != [b"for 1", b"for 2"]:
            await asyncio.sleep(0.2)


@simulated(SimulatedCluster, range(1))
async def test_the_target_of_a_retired_partition_remains(s: SimulatedCluster) -> None:
    await s.create([1, 2], [2, 3], [3, 1], [1, 2])
    assert (await alter(s, 2)).outcome == REMOVED
    response = await alter(s, 1)
    assert response.error_code == ErrorCode.INVALID_PARTITIONS
    assert response.error_message == "Partition 3 has forwarded records to 1, so at least 2 must remain."
