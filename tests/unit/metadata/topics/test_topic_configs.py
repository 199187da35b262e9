"""Configs that a topic cannot have because of its name."""

import pytest

from kbroker.common import KafkaError
from kbroker.metadata.topics.create_topics import NewTopic, check_topic_configs, plan_topic
from protocol.errors import ErrorCode
from tests.unit.support.topic_planning import planning_context

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
