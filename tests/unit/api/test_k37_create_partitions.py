"""CreatePartitions in all versions. Its errors are in tests/unit/metadata/topics/test_create_partitions.py."""

import pytest

from kbroker.metadata.topics.create_topics import NewTopic
from protocol.apis import ApiKey
from protocol.messages.k37_create_partitions import CreatePartitionsAssignment, CreatePartitionsTopic
from tests.unit.support.handlers import run, start_handlers


@pytest.mark.parametrize("version", range(4))
@pytest.mark.parametrize("validate_only", [False, True])
def test_topics_grow(version: int, validate_only: bool):
    async def story():
        handlers = await start_handlers()
        await handlers.member.controller.create_topics([NewTopic("a", 1), NewTopic("b", 1), NewTopic("c", 1)], False)
        topics = [
            CreatePartitionsTopic(name="a", count=3, assignments=None),
            CreatePartitionsTopic(name="b", count=2, assignments=[CreatePartitionsAssignment(broker_ids=[1])]),
            CreatePartitionsTopic(name="c", count=1, assignments=None),
        ]
        answer = await handlers.request(
            ApiKey.CREATE_PARTITIONS, version, topics=topics, timeout_ms=1000, validate_only=validate_only
        )
        assert [(row.name, row.error_code, row.error_message) for row in answer.results] == [
            ("a", 0, None),
            ("b", 0, None),
            ("c", 37, "Topic already has 1 partition(s)."),
        ]
        counts = [len(topic.partitions) for topic in handlers.member.image.topics.values()]
        assert counts == ([1, 1, 1] if validate_only else [3, 2, 1])

    run(story)
