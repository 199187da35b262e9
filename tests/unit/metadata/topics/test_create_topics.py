"""Plans of CreateTopics and CreatePartitions, against the errors of a single-node Apache Kafka 4.3.1.

The tables were recorded with CreateTopics version 7 and CreatePartitions version 3, and broker 1 alone.
"""

from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.metadata.topics.topic_requests import (
    NewPartitions,
    NewTopic,
    check_partition_count,
    check_topic_configs,
    new_internal_topic,
    plan_partitions,
    plan_topic,
)
from protocol.errors import ErrorCode
from tests.unit.support.topic_planning import planning_context

NAME_CHARACTERS = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


def new_topic(
    name: str, partitions: int = 1, factor: int = 1, assignments: Any = (), **configs: str | None
) -> NewTopic:
    pairs = [(key.replace("_", "."), value) for key, value in configs.items()]
    return NewTopic(name, partitions, factor, assignments, pairs)


def assigned_topic(assignments: Any, partitions: int = -1, factor: int = -1) -> NewTopic:
    return new_topic("new", partitions, factor, assignments)


REJECTED_TOPICS = [
    (new_topic(""), 17, "Topic name is invalid: the empty string is not allowed"),
    (new_topic("."), 17, "Topic name is invalid: '.' is not allowed"),
    (new_topic(".."), 17, "Topic name is invalid: '..' is not allowed"),
    (new_topic("a" * 250), 17,
     f"Topic name is invalid: the length of '{'a' * 250}' is longer than the max allowed length 249"),
    (new_topic("a b"), 17, f"Topic name is invalid: 'a b' {NAME_CHARACTERS}"),
    (new_topic("a/b"), 17, f"Topic name is invalid: 'a/b' {NAME_CHARACTERS}"),
    (new_topic("\u00e9"), 17, f"Topic name is invalid: '\u00e9' {NAME_CHARACTERS}"),
    (new_topic("a\n"), 17, f"Topic name is invalid: 'a\n' {NAME_CHARACTERS}"),
    (new_topic("__cluster_metadata"), 42, "Creation of internal topic __cluster_metadata is prohibited."),
    (new_topic("t1"), 36, "Topic 't1' already exists."),
    (new_topic("t1", 0, 0), 36, "Topic 't1' already exists."),
    (new_topic("ok.a"), 17, "Topic 'ok.a' collides with existing topic: ok_a"),
    (new_topic("a b", 0, 0), 17, f"Topic name is invalid: 'a b' {NAME_CHARACTERS}"),
    (new_topic("n", 0), 37, "Number of partitions was set to an invalid non-positive value."),
    (new_topic("n", -2), 37, "Number of partitions was set to an invalid non-positive value."),
    (new_topic("n", 1, 0), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
    (new_topic("n", 1, -2), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
    (new_topic("n", 0, 0), 38, "Replication factor must be larger than 0, or -1 to use the default value."),
    (new_topic("n", 1, 2), 38, "Unable to replicate the partition 2 time(s): *"),
    (new_topic("n", 5, 32767), 38, "Unable to replicate the partition 32767 time(s): *"),
    (assigned_topic([(0, [1]), (2, [1])]), 39, "partitions should be a consecutive 0-based integer sequence"),
    (assigned_topic([(1, [1])]), 39, "partitions should be a consecutive 0-based integer sequence"),
    (assigned_topic([(-1, [1])]), 39, "partitions should be a consecutive 0-based integer sequence"),
    (assigned_topic([(0, [1]), (0, [1])]), 39, "Found multiple manual partition assignments for partition 0"),
    (assigned_topic([(0, [7])]), 39,
     "The manual partition assignment includes broker 7, but no such broker is registered."),
    (assigned_topic([(0, [-1])]), 39,
     "The manual partition assignment includes broker -1, but no such broker is registered."),
    (assigned_topic([(0, [])]), 39, "The manual partition assignment includes an empty replica list."),
    (assigned_topic([(0, [1, 1])]), 39, "The manual partition assignment includes the broker 1 more than once."),
    (assigned_topic([(0, [1])], 1), 42,
     "A manual partition assignment was specified, but numPartitions was not set to -1."),
    (assigned_topic([(0, [1])], -1, 1), 42,
     "A manual partition assignment was specified, but replication factor was not set to -1."),
    (assigned_topic([(0, [1])], 5, 3), 42,
     "A manual partition assignment was specified, but replication factor was not set to -1."),
    (new_topic("n", nope="1"), 40, "Unknown topic config name: nope"),
    (new_topic("n", 0, 5, nope="1"), 40, "Unknown topic config name: nope"),
    (new_topic("n", retention_ms="abc"), 40,
     "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
    (new_topic("n", retention_ms="-2"), 40,
     "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
    (new_topic("n", retention_ms=None), 40, "Null value not supported for topic configs: retention.ms"),
]  # fmt: skip


@pytest.mark.parametrize(("topic", "code", "message"), REJECTED_TOPICS)
def test_rejected_topics(topic: NewTopic, code: int, message: str):
    with pytest.raises(KafkaError) as raised:
        plan_topic(topic, planning_context(), {"ok_a": "ok_a"})
    assert raised.value.code == code
    text = raised.value.message or ""
    assert text.startswith(message[:-1]) if message.endswith("*") else text == message


def test_all_partitions_of_an_assignment_must_have_the_same_number_of_replicas():
    topic = assigned_topic([(0, [1, 2]), (1, [1])])
    with pytest.raises(KafkaError, match="not consistent with previous partitions, which have 2 replica"):
        plan_topic(topic, planning_context({1: None, 2: None}), {})


def test_each_partition_of_an_assignment_needs_a_broker_that_can_lead_it():
    # As with three nodes of Kafka, of which one is dead.
    context = planning_context({1: None, 2: None, 3: None}, fenced=[2], stopping=[3])
    assert plan_topic(assigned_topic([(0, [2, 1])]), context, {}).replicas == [[2, 1]]
    for replicas in ([2], [3], [2, 3]):
        with pytest.raises(KafkaError) as raised:
            plan_topic(assigned_topic([(0, [1, 2][: len(replicas)]), (1, replicas)]), context, {})
        assert raised.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert raised.value.message == (
            "All brokers specified in the manual partition assignment for partition 1 are fenced or in controlled "
            "shutdown."
        )


def test_valid_topics():
    assert plan_topic(new_topic("a" * 249), planning_context(), {}).replicas == [[1]]
    assert plan_topic(new_topic("n", -1, -1), planning_context(), {}).replicas == [[1]] * 4
    two_brokers = planning_context({1: None, 2: None})
    assert plan_topic(assigned_topic([(1, [1, 2]), (0, [2, 1])]), two_brokers, {}).replicas == [[2, 1], [1, 2]]
    topic = NewTopic("n", configs=[("retention.ms", "5"), ("retention.ms", "6")])
    assert plan_topic(topic, planning_context(), {}).configs == {"retention.ms": "6"}
    assert plan_topic(new_topic("__consumer_offsets"), planning_context(), {}).replicas == [[1]]


def test_the_view_configs_of_an_ordinary_topic_create_an_ordinary_topic():
    """Tools that copy a topic set all configs of the original."""
    configs = [("kbroker.view.of", ""), ("kbroker.view.filter", "*"), ("retention.ms", "5")]
    plan = plan_topic(NewTopic("t", 1, 1, configs=configs), planning_context(), {})
    assert (plan.replicas, plan.configs) == ([[1]], {"retention.ms": "5"})


@pytest.mark.parametrize("counts", [(10_001,), (2**31 - 1,), (6000, 6000), (9_999, -1)])
def test_one_request_can_create_at_most_10_000_partitions(counts: tuple[int, ...]):
    with pytest.raises(KafkaError, match="Excessively large number"):
        check_partition_count([new_topic(str(count), count) for count in counts], 4)
    check_partition_count([new_topic("a", 9_996), new_topic("b", -1), new_topic("c", -5)], 4)


def test_the_error_codes_of_the_tables_are_known():
    assert {code for _, code, _ in (*REJECTED_TOPICS, *REJECTED_PARTITIONS)} <= set(ErrorCode)


POLICY = {"kbroker.retry.topic": "t", "kbroker.retry.group": "g", "errors.deadletterqueue.topic.name": "dlq.t"}
REFUSED = [
    ("r", POLICY | {"kbroker.retry.topic": "r"}, "kbroker.retry.topic must be another topic, not 'r' itself"),
    ("r", POLICY | {"errors.deadletterqueue.topic.name": "r"},
     "errors.deadletterqueue.topic.name must be another topic, not 'r' itself"),
    ("r", POLICY | {"errors.deadletterqueue.topic.name": "__consumer_offsets"},
     "errors.deadletterqueue.topic.name cannot be the internal topic '__consumer_offsets'"),
    ("r", POLICY | {"kbroker.retry.topic": "__transaction_state"},
     "kbroker.retry.topic cannot be the internal topic '__transaction_state'"),
    ("__consumer_offsets", {"kbroker.view.of": "t1"},
     "kbroker.view.of cannot be set on the internal topic '__consumer_offsets'"),
    ("__share_group_state", {"kbroker.delay.enable": "true", "kbroker.ttl.ms": "5"},
     "kbroker.delay.enable, kbroker.ttl.ms cannot be set on the internal topic '__share_group_state'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "configs", "message"), REFUSED)
def test_refused_configs(name: str, configs: dict[str, str], message: str) -> None:
    """When they are altered, and already in the plan of a new topic, so that validate-only reports them."""
    with pytest.raises(KafkaError) as altered:
        check_topic_configs(name, configs)
    with pytest.raises(KafkaError) as created:
        plan_topic(NewTopic(name, 1, 1, configs=list(configs.items())), planning_context(), {})
    for raised in (altered, created):
        assert (raised.value.code, raised.value.message) == (ErrorCode.INVALID_CONFIG, message)


def test_permitted_configs() -> None:
    check_topic_configs("r", POLICY)
    check_topic_configs("__consumer_offsets", {"cleanup.policy": "compact"})


REJECTED_PARTITIONS = [
    (NewPartitions("t1", 6), 37, "Topic already has 6 partition(s)."),
    (NewPartitions("t2", 2, [[1]]), 37, "Topic already has 2 partition(s)."),
    (NewPartitions("t1", 2), 37, "The topic t1 currently has 6 partition(s); 2 would not be an increase."),
    (NewPartitions("t1", -1), 37, "The topic t1 currently has 6 partition(s); -1 would not be an increase."),
    (NewPartitions("nope", 2), 3, None),
    (NewPartitions("a b", 2), 3, None),
    (NewPartitions("", 2), 3, None),
    (NewPartitions("t2", 4, [[1]]), 39,
     "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified."),
    (NewPartitions("t2", 3, [[1], [1]]), 39,
     "Attempted to add 1 additional partition(s), but only 2 assignment(s) were specified."),
    (NewPartitions("t2", 3, []), 39,
     "Attempted to add 1 additional partition(s), but only 0 assignment(s) were specified."),
    (NewPartitions("t2", 3, [[9]]), 39,
     "The manual partition assignment includes broker 9, but no such broker is registered."),
    (NewPartitions("t2", 3, [[1, 9]]), 39,
     "The manual partition assignment includes broker 9, but no such broker is registered."),
    (NewPartitions("t2", 3, [[]]), 39, "The manual partition assignment includes an empty replica list."),
    (NewPartitions("t2", 3, [[1, 1]]), 39,
     "The manual partition assignment includes the broker 1 more than once."),
    # Kafka 4.3.1: UNKNOWN_SERVER_ERROR.
    (NewPartitions("t2", 10_003), 44, "Excessively large number of partitions per request."),
]  # fmt: skip


@pytest.mark.parametrize(("new", "code", "message"), REJECTED_PARTITIONS)
def test_rejected_partitions(new: NewPartitions, code: int, message: str | None):
    with pytest.raises(KafkaError) as raised:
        plan_partitions(new, planning_context())
    assert (raised.value.code, raised.value.message) == (code, message)


def test_valid_partitions():
    assert plan_partitions(NewPartitions("t1", 8), planning_context()) == [[1], [1]]
    assert plan_partitions(NewPartitions("t2", 3, [[1]]), planning_context()) == [[1]]


def test_a_new_partition_needs_a_broker_that_can_lead_it():
    context = planning_context({1: None, 2: None}, fenced=[2])
    with pytest.raises(KafkaError, match="assignment for partition 3 are fenced or in controlled shutdown") as raised:
        plan_partitions(NewPartitions("t2", 4, [[1], [2]]), context)
    assert raised.value.code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_compacted_and_valid(name: str):
    topic = new_internal_topic(name, BrokerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:9092"}))
    plan = plan_topic(topic, planning_context(), {})
    assert len(plan.replicas) == 50
    assert plan.configs["cleanup.policy"] == "compact"
