"""CreatePartitions in all versions. Its errors are in tests/unit/metadata/topics/test_create_topics.py."""

import pytest

from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import ApiKey
from protocol.messages.k37_create_partitions import CreatePartitionsAssignment, CreatePartitionsTopic
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("validate_only", [False, True])
@async_test
async def test_partitions_are_added(version: int, validate_only: bool):
    handlers = await start_handlers()
    await handlers.member.controller.topics.create_topics([NewTopic("a", 1), NewTopic("b", 1), NewTopic("c", 1)], False)
    topics = [
        CreatePartitionsTopic(name="a", count=3, assignments=None),
        CreatePartitionsTopic(name="b", count=2, assignments=[CreatePartitionsAssignment(broker_ids=[1])]),
        CreatePartitionsTopic(name="c", count=1, assignments=None),
    ]
    response = await handlers.request(
        ApiKey.CREATE_PARTITIONS, version, topics=topics, timeout_ms=1000, validate_only=validate_only
    )
    assert [(row.name, row.error_code, row.error_message) for row in response.results] == [
        ("a", 0, None),
        ("b", 0, None),
        ("c", 37, "Topic already has 1 partition(s)."),
    ]
    counts = [len(topic.partitions) for topic in handlers.member.image.topics.values()]
    assert counts == ([1, 1, 1] if validate_only else [3, 2, 1])
