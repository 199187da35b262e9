"""AlterPartitionReassignments: the results per partition, and the versions."""

from typing import Any

import pytest

from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k45_partition_reassignments import ReassignablePartition, ReassignableTopic
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers
from tests.unit.support.memory_disk import settle

Targets = dict[int, list[int] | None]
INVALID, UNKNOWN = ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def two_brokers() -> Handlers:
    handlers = await start_handlers()
    await handlers.join(2)
    await settle()
    topic = NewTopic("t", assignments=[(0, [1]), (1, [1])])
    await handlers.member.controller.topics.create_topics([topic], False)
    return handlers


async def alter(handlers: Handlers, version: int, *requested: tuple[str, Targets], **fields: Any) -> Any:
    topics = [
        ReassignableTopic(
            name=name,
            partitions=[
                ReassignablePartition(partition_index=index, replicas=target) for index, target in rows.items()
            ],
        )
        for name, rows in requested
    ]
    return await handlers.request(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, topics=topics, **fields)


def codes(response: Any) -> list[tuple[str, int, int]]:
    return [
        (topic.name, row.partition_index, row.error_code) for topic in response.responses for row in topic.partitions
    ]


@pytest.mark.parametrize("version", range(2))
@async_test
async def test_each_partition_has_its_result(version: int):
    handlers = await two_brokers()
    response = await alter(handlers, version, ("t", {0: [2, 1], 1: [9], 7: [1]}), ("u", {0: None}))
    assert (response.error_code, response.error_message) == (0, None)
    assert codes(response) == [("t", 0, 0), ("t", 1, INVALID), ("t", 7, UNKNOWN), ("u", 0, UNKNOWN)]
    assert response.responses[0].partitions[0].error_message is None
    assert response.responses[0].partitions[1].error_message == (
        "The manual partition assignment includes broker 9, but no such broker is registered."
    )
    partition = handlers.member.image.topics["t"].partitions[0]
    assert (partition.replicas, partition.adding_replicas) == ([2, 1], [2])
    response = await alter(handlers, version, ("t", {0: None, 1: None}))
    assert codes(response) == [("t", 0, 0), ("t", 1, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)]
    assert handlers.member.image.topics["t"].partitions[0].replicas == [1]


@async_test
async def test_version_1_can_refuse_another_replication_factor():
    handlers = await two_brokers()
    response = await alter(handlers, 1, ("t", {0: [2], 1: [2, 1]}), allow_replication_factor_change=False)
    assert codes(response) == [("t", 0, 0), ("t", 1, ErrorCode.INVALID_REPLICATION_FACTOR)]
    assert not response.allow_replication_factor_change
    assert (await alter(handlers, 1)).allow_replication_factor_change


@async_test
async def test_requests_that_change_nothing():
    handlers = await two_brokers()
    # As in Apache Kafka, the message of an empty response is not null.
    assert (await alter(handlers, 1)).error_message == ""
    for timeout_ms in (0, -1):
        response = await alter(handlers, 1, ("t", {0: [2]}), timeout_ms=timeout_ms)
        assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert codes(response) == [("t", 0, ErrorCode.REQUEST_TIMED_OUT)]
    assert handlers.member.image.topics["t"].partitions[0].adding_replicas == []


@async_test
async def test_a_broker_that_is_not_the_controller_changes_nothing():
    handlers = await two_brokers()
    handlers.member.controller.resign()
    response = await alter(handlers, 1, ("t", {0: [2]}))
    assert response.error_code == ErrorCode.NOT_CONTROLLER
    assert codes(response) == [("t", 0, ErrorCode.NOT_CONTROLLER)]
