"""ListPartitionReassignments: the partitions that are being moved, and no errors for those that do not exist."""

import pytest

from kbroker.metadata.replication.partition_requests import RequestedReassignment
from kbroker.metadata.topics.topic_requests import NewTopic
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k45_partition_reassignments import ListPartitionReassignmentsTopics
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers
from tests.unit.support.memory_disk import settle

MOVING = [("t", 1, [2, 1], [2], [1])]


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (None, MOVING),
        ([], []),
        ([("t", [0, 1, 9, -1])], MOVING),
        ([("t", [0])], []),
        ([("t", [])], []),
        ([("unknown", [0]), ("a b", [0]), ("", [0])], []),
        ([("t", [1]), ("t", [1])], MOVING * 2),
    ],
)
@async_test
async def test_the_partitions_that_are_moved(
    requested: list[tuple[str, list[int]]] | None, expected: list[tuple[str, int, list[int], list[int], list[int]]]
):
    handlers = await start_handlers()
    await handlers.join(2)
    await settle()
    controller = handlers.member.controller
    await controller.topics.create_topics([NewTopic("t", assignments=[(0, [1]), (1, [1])]), NewTopic("u", 1)], False)
    await controller.reassignments.alter_reassignments([RequestedReassignment("t", 1, [2])])
    topics = requested and [
        ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes) for name, indexes in requested
    ]
    response = await handlers.request(
        ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=topics if requested is not None else None
    )
    assert (response.throttle_time_ms, response.error_code, response.error_message) == (0, 0, None)
    assert [
        (topic.name, row.partition_index, row.replicas, row.adding_replicas, row.removing_replicas)
        for topic in response.topics
        for row in topic.partitions
    ] == expected


@async_test
async def test_only_the_controller_knows_all_of_them():
    handlers = await start_handlers()
    handlers.member.controller.resign()
    topics = [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0])]
    response = await handlers.request(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, topics=topics)
    assert response.error_code == ErrorCode.NOT_CONTROLLER
    assert [(topic.name, topic.partitions[0].partition_index) for topic in response.topics] == [("t", 0)]
