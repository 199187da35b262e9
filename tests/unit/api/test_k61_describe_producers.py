"""DescribeProducers: idempotent producers of a partition."""

from typing import Any

from kbroker.common import TopicPartition
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
async def test_producers_of_a_partition():
    handlers = await start_handlers()
    await handlers.member.controller.topics.create_topics([NewTopic("t", 1)], False)
    producers = handlers.replicas.add("t", 0).log.producers
    for base, sequence in ((0, 0), (3, 3)):
        batch = build_batch(
            [(0, None, b"x", [])] * 3, base_offset=base, producer_id=7, producer_epoch=2, base_sequence=sequence
        )
        producers.update(parse_header(batch, 0), base)
    (row,) = await describe(handlers, "t", 0)
    (producer,) = row.active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 2, 5)
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, -1)


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
async def test_errors():
    handlers = await start_handlers()
    await handlers.member.controller.topics.create_topics([NewTopic("t", 1)], False)
    handlers.replicas.add("t", 0)
    (unknown,) = await describe(handlers, "nope", 0)
    assert (unknown.error_code, unknown.error_message) == (3, "This server does not host this topic-partition.")
    empty, absent = await describe(handlers, "t", 0, 9)
    assert (empty.error_code, empty.error_message, empty.active_producers) == (0, None, [])
    assert (absent.partition_index, absent.error_code) == (9, 3)
    (invalid,) = await describe(handlers, "a b", 0)
    assert invalid.error_code == 17
    assert invalid.error_message.startswith("Topic name is invalid: 'a b'")
    assert TopicPartition("a b", 0) not in handlers.replicas.partitions


@async_test
async def test_an_invalid_name_is_not_repeated_for_each_partition():
    handlers = await start_handlers()
    rows = await describe(handlers, "a b" * 10_000, *range(1000))
    assert {row.error_code for row in rows} == {17}
    assert max(len(row.error_message) for row in rows) < 500
