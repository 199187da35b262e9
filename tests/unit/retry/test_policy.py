"""Retry policies: names, delays, and malformed ones, in the helper and as topic configs."""

import pytest

from kbroker.config.topic_config import validate_topic_configs
from kbroker.config.values import ConfigError
from kbroker.retry.policy import PolicyError, RetryPolicy

POLICY = RetryPolicy("orders", "billing", 3, (1000, 5000))


def test_names_of_topics():
    assert POLICY.topics == ["orders", "orders-billing-retry"]
    assert POLICY.dead_letter_topic == "dlq.orders"
    assert RetryPolicy("orders", "team a/b").retry_topic == "orders-team_a_b-retry"


def test_the_default_is_rocketmqs_ladder_from_10_seconds():
    policy = RetryPolicy("orders", "billing")
    assert [policy.delay_ms(attempt) // 1000 for attempt in (1, 2, 3, 16, 99)] == [10, 30, 60, 7200, 7200]
    assert policy.attempts == 17


def test_the_last_delay_repeats_and_delays_may_repeat():
    assert [RetryPolicy("t", "g", 9, (5, 5, 7)).delay_ms(attempt) for attempt in range(1, 6)] == [5, 5, 7, 7, 7]


@pytest.mark.parametrize("policy", [POLICY, RetryPolicy("t", "g", 5, (5, 5, 0), "again", "dead")])
def test_a_policy_is_stored_in_topic_configs(policy: RetryPolicy):
    validate_topic_configs(policy.to_configs())
    assert RetryPolicy.from_configs(policy.retry_topic, policy.to_configs()) == policy


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"group": ""}, "needs a topic and a group"),
        ({"attempts": 0}, "attempts must be between 1 and 1000, not 0"),
        ({"attempts": "3"}, "attempts must be a whole number, not '3'"),
        ({"delays_ms": ()}, "needs at least one delay"),
        ({"delays_ms": (-1,)}, "A delay must be whole milliseconds"),
        ({"delays_ms": (41 * 86_400_000,)}, "A delay must be whole milliseconds between 0 and 3456000000"),
        ({"retry_topic": "orders"}, "must be different: orders, orders, dlq.orders"),
        ({"dead_letter_topic": "a b"}, "must be the name of a topic"),
    ],
)
def test_malformed_policies(changes: dict[str, object], reason: str):
    with pytest.raises(PolicyError, match=reason):
        RetryPolicy(**{"topic": "orders", "group": "billing", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kbroker.retry.group": ""}, "kbroker.retry.topic is set, but not kbroker.retry.group"),
        ({"kbroker.retry.attempts": "0"}, "Value must be at least 1"),
        ({"kbroker.retry.delays.ms": "10s"}, "A delay must be whole milliseconds"),
        ({"kbroker.retry.delays.ms": "1,,2"}, "A delay must be whole milliseconds"),
        ({"kbroker.retry.topic": "a/b"}, "Value must be the name of a topic or empty"),
        ({"errors.deadletterqueue.topic.name": "orders"}, "must be different topics, not both orders"),
        ({"cleanup.policy": "compact"}, "a retry topic cannot be compacted"),
    ],
)
def test_malformed_topic_configs(changes: dict[str, str], reason: str):
    with pytest.raises(ConfigError, match=reason):
        validate_topic_configs({**POLICY.to_configs(), **changes})


@pytest.mark.parametrize(
    ("configs", "reason"),
    [({}, "stores no retry policy"), ({"kbroker.retry.topic": "t", "kbroker.retry.delays.ms": "x"}, "malformed")],
)
def test_a_topic_without_a_policy(configs: dict[str, str | None], reason: str):
    with pytest.raises(PolicyError, match=reason):
        RetryPolicy.from_configs("again", configs)
