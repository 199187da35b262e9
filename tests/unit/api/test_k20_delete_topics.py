"""DeleteTopics by name and by id. Its errors are in tests/unit/metadata/topics/test_delete_topics.py."""

from typing import Any

import pytest

from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import ApiKey
from protocol.messages.k20_delete_topics import DeleteTopicState
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers


async def with_topics(**configs: str) -> Handlers:
    handlers = await start_handlers(**configs)
    await handlers.member.controller.topics.create_topics([NewTopic("t1"), NewTopic("t2")], False)
    return handlers


def results(response: Any) -> list[tuple[str | None, int, str | None]]:
    return [(row.name, row.error_code, row.error_message) for row in response.responses]


@pytest.mark.parametrize("version", range(1, 6))
@async_test
async def test_by_name(version: int):
    handlers = await with_topics()
    response = await handlers.request(ApiKey.DELETE_TOPICS, version, topic_names=["t1", "nope"])
    message = "This server does not host this topic-partition." if version >= 5 else None
    assert results(response) == [("t1", 0, None), ("nope", 3, message)]
    assert set(handlers.member.image.topics) == {"t2"}


@async_test
async def test_by_name_or_id():
    handlers = await with_topics()
    first, second = (handlers.member.image.topics[name].topic_id for name in ("t1", "t2"))
    topics = [DeleteTopicState(name="t1"), DeleteTopicState(topic_id=second)]
    response = await handlers.request(ApiKey.DELETE_TOPICS, 6, topics=topics)
    assert {(row.name, row.topic_id, row.error_code) for row in response.responses} == {
        ("t1", first, 0),
        ("t2", second, 0),
    }
    assert handlers.member.image.topics == {}


@async_test
async def test_deletion_can_be_disabled():
    handlers = await with_topics(delete_topic_enable="false")
    response = await handlers.request(ApiKey.DELETE_TOPICS, 5, topic_names=["t1"])
    assert results(response) == [("t1", 73, "Topic deletion is disabled.")]
    assert len(handlers.member.image.topics) == 2
