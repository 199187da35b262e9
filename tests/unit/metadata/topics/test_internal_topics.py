"""The internal topics of the coordinators are compacted, and their configs are valid."""

import pytest

from kbroker.config import BrokerConfig
from kbroker.metadata.topics.create_topics import new_internal_topic, plan_topic
from tests.unit.support.topic_planning import planning_context


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_compacted_and_valid(name: str):
    topic = new_internal_topic(name, BrokerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:9092"}))
    plan = plan_topic(topic, planning_context(), {})
    assert len(plan.replicas) == 50
    assert plan.configs["cleanup.policy"] == "compact"
