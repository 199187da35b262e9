"""AlterPartition: the controller's responses to leaders."""

from typing import Any

from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k56_alter_partition import (
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponsePartition,
    BrokerState,
)
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers
from tests.unit.support.memory_disk import settle


async def alter(handlers: Handlers, topic_id: bytes, isr: list[int], epoch: int, peer: tuple[int, int] | None) -> Any:
    partition = AlterPartitionRequestPartition(
        partition_index=0, new_isr_with_epochs=[BrokerState(broker_id=id) for id in isr], partition_epoch=epoch
    )
    topic = AlterPartitionRequestTopic(topic_id=topic_id, partitions=[partition])
    return await handlers.request(
        ApiKey.ALTER_PARTITION, 3, peer_broker=peer, broker_id=1, broker_epoch=1, topics=[topic]
    )


@async_test
async def test_a_leader_removes_a_follower_and_adds_it_again():
    handlers = await start_handlers()
    await handlers.join(2)
    await settle()
    topic = NewTopic("t", assignments=[(0, [1, 2])])
    (result,) = await handlers.member.controller.topics.create_topics([topic], False)
    shrunk = await alter(handlers, result.topic_id, [1], 0, (1, 1))
    assert shrunk.topics[0].partitions == [
        AlterPartitionResponsePartition(partition_index=0, leader_id=1, isr=[1], partition_epoch=1)
    ]
    assert handlers.member.image.topics["t"].partitions[0].isr == [1]
    repeated = await alter(handlers, result.topic_id, [1], 0, (1, 1))
    assert repeated.topics[0].partitions[0].error_code == ErrorCode.INVALID_UPDATE_VERSION
    expanded = await alter(handlers, result.topic_id, [1, 2], 1, (1, 1))
    assert (expanded.topics[0].partitions[0].isr, expanded.topics[0].partitions[0].partition_epoch) == ([1, 2], 2)


@async_test
async def test_errors_of_the_request_and_of_partitions():
    handlers = await start_handlers()
    unknown = await alter(handlers, bytes(16), [1], 0, (1, 1))
    assert unknown.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    # Another broker may relay it.
    relayed = await alter(handlers, bytes(16), [1], 0, (2, 1))
    assert relayed.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    handlers.member.broker_epoch = 7
    response = await handlers.request(
        ApiKey.ALTER_PARTITION, 3, peer_broker=(1, 7), broker_id=1, broker_epoch=7, topics=[]
    )
    assert response.error_code == ErrorCode.STALE_BROKER_EPOCH
    handlers.member.controller.resign()
    assert (await alter(handlers, bytes(16), [1], 0, (1, 1))).error_code == ErrorCode.NOT_CONTROLLER
