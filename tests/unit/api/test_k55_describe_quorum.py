"""DescribeQuorum: the controller as leader, the brokers as voters, and unknown partitions."""

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.metadata.image import BrokerRegistration
from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import ApiKey
from protocol.messages.k55_describe_quorum import (
    Listener,
    Node,
    PartitionData,
    PartitionRequest,
    ReplicaState,
    TopicRequest,
)
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers
from tests.unit.support.memory_disk import MemoryDisk

METADATA = ("__cluster_metadata", [0])
UNKNOWN = 3

RequestedTopic = tuple[str, list[int]]


async def describe(handlers: Handlers, version: int, *topics: RequestedTopic) -> Any:
    rows = [
        TopicRequest(topic_name=name, partitions=[PartitionRequest(partition_index=index) for index in indexes])
        for name, indexes in topics
    ]
    response = await handlers.request(ApiKey.DESCRIBE_QUORUM, version, topics=rows)
    assert (response.error_code, response.error_message) == (0, "")
    return response


async def quorum(handlers: Handlers, version: int = 2) -> PartitionData:
    (topic,) = (await describe(handlers, version, METADATA)).topics
    assert topic.topic_name == "__cluster_metadata"
    (partition,) = topic.partitions
    return partition  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", range(3))
@async_test
async def test_a_broker_alone_is_the_leader_and_only_voter(version: int):
    handlers = await start_handlers()
    await handlers.member.controller.topics.create_topics([NewTopic("t", 1)], False)
    now_ms = handlers.services.environment.clock.now_ms() if version >= 1 else -1
    leader = ReplicaState(replica_id=1, log_end_offset=2, last_fetch_timestamp=now_ms, last_caught_up_timestamp=now_ms)
    assert await quorum(handlers, version) == PartitionData(
        leader_id=1, leader_epoch=1, high_watermark=2, current_voters=[leader]
    )


@async_test
async def test_registered_brokers_are_the_voters():
    handlers = await start_handlers()
    image = handlers.member.image
    image.brokers[3] = BrokerRegistration(3, "host-3", 9093)
    image.brokers[2] = BrokerRegistration(2, "host-2", 9092)
    image.fenced_brokers[4] = BrokerRegistration(4, "host-4", 9092)
    partition = await quorum(handlers)
    assert partition.leader_id == 1
    assert [voter.replica_id for voter in partition.current_voters] == [1, 2, 3]
    assert {voter.log_end_offset for voter in partition.current_voters} == {partition.high_watermark}
    assert partition.observers == []
    nodes = (await describe(handlers, 2, METADATA)).nodes
    assert [(node.node_id, node.listeners[0].host, node.listeners[0].port) for node in nodes] == [
        (1, "127.0.0.1", 9092), (2, "host-2", 9092), (3, "host-3", 9093),
    ]  # fmt: skip


@async_test
async def test_the_node_has_the_advertised_listener():
    handlers = await start_handlers()
    assert (await describe(handlers, 2, METADATA)).nodes == [
        Node(node_id=1, listeners=[Listener(name="PLAINTEXT", host="127.0.0.1", port=9092)])
    ]
    assert (await describe(handlers, 1, METADATA)).nodes == []


@async_test
async def test_the_offsets_count_changes_and_the_epoch_counts_starts():
    disk = MemoryDisk()
    handlers = await start_handlers(disk)
    # The first change is the broker's registration.
    assert (await quorum(handlers)).high_watermark == 1
    await handlers.member.controller.topics.create_topics([NewTopic("t", 1)], False)
    await handlers.member.controller.topics.create_topics([NewTopic("u", 1)], True)
    assert (await quorum(handlers)).high_watermark == 2
    await handlers.store.close()
    restarted = await quorum(await start_handlers(disk))
    # At the restart the broker was registered again, and the topic's partition got a new leader epoch.
    assert (restarted.leader_epoch, restarted.high_watermark, restarted.current_voters[0].log_end_offset) == (2, 3, 3)


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(
    "topics",
    [
        [],
        [("__cluster_metadata", [])],
        [("__cluster_metadata", [1])],
        [("__cluster_metadata", [0, 1])],
        [("__cluster_metadata", [0, 0])],
        [METADATA, METADATA],
        [METADATA, ("t", [0])],
        [("t", []), ("", [0, -1])],
    ],
)
@async_test
async def test_other_partitions_are_unknown(version: int, topics: list[RequestedTopic]):
    response = await describe(await start_handlers(), version, *topics)
    assert response.nodes == []
    text = "This server does not host this topic-partition." if version >= 2 else ""
    assert [(topic.topic_name, topic.partitions) for topic in response.topics] == [
        (name, [PartitionData(partition_index=index, error_code=UNKNOWN, error_message=text) for index in indexes])
        for name, indexes in topics
    ]


@pytest.mark.parametrize("version", range(3))
@async_test
async def test_a_broker_that_is_not_the_controller_is_not_the_leader(version: int):
    handlers = await start_handlers()
    handlers.services.controller = SimpleNamespace(is_elected=False)
    partition = await quorum(handlers, version)
    assert (partition.partition_index, partition.error_code, partition.current_voters) == (0, 6, [])
