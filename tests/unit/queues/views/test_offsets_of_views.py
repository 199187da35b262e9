"""Committed offsets of a view: they are not those of its source, and removed partitions lose theirs."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from kbroker.common import TopicPartition
from kbroker.coordinator.group.records import OffsetAndMetadata
from kbroker.metadata.image import Forwarding, MetadataDelta, PartitionChange
from protocol.errors import ErrorCode
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from protocol.messages.k09_offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k11_classic_groups import SyncGroupRequest
from protocol.messages.k47_offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tests.unit.support.group_coordinator import Harness
from tests.unit.support.simulated_broker import Machine, broker_test
from tests.unit.support.views import create_view, delete


@pytest.fixture
def broker() -> Iterator[Harness]:
    """A group coordinator that knows a topic "orders" of three partitions and its view "paid"."""
    harness = Harness()
    harness.create_topic("orders", 3)
    view = replace(harness.metadata.topics["orders"], name="paid", topic_id=b"v" * 16, partitions=[])
    view.configs = {"kbroker.view.of": "orders"}
    harness.run(harness.on_delta(MetadataDelta(created=[view])))
    yield harness
    harness.close()


def retire_the_last_partition(broker: Harness) -> None:
    topic = broker.metadata.topics["orders"]
    retired = replace(topic.partitions[2], forwarding=Forwarding(1, 0, is_retired=True))
    change = PartitionChange(TopicPartition("orders", 2), topic.topic_id, topic.partitions[2], retired)
    changed = replace(topic, partitions=[*topic.partitions[:2], retired])
    broker.run(broker.on_delta(MetadataDelta(updated=[changed], partitions=[change])))
    broker.loop.run_ready()


def remove_the_last_partition(broker: Harness) -> None:
    topic = broker.metadata.topics["orders"]
    shrunk = replace(topic, partitions=topic.partitions[:2], removed_from=2, removed_to=3)
    change = PartitionChange(TopicPartition("orders", 2), topic.topic_id, topic.partitions[2], None)
    broker.run(broker.on_delta(MetadataDelta(updated=[shrunk], partitions=[change])))
    broker.loop.run_ready()


def test_offsets_of_a_view_are_deleted_one_by_one(broker: Harness) -> None:
    for index in range(3):
        broker.commit_offset("paid", index, OffsetAndMetadata(7))
    rows = [OffsetDeleteRequestPartition(partition_index=index) for index in (1, 3, -1)]
    topics = [OffsetDeleteRequestTopic(name="paid", partitions=rows)]
    response = broker.call(OffsetDeleteRequest(group_id="g", topics=topics), 0)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [row.error_code for row in response.topics[0].partitions] == [0, unknown, unknown]
    assert list(broker.committed_offsets()["paid"]) == [0, 2]


@pytest.mark.parametrize("remove", [remove_the_last_partition, retire_the_last_partition])
def test_offsets_of_removed_partitions_are_deleted_in_views_too(
    broker: Harness, remove: Callable[[Harness], None]
) -> None:
    """Partitions with these numbers may be added again: the group would then begin in the middle of them."""
    for topic in ("orders", "paid"):
        for index in (1, 2):
            broker.commit_offset(topic, index, OffsetAndMetadata(7))
    remove(broker)
    assert {topic: list(offsets) for topic, offsets in broker.committed_offsets().items()} == {
        "orders": [1],
        "paid": [1],
    }


@pytest.mark.parametrize("remove", [remove_the_last_partition, retire_the_last_partition])
def test_members_that_read_a_view_may_commit_removed_partitions(
    broker: Harness, remove: Callable[[Harness], None]
) -> None:
    """As for the source: kafka-python and the Java client repeat a commit that fails for minutes before they rejoin."""
    member_id = broker.join_group()
    broker.call(SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id), 3)
    remove(broker)

    rows = [OffsetCommitRequestPartition(partition_index=index, committed_offset=7) for index in (1, 2, 3)]
    topics = [OffsetCommitRequestTopic(name="paid", partitions=rows)]
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=1, member_id=member_id, topics=topics)
    response = broker.call(request, 8)
    errors = [row.error_code for row in response.topics[0].partitions]
    assert errors == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert list(broker.committed_offsets()["paid"]) == [1]


@broker_test
async def test_groups_commit_offsets_of_a_view(m: Machine) -> None:
    client = await m.client()
    await client.create_topic("orders", 2)
    await create_view(client)

    def commit(topic: str, *partitions: int) -> OffsetCommitRequest:
        rows = [OffsetCommitRequestPartition(partition_index=index, committed_offset=7) for index in partitions]
        return OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name=topic, partitions=rows)])

    async def committed(topic: str) -> list[int]:
        topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1])]
        request = OffsetFetchRequest(group_id="g", topics=topics)
        response = await client.request(request, 7, OffsetFetchResponse)
        while response.error_code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
            await asyncio.sleep(0.1)
            response = await client.request(request, 7, OffsetFetchResponse)
        assert response.error_code == 0
        return [partition.committed_offset for partition in response.topics[0].partitions]

    find = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    while (await client.request(find, 4, FindCoordinatorResponse)).coordinators[0].error_code:
        await asyncio.sleep(0.1)
    while True:
        response = await client.request(commit("paid", 1, 2), 8, OffsetCommitResponse)
        codes = [partition.error_code for partition in response.topics[0].partitions]
        if ErrorCode.COORDINATOR_LOAD_IN_PROGRESS not in codes and ErrorCode.NOT_COORDINATOR not in codes:
            break
        await asyncio.sleep(0.1)
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert await committed("paid") == [-1, 7]
    # Those of the source are others.
    assert await committed("orders") == [-1, -1]
    await m.restart()
    client = await m.client()
    while (await client.request(find, 4, FindCoordinatorResponse)).coordinators[0].error_code:
        await asyncio.sleep(0.1)
    assert await committed("paid") == [-1, 7]
    # They end with the view, and not with the source's other views.
    await delete(client, "paid")
    await create_view(client)
    assert await committed("paid") == [-1, -1]
