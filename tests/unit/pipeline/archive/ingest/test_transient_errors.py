"""Which failures of a query are transient."""

import pytest

from kbroker.pipeline.archive.ingest.transient_errors import is_transient
from kbroker.pipeline.cluster_admin import BrokerUnavailableError
from kbroker.pipeline.errors import PipelineError


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
