"""Retries and dead letters for Python consumers: docs/retry.md."""

from kbroker.retry.consumer import AsyncRetryingConsumer, RetryingConsumer, read_policy, read_policy_async
from kbroker.retry.policy import PolicyError, RetryPolicy
from kbroker.retry.records import OutgoingRecord, original_timestamp_ms

__all__ = [
    "AsyncRetryingConsumer",
    "OutgoingRecord",
    "PolicyError",
    "RetryPolicy",
    "RetryingConsumer",
    "original_timestamp_ms",
    "read_policy",
    "read_policy_async",
]
