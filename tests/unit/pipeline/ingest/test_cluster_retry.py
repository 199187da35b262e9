"""Waiting for the cluster: repeated requests, errors that pass."""

import pytest

from kbroker.pipeline.cluster_admin import BrokerUnavailableError
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.ingest import cluster_retry
from kbroker.pipeline.ingest.cluster_retry import (
    RetryingCluster,
    RunStopped,
    StopEvent,
    is_transient,
)
from kbroker.pipeline.ingest.options import Subscription, create_subscription


def fail(_):
    raise BrokerUnavailableError("gone")


def cluster(wait_s, stop=None, warn=lambda _: None):
    return RetryingCluster("127.0.0.1:1", wait_s, stop or StopEvent(), warn)


def test_a_request_is_repeated_until_there_is_a_result():
    warnings, results = [], [BrokerUnavailableError("gone"), BrokerUnavailableError("gone"), 17]

    def request(_):
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    assert cluster(60, warn=warnings.append).call(request) == 17
    assert warnings == ["gone; retrying"]


def test_repeating_ends_after_the_timeout_and_when_the_run_is_stopped():
    with pytest.raises(BrokerUnavailableError):
        cluster(0.1).call(fail)
    stop = StopEvent()
    with pytest.raises(RunStopped):
        cluster(600, stop, lambda _: stop.set()).call(fail)


def test_a_request_is_repeated_until_its_result_is_valid(monkeypatch):
    monkeypatch.setattr(cluster_retry, "_SETTLE_PAUSE_S", 0.001)
    results = [1, 2, 3]

    def require(minimum):
        def check(result):
            if result < minimum:
                raise PipelineError(f"{result} is too low")

        return check

    assert cluster(60).call_until_valid(lambda _: results.pop(0), require(3)) == 3
    monkeypatch.setattr(cluster_retry, "SETTLE_S", 0.01)
    with pytest.raises(PipelineError, match="1 is too low"):
        cluster(60).call_until_valid(lambda _: 1, require(2))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment.", True),
        ("java.util.concurrent.TimeoutException: Cannot fetch record for offset 5 in 120000 milliseconds", True),
        ("assertion failed: If startingOffsets contains specific offsets, you must specify all TopicPartitions.", True),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized", False),
        ("org.apache.kafka.common.errors.CorruptRecordException: Record is corrupt", False),
        ("java.io.IOException: No space left on device", False),
        ("java.lang.ArithmeticException: long overflow", False),
    ],
)
def test_failures_of_unavailable_brokers_are_transient(text, expected):
    assert is_transient(RuntimeError(text)) is expected
    wrapped = PipelineError("the batch failed")
    wrapped.__cause__ = RuntimeError(text)
    assert is_transient(wrapped) is expected


def test_a_broker_that_does_not_respond_is_transient():
    assert is_transient(BrokerUnavailableError("cannot connect"))
    assert not is_transient(PipelineError("topic t does not exist"))


def test_topics_are_sorted_and_distinct():
    assert create_subscription(["b", "a", "b"], None) == Subscription(("a", "b"))
    assert create_subscription([], "a.*") == Subscription(pattern="a.*")


@pytest.mark.parametrize(("topics", "pattern"), [([], None), (["a"], "b"), (["a,b"], None), ([""], None)])
def test_invalid_subscriptions_are_rejected(topics, pattern):
    with pytest.raises(PipelineError):
        create_subscription(topics, pattern)
