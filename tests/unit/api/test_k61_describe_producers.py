"""DescribeProducers beyond the story of tests/compat/wire."""

from typing import Any

from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import ApiKey
from protocol.messages.k61_describe_producers import TopicRequest
from protocol.records.batch import build_batch, parse_header
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers


async def describe(handlers: Handlers, topic: str, *indexes: int) -> list[Any]:
    topics = [TopicRequest(name=topic, partition_indexes=list(indexes))]
    (response,) = (await handlers.request(ApiKey.DESCRIBE_PRODUCERS, 0, topics=topics)).topics
    assert response.name == topic
    return list(response.partitions)


@async_test
async def test_a_follower_responds_with_the_producers_of_its_log():
    """As in Kafka. Else `kafka-transactions find-hanging --broker-id` ends at the first partition that others lead."""
    handlers = await start_handlers()
    await handlers.member.controller.topics.create_topics([NewTopic("t", 1)], False)
    partition = handlers.replicas.add("t", 0)
    partition.is_leader = False
    batch = build_batch([(0, None, b"x", [])], base_offset=0, producer_id=7, producer_epoch=2, base_sequence=0)
    partition.log.producers.update(parse_header(batch, 0), 0)
    (row,) = await describe(handlers, "t", 0)
    assert (row.error_code, [producer.producer_id for producer in row.active_producers]) == (0, [7])


@async_test
async def test_an_invalid_name_is_not_repeated_for_each_partition():
    handlers = await start_handlers()
    rows = await describe(handlers, "a b" * 10_000, *range(1000))
    assert {row.error_code for row in rows} == {17}
    assert max(len(row.error_message) for row in rows) < 500
