"""DeleteTopics beyond the story of tests/compat/wire. Its errors are in tests/unit/metadata/topics/."""

import pytest

from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import ApiKey
from protocol.messages.k20_delete_topics import DeleteTopicState
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers


@pytest.mark.parametrize("version", [5, 6])
@async_test
async def test_deletion_can_be_disabled(version: int):
    handlers = await start_handlers(delete_topic_enable="false")
    await handlers.member.controller.topics.create_topics([NewTopic("t")], False)
    fields = {"topic_names": ["t"]} if version < 6 else {"topics": [DeleteTopicState(name="t")]}
    response = await handlers.request(ApiKey.DELETE_TOPICS, version, **fields)
    results = [(row.name, row.error_code, row.error_message) for row in response.responses]
    assert results == [("t", 73, "Topic deletion is disabled.")]
    assert set(handlers.member.image.topics) == {"t"}
