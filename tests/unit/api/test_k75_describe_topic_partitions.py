"""DescribeTopicPartitions, against the pages of a single-node Apache Kafka 4.3.1."""

from typing import Any

import pytest

from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import ApiKey
from protocol.messages.k75_describe_topic_partitions import Cursor, TopicRequest
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers

# Topic t1 has two partitions, t2 one.
PAGES: list[tuple[list[str], dict[str, Any], tuple[str, int] | None, list[tuple[str, int, list[int]]], Any]] = [
    (["t2", "t1"], {}, None, [("t1", 0, [0, 1]), ("t2", 0, [0])], None),
    ([], {}, None, [("t1", 0, [0, 1]), ("t2", 0, [0])], None),
    (["t1", "t1"], {}, None, [("t1", 0, [0, 1])], None),
    (["nope", "t1"], {}, None, [("nope", 3, []), ("t1", 0, [0, 1])], None),
    (["a b", ""], {}, None, [("", 17, []), ("a b", 17, [])], None),
    (["t1", "t2"], {"limit": 1}, None, [("t1", 0, [0])], ("t1", 1)),
    (["t1", "t2"], {"limit": 2}, None, [("t1", 0, [0, 1])], ("t2", 0)),
    (["t1", "t2"], {"limit": 0}, None, [("t1", 0, [0])], ("t1", 1)),
    (["t1", "t2"], {"limit": -1}, None, [("t1", 0, [0])], ("t1", 1)),
    (["t1", "t2"], {"limit": 5000}, None, [("t1", 0, [0, 1]), ("t2", 0, [0])], None),
    (["nope", "t1"], {"limit": 1}, None, [("nope", 3, []), ("t1", 0, [0])], ("t1", 1)),
    (["t1", "t2"], {}, ("t1", 1), [("t1", 0, [1]), ("t2", 0, [0])], None),
    (["t1", "t2"], {}, ("t1", 2), [("t1", 0, []), ("t2", 0, [0])], None),
    (["t1", "t2"], {}, ("t1a", 0), [("t1", 42, []), ("t2", 42, [])], None),
    (["t1", "nope", "t2"], {}, ("nope", 1), [("nope", 3, []), ("t1", 0, [0, 1]), ("t2", 0, [0])], None),
    (["t1", "t2"], {}, ("t1", -1), [("t1", 42, []), ("t2", 42, [])], None),
    ([], {"limit": 1}, ("t1", 1), [("t1", 0, [1])], ("t2", 0)),
    ([], {}, ("t1a", 7), [("t2", 0, [0])], None),
]


async def with_topics(**configs: str) -> Handlers:
    handlers = await start_handlers(**configs)
    await handlers.member.controller.topics.create_topics([NewTopic("t2", 1), NewTopic("t1", 2)], False)
    return handlers


async def describe(handlers: Handlers, names: list[str], cursor: tuple[str, int] | None, limit: int = 2000) -> Any:
    return await handlers.request(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=cursor and Cursor(topic_name=cursor[0], partition_index=cursor[1]),
    )


@pytest.mark.parametrize(("names", "limits", "cursor", "page", "next_cursor"), PAGES)
@async_test
async def test_pages(names: list[str], limits: dict[str, int], cursor: Any, page: Any, next_cursor: Any):
    response = await describe(await with_topics(), names, cursor, **limits)
    topics = [(t.name, t.error_code, [p.partition_index for p in t.partitions]) for t in response.topics]
    assert topics == page
    cursor = response.next_cursor
    assert (cursor and (cursor.topic_name, cursor.partition_index)) == next_cursor


@async_test
async def test_the_broker_limits_the_size_of_a_page():
    response = await describe(await with_topics(max_request_partition_size_limit="1"), [], None, 2000)
    assert response.next_cursor == Cursor(topic_name="t1", partition_index=1)


@async_test
async def test_the_fields_of_a_topic_and_its_partitions():
    handlers = await with_topics()
    (topic,) = (await describe(handlers, ["t2"], None)).topics
    assert topic.topic_id == handlers.member.image.topics["t2"].topic_id
    assert topic.topic_authorized_operations == 3576
    (partition,) = topic.partitions
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 1, 0)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1], [1], [])
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
