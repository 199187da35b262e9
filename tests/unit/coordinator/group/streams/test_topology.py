"""Topologies that are configured for topics, as Kafka's InternalTopicManager does it."""

from random import Random

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.group.streams.topology import configure, required_topics
from tests.unit.coordinator.group.streams.tasks_of_kafka import (
    TOPOLOGIES,
    Json,
    random_topology,
    recorded,
    structs,
    subtopology,
    topic_info,
)


def configured(subtopologies: list[Json], topics: dict[str, int]) -> Json:
    """Return the result in the form of Kafka's."""
    try:
        found = configure(structs(subtopologies), topics)
    except KafkaError as error:
        return {"error": f"{error}"}
    new = [topic.new_topic for topic in found.missing_topics]
    result: Json = {
        "create": {topic.name: [topic.partitions, topic.replication_factor, dict(topic.configs)] for topic in new},
        "required": sorted(required_topics(structs(subtopologies))),
    }
    if found.problem is not None:
        result["status"] = list(found.problem)
    if found.subtopologies is not None:
        result["tasks"] = {id: each.task_count for id, each in found.subtopologies.items()}
    return result


def test_the_results_are_those_of_kafka() -> None:
    outcomes = set()
    for request, expected in recorded(TOPOLOGIES):
        if "error" in expected:
            expected["error"] = f"STREAMS_INVALID_TOPOLOGY: {expected['error'].rpartition('Exception: ')[2]}"
        found = configured(request["topology"]["subtopologies"], request["topics"])
        assert found == expected, request
        outcomes.add("error" if "error" in expected else expected.get("status", [None])[0])
    assert outcomes == {"error", None, 1, 2, 3}


def test_topics_that_are_created_are_not_missing() -> None:
    for seed in range(50):
        request = random_topology(Random(seed))
        subtopologies, topics = request["topology"]["subtopologies"], request["topics"]
        first = configured(subtopologies, topics)
        if first.get("create"):
            created = {name: partitions for name, (partitions, _, _) in first["create"].items()}
            assert configured(subtopologies, topics | created) == {
                "create": {},
                "required": first["required"],
                "tasks": first["tasks"],
            }


WORD_COUNT = [
    subtopology("0", ["words"], ["by-word"]),
    subtopology("1", [], [], [topic_info("by-word")], ["counts"]),
]


@pytest.mark.parametrize(
    ("topics", "status"),
    [
        ({}, (1, "Source topics words are missing.")),
        ({"words": 3}, (3, "Internal topics are missing: counts, by-word")),
        ({"words": 3, "by-word": 3}, (3, "Internal topics are missing: counts")),
        (
            {"words": 3, "by-word": 4},
            (2, "Existing topic by-word has different number of partitions: expected 3, found 4"),
        ),
        ({"words": 3, "by-word": 3, "counts": 3}, None),
    ],
)
def test_a_word_count(topics: dict[str, int], status: tuple[int, str] | None) -> None:
    found = configure(structs(WORD_COUNT), topics)
    assert found.problem == status
