"""The controller's decisions against what a single-node Apache Kafka 4.3.1 answered to the same requests.

The tables were recorded over the wire (CreateTopics v7, CreatePartitions v3, DeleteTopics v6) with broker 1
alone.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.config.topic_config import validate_topic_configs
from kbroker.metadata.topics.topic_plans import (
    PartitionsSpec,
    PlanningContext,
    TopicRef,
    TopicSpec,
    check_request_size,
    internal_topic,
    plan_deletions,
    plan_partitions,
    plan_topic,
)
from protocol.errors import ErrorCode

ID_1, ID_2, UNKNOWN_ID = b"1" * 16, b"2" * 16, b"\xff" * 16
NAME_CHARACTERS = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


@dataclass
class Partition:
    replicas: list[int]


@dataclass
class Topic:
    name: str
    topic_id: bytes
    partitions: list[Partition]


TOPICS = {
    "t1": Topic("t1", ID_1, [Partition([1]) for _ in range(6)]),
    "t2": Topic("t2", ID_2, [Partition([1]) for _ in range(2)]),
}


def around(racks: dict[int, str | None] | None = None) -> PlanningContext:
    return PlanningContext(TOPICS, racks or {1: None}, Random(1), 4, 1, validate_topic_configs)


def create(name: str, partitions: int = 1, factor: int = 1, assigned: Any = (), **configs: str | None) -> TopicSpec:
    pairs = [(key.replace("_", "."), value) for key, value in configs.items()]
    return TopicSpec(name, partitions, factor, assigned, pairs)


def manual(assigned: Any, partitions: int = -1, factor: int = -1) -> TopicSpec:
    return create("new", partitions, factor, assigned)


REFUSED_CREATIONS = [
    (create(""), 17, "Topic name is invalid: the empty string is not allowed"),
    (create("."), 17, "Topic name is invalid: '.' is not allowed"),
    (create(".."), 17, "Topic name is invalid: '..' is not allowed"),
    (create("a" * 250), 17,
     f"Topic name is invalid: the length of '{'a' * 250}' is longer than the max allowed length 249"),
    (create("a b"), 17, f"Topic name is invalid: 'a b' {NAME_CHARACTERS}"),
    (create("a/b"), 17, f"Topic name is invalid: 'a/b' {NAME_CHARACTERS}"),
    (create("\u00e9"), 17, f"Topic name is invalid: '\u00e9' {NAME_CHARACTERS}"),
    (create("a\n"), 17, f"Topic name is invalid: 'a\n' {NAME_CHARACTERS}"),
    (create("__cluster_metadata"), 42, "Creation of internal topic __cluster_metadata is prohibited."),
    (create("t1"), 36, "Topic 't1' already exists."),
    (create("t1", 0, 0), 36, "Topic 't1' already exists."),
    (create("ok.a"), 17, "Topic 'ok.a' collides with existing topic: ok_a"),
    (create("a b", 0, 0), 17, f"Topic name is invalid: 'a b' {NAME_CHARACTERS}"),
    (create("n", 0), 37, "Number of partitions was set to an invalid non-positive value."),
    (create("n", -2), 37, "Number of partitions was set to an invalid non-positive value."),
    (create("n", 1, 0), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
    (create("n", 1, -2), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
    (create("n", 0, 0), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
    (create("n", 1, 2), 38, "Unable to replicate the partition 2 time(s): *"),
    (create("n", 5, 32767), 38, "Unable to replicate the partition 32767 time(s): *"),
    (manual([(0, [1]), (2, [1])]), 39, "partitions should be a consecutive 0-based integer sequence"),
    (manual([(1, [1])]), 39, "partitions should be a consecutive 0-based integer sequence"),
    (manual([(-1, [1])]), 39, "partitions should be a consecutive 0-based integer sequence"),
    (manual([(0, [1]), (0, [1])]), 39, "Found multiple manual partition assignments for partition 0"),
    (manual([(0, [7])]), 39,
     "The manual partition assignment includes broker 7, but no such broker is registered."),
    (manual([(0, [-1])]), 39,
     "The manual partition assignment includes broker -1, but no such broker is registered."),
    (manual([(0, [])]), 39, "The manual partition assignment includes an empty replica list."),
    (manual([(0, [1, 1])]), 39, "The manual partition assignment includes the broker 1 more than once."),
    (manual([(0, [1])], 1), 42,
     "A manual partition assignment was specified, but numPartitions was not set to -1."),
    (manual([(0, [1])], -1, 1), 42,
     "A manual partition assignment was specified, but replication factor was not set to -1."),
    (manual([(0, [1])], 5, 3), 42,
     "A manual partition assignment was specified, but replication factor was not set to -1."),
    (create("n", nope="1"), 40, "Unknown topic config name: nope"),
    (create("n", 0, 5, nope="1"), 40, "Unknown topic config name: nope"),
    (create("n", retention_ms="abc"), 40,
     "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
    (create("n", retention_ms="-2"), 40,
     "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
    (create("n", retention_ms=None), 40, "Null value not supported for topic configs: retention.ms"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "code", "message"), REFUSED_CREATIONS)
def test_refused_creations(spec: TopicSpec, code: int, message: str):
    with pytest.raises(KafkaError) as refusal:
        plan_topic(spec, around(), {"ok_a": "ok_a"})
    assert refusal.value.code == code
    text = refusal.value.message or ""
    assert text.startswith(message[:-1]) if message.endswith("*") else text == message


def test_replica_counts_of_an_assignment_must_agree():
    spec = manual([(0, [1, 2]), (1, [1])])
    with pytest.raises(KafkaError, match="not consistent with previous partitions, which have 2 replica"):
        plan_topic(spec, around({1: None, 2: None}), {})


def test_good_creations():
    assert plan_topic(create("a" * 249), around(), {}).replicas == [[1]]
    assert plan_topic(create("n", -1, -1), around(), {}).replicas == [[1]] * 4
    assert plan_topic(manual([(1, [1, 2]), (0, [2, 1])]), around({1: None, 2: None}), {}).replicas == [
        [2, 1],
        [1, 2],
    ]
    spec = TopicSpec("n", configs=[("retention.ms", "5"), ("retention.ms", "6")])
    assert plan_topic(spec, around(), {}).configs == {"retention.ms": "6"}
    assert plan_topic(create("__consumer_offsets"), around(), {}).replicas == [[1]]


@pytest.mark.parametrize("counts", [(10_001,), (2**31 - 1,), (6000, 6000), (9_999, -1)])
def test_one_request_may_not_ask_for_more_than_ten_thousand_partitions(counts: tuple[int, ...]):
    with pytest.raises(KafkaError, match="Excessively large number"):
        check_request_size([create(str(count), count) for count in counts], 4)
    check_request_size([create("a", 9_996), create("b", -1), create("c", -5)], 4)


REFUSED_PARTITIONS = [
    (PartitionsSpec("t1", 6), 37, "Topic already has 6 partition(s)."),
    (PartitionsSpec("t2", 2, [[1]]), 37, "Topic already has 2 partition(s)."),
    (PartitionsSpec("t1", 2), 37, "The topic t1 currently has 6 partition(s); 2 would not be an increase."),
    (PartitionsSpec("t1", -1), 37, "The topic t1 currently has 6 partition(s); -1 would not be an increase."),
    (PartitionsSpec("nope", 2), 3, None),
    (PartitionsSpec("a b", 2), 3, None),
    (PartitionsSpec("", 2), 3, None),
    (PartitionsSpec("t2", 4, [[1]]), 39,
     "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified."),
    (PartitionsSpec("t2", 3, [[1], [1]]), 39,
     "Attempted to add 1 additional partition(s), but only 2 assignment(s) were specified."),
    (PartitionsSpec("t2", 3, []), 39,
     "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified."),
    (PartitionsSpec("t2", 3, [[9]]), 39,
     "The manual partition assignment includes broker 9, but no such broker is registered."),
    (PartitionsSpec("t2", 3, [[1, 9]]), 39,
     "The manual partition assignment includes broker 9, but no such broker is registered."),
    (PartitionsSpec("t2", 3, [[]]), 39, "The manual partition assignment includes an empty replica list."),
    (PartitionsSpec("t2", 3, [[1, 1]]), 39,
     "The manual partition assignment includes the broker 1 more than once."),
    # Kafka 4.3.1: UNKNOWN_SERVER_ERROR.
    (PartitionsSpec("t2", 10_003), 44, "Excessively large number of partitions per request."),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "code", "message"), REFUSED_PARTITIONS)
def test_refused_partitions(spec: PartitionsSpec, code: int, message: str | None):
    with pytest.raises(KafkaError) as refusal:
        plan_partitions(spec, around())
    assert (refusal.value.code, refusal.value.message) == (code, message)


def test_good_partitions():
    assert plan_partitions(PartitionsSpec("t1", 8), around()) == [[1], [1]]
    assert plan_partitions(PartitionsSpec("t2", 3, [[1]]), around()) == [[1]]


HOSTS_NO_TOPIC, HOSTS_NO_ID = (
    "This server does not host this topic-partition.",
    "This server does not host this topic ID.",
)
BOTH = "You may not specify both topic name and topic id."
ALSO_BY_ID = "The provided topic name maps to an ID that was already supplied."
ZERO = bytes(16)

DELETIONS = [
    ([TopicRef("t1")], {("t1", ID_1, 0, None)}),
    ([TopicRef(None, ID_1)], {("t1", ID_1, 0, None)}),
    ([TopicRef("t1", ID_1)], {("t1", ID_1, 42, BOTH)}),
    ([TopicRef(None)], {(None, ZERO, 42, "Neither topic name nor id were specified.")}),
    ([TopicRef(None, UNKNOWN_ID)], {(None, UNKNOWN_ID, 100, HOSTS_NO_ID)}),
    ([TopicRef("nope")], {("nope", ZERO, 3, HOSTS_NO_TOPIC)}),
    ([TopicRef("a b"), TopicRef("")], {("a b", ZERO, 3, HOSTS_NO_TOPIC), ("", ZERO, 3, HOSTS_NO_TOPIC)}),
    ([TopicRef("t1"), TopicRef("t1")], {("t1", ZERO, 42, "Duplicate topic name.")}),
    ([TopicRef("nope"), TopicRef("nope")], {("nope", ZERO, 42, "Duplicate topic name.")}),
    ([TopicRef(None, ID_1), TopicRef(None, ID_1)], {(None, ID_1, 42, "Duplicate topic id.")}),
    ([TopicRef(None, UNKNOWN_ID)] * 2, {(None, UNKNOWN_ID, 42, "Duplicate topic id.")}),
    ([TopicRef("t1"), TopicRef(None, ID_1)], {("t1", ID_1, 42, ALSO_BY_ID)}),
    ([TopicRef("nope"), TopicRef("t2"), TopicRef(None, UNKNOWN_ID)],
     {("t2", ID_2, 0, None), ("nope", ZERO, 3, HOSTS_NO_TOPIC), (None, UNKNOWN_ID, 100, HOSTS_NO_ID)}),
    ([TopicRef("t1"), TopicRef("t1"), TopicRef(None, ID_1)],
     {("t1", ZERO, 42, "Duplicate topic name."), (None, ID_1, 42, ALSO_BY_ID)}),
    ([], set()),
]  # fmt: skip


@pytest.mark.parametrize(("refs", "answers"), DELETIONS)
def test_deletions(refs: list[TopicRef], answers: set[tuple[Any, ...]]):
    planned = plan_deletions(refs, TOPICS, {topic.topic_id: topic for topic in TOPICS.values()})
    shown = [
        (line.name, line.topic_id, *((line.error.code, line.error.message) if line.error else (0, None)))
        for line in planned
    ]
    assert len(shown) == len(answers)
    assert set(shown) == answers


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_compacted_and_valid(name: str):
    spec = internal_topic(name, BrokerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:9092"}))
    plan = plan_topic(spec, around(), {})
    assert len(plan.replicas) == 50
    assert plan.configs["cleanup.policy"] == "compact"


def test_every_code_of_the_tables_is_known():
    assert {code for _, code, _ in REFUSED_CREATIONS + REFUSED_PARTITIONS} <= set(ErrorCode)
