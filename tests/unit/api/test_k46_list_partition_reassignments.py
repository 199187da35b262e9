"""ListPartitionReassignments: the list is always empty."""

import pytest

from kbroker.metadata.topics.create_topics import NewTopic
from protocol.apis import ApiKey
from protocol.messages.k46_list_partition_reassignments import ListPartitionReassignmentsTopics
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers


@pytest.mark.parametrize("names", [None, [], ["t"], ["unknown"], ["a b", ""], ["t", "t"]])
@async_test
async def test_no_partition_is_reassigned(names: list[str] | None):
    handlers = await start_handlers()
    await handlers.member.controller.create_topics([NewTopic("t", 1)], False)
    topics = names and [ListPartitionReassignmentsTopics(name=name, partition_indexes=[0, 9, -1]) for name in names]
    response = await handlers.request(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=topics)
    assert (response.throttle_time_ms, response.error_code, response.error_message) == (0, 0, None)
    assert response.topics == []
