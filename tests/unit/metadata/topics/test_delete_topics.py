"""Plans of DeleteTopics, against the responses of a single-node Apache Kafka 4.3.1 (version 6)."""

from typing import Any

import pytest

from kbroker.metadata.topics.topic_requests import TopicNameOrId, plan_deletions
from tests.unit.support.counted import CountedString, counted_strings
from tests.unit.support.topic_planning import ID_1, ID_2, TOPICS, UNKNOWN_ID

UNKNOWN_NAME_MESSAGE = "This server does not host this topic-partition."
UNKNOWN_ID_MESSAGE = "This server does not host this topic ID."
NAME_AND_ID = "You may not specify both topic name and topic id."
ID_ALREADY_SUPPLIED = "The provided topic name maps to an ID that was already supplied."
ZERO = bytes(16)

DELETIONS = [
    ([TopicNameOrId("t1")], {("t1", ID_1, 0, None)}),
    ([TopicNameOrId(None, ID_1)], {("t1", ID_1, 0, None)}),
    ([TopicNameOrId("t1", ID_1)], {("t1", ID_1, 42, NAME_AND_ID)}),
    ([TopicNameOrId(None)], {(None, ZERO, 42, "Neither topic name nor id were specified.")}),
    ([TopicNameOrId(None, UNKNOWN_ID)], {(None, UNKNOWN_ID, 100, UNKNOWN_ID_MESSAGE)}),
    ([TopicNameOrId("nope")], {("nope", ZERO, 3, UNKNOWN_NAME_MESSAGE)}),
    ([TopicNameOrId("a b"), TopicNameOrId("")],
     {("a b", ZERO, 3, UNKNOWN_NAME_MESSAGE), ("", ZERO, 3, UNKNOWN_NAME_MESSAGE)}),
    ([TopicNameOrId("t1"), TopicNameOrId("t1")], {("t1", ZERO, 42, "Duplicate topic name.")}),
    ([TopicNameOrId("nope"), TopicNameOrId("nope")], {("nope", ZERO, 42, "Duplicate topic name.")}),
    ([TopicNameOrId(None, ID_1), TopicNameOrId(None, ID_1)], {(None, ID_1, 42, "Duplicate topic id.")}),
    ([TopicNameOrId(None, UNKNOWN_ID)] * 2, {(None, UNKNOWN_ID, 42, "Duplicate topic id.")}),
    ([TopicNameOrId("t1"), TopicNameOrId(None, ID_1)], {("t1", ID_1, 42, ID_ALREADY_SUPPLIED)}),
    ([TopicNameOrId("nope"), TopicNameOrId("t2"), TopicNameOrId(None, UNKNOWN_ID)],
     {("t2", ID_2, 0, None), ("nope", ZERO, 3, UNKNOWN_NAME_MESSAGE), (None, UNKNOWN_ID, 100, UNKNOWN_ID_MESSAGE)}),
    ([TopicNameOrId("t1"), TopicNameOrId("t1"), TopicNameOrId(None, ID_1)],
     {("t1", ZERO, 42, "Duplicate topic name."), (None, ID_1, 42, ID_ALREADY_SUPPLIED)}),
    ([], set()),
]  # fmt: skip


@pytest.mark.parametrize(("requested", "expected"), DELETIONS)
def test_deletions(requested: list[TopicNameOrId], expected: set[tuple[Any, ...]]):
    deletions = plan_deletions(requested, TOPICS, {topic.topic_id: topic for topic in TOPICS.values()})
    rows = [
        (
            deletion.name,
            deletion.topic_id,
            *((deletion.error.code, deletion.error.message) if deletion.error else (0, None)),
        )
        for deletion in deletions
    ]
    assert len(rows) == len(expected)
    assert set(rows) == expected


def test_the_number_of_comparisons_grows_with_the_number_of_topics():
    """A request with 100,000 names delayed all clients for minutes when each name was compared with all others."""
    names = counted_strings(2000)
    assert len(plan_deletions([TopicNameOrId(name) for name in names], TOPICS, {})) == len(names)
    assert CountedString.comparisons < 10 * len(names)
