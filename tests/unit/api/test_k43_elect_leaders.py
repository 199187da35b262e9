"""ElectLeaders: the results per partition, and the versions."""

from typing import Any

import pytest

from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k43_elect_leaders import TopicPartitions
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers
from tests.unit.support.memory_disk import settle

Codes = list[tuple[str, int, int]]


async def elect(
    handlers: Handlers, version: int, *requested: tuple[str, list[int]], **fields: Any
) -> tuple[int, Codes]:
    topics = [TopicPartitions(topic=name, partitions=partitions) for name, partitions in requested]
    response = await handlers.request(ApiKey.ELECT_LEADERS, version, topic_partitions=topics, **fields)
    return response.error_code, codes(response)


def codes(response: Any) -> Codes:
    return [
        (topic.topic, partition.partition_id, partition.error_code)
        for topic in response.replica_election_results
        for partition in topic.partition_result
    ]


async def two_brokers() -> Handlers:
    """Return the handlers of broker 1, which leads all partitions of topic t; the preferred leader of t-0 is 2."""
    handlers = await start_handlers()
    other = await handlers.join(2)
    await settle()
    topic = NewTopic("t", assignments=[(0, [2, 1]), (1, [1, 2])])
    await handlers.member.controller.topics.create_topics([topic], False)
    await other.leave()
    await settle()
    await handlers.join(2)
    await settle()
    return handlers


@pytest.mark.parametrize("version", range(3))
@async_test
async def test_partitions_of_a_lone_broker_need_no_election(version: int):
    handlers = await start_handlers()
    await handlers.member.controller.topics.create_topics([NewTopic("t", 2)], False)
    needless, unknown = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await elect(handlers, version, ("t", [1, 7]), ("u", [0])) == (
        0,
        [("t", 1, needless), ("t", 7, unknown), ("u", 0, unknown)],
    )
    response = await handlers.request(ApiKey.ELECT_LEADERS, version, topic_partitions=None)
    assert codes(response) == []


@async_test
async def test_the_preferred_leader_must_be_in_sync():
    handlers = await two_brokers()
    assert await elect(handlers, 2, ("t", [0])) == (0, [("t", 0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE)])
    partition = handlers.member.image.topics["t"].partitions[0]
    assert (partition.leader, partition.isr) == (1, [1])


@async_test
async def test_a_leader_that_is_not_in_sync_is_elected_on_request():
    handlers = await two_brokers()
    controller = handlers.member.controller
    await controller.topics.create_topics([NewTopic("u", assignments=[(0, [2])])], False)
    epoch = handlers.member.image.brokers[2].epoch
    await controller.replication.controlled_shutdown(2, epoch)
    assert handlers.member.image.topics["u"].partitions[0].leader == -1
    unavailable = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert await elect(handlers, 2, ("u", [0]), election_type=1) == (0, [("u", 0, unavailable)])
    assert await elect(handlers, 2, ("t", [0]), election_type=1) == (0, [("t", 0, ErrorCode.ELECTION_NOT_NEEDED)])


@async_test
async def test_errors_of_the_request():
    handlers = await start_handlers()
    invalid, elsewhere = ErrorCode.INVALID_REQUEST, ErrorCode.NOT_CONTROLLER
    assert await elect(handlers, 2, ("t", [0]), election_type=2) == (invalid, [("t", 0, invalid)])
    handlers.member.controller.resign()
    assert await elect(handlers, 2, ("t", [0])) == (elsewhere, [("t", 0, elsewhere)])
    assert await elect(handlers, 0, ("t", [0])) == (0, [("t", 0, elsewhere)])
