"""Which topics a run subscribes to."""

import pytest

from kbroker.pipeline.archive.ingest.options import Subscription, create_subscription
from kbroker.pipeline.errors import PipelineError


def test_topics_are_sorted_and_a_pattern_is_another_option():
    assert create_subscription(["b", "a", "b"], None) == Subscription(("a", "b"))
    assert create_subscription(["b", "a"], None).spark_option == ("subscribe", "a,b")
    assert create_subscription([], "a.*").spark_option == ("subscribePattern", "a.*")


@pytest.mark.parametrize(("topics", "pattern"), [([], None), (["a"], "b"), (["a,b"], None), ([""], None)])
def test_invalid_subscriptions_are_rejected(topics, pattern):
    with pytest.raises(PipelineError):
        create_subscription(topics, pattern)
