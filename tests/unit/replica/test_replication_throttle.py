"""The rate of throttled replicas over windows, in virtual time; and which replicas are throttled."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.config.topic_config import replica_pairs
from kbroker.replica.partition_state import PartitionState, is_listed
from kbroker.replica.replication_throttle import (
    ReplicationQuota,
    should_follower_throttle,
    should_leader_throttle,
    unlimited_quota,
)
from tests.sampling import third_of

MB = 1_000_000
WINDOWS = 11


class Limit:
    """A limit in bytes per second that a test may change."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.quota = ReplicationQuota(lambda: self.limit, WINDOWS, 1_000)


def first_allowed(quota: ReplicationQuota, now_ms: int) -> int:
    """Return the first millisecond at which the quota is not exceeded."""
    while quota.is_exceeded(now_ms):
        now_ms += 1
    return now_ms


def test_nothing_is_exceeded_before_the_first_byte() -> None:
    quota = Limit(0).quota
    assert not quota.is_exceeded(5)
    assert quota.rate(5) == 0
    assert quota.allowed_at_ms(5) == 5


def test_the_rate_counts_at_least_one_window() -> None:
    quota = Limit(MB).quota
    quota.record(MB, 100)
    assert quota.rate(100) == quota.rate(1_100) == MB
    assert not quota.is_exceeded(100)
    quota.record(1, 200)
    assert quota.is_exceeded(200)
    assert quota.rate(2_100) == (MB + 1) / 2


def test_a_batch_above_the_limit_is_followed_by_a_pause() -> None:
    quota = Limit(MB).quota
    quota.record(3 * MB, 100)
    assert quota.is_exceeded(3_099)
    assert not quota.is_exceeded(3_100)
    assert quota.allowed_at_ms(100) == 3_100


def test_a_pause_is_at_most_as_long_as_all_windows() -> None:
    """So the progress of a batch that is larger than all of them is guaranteed."""
    for limit in (0, 1):
        quota = Limit(limit).quota
        quota.record(100 * MB, 100)
        assert quota.allowed_at_ms(100) == 100 + WINDOWS * 1_000
        assert quota.is_exceeded(11_099)
        assert not quota.is_exceeded(11_100)


def test_samples_expire() -> None:
    quota = Limit(MB).quota
    for second in range(30):
        quota.record(MB // 2, second * 1_000)
    # The first of the last 11 seconds.
    assert quota.rate(30_000) == 10 * MB // 2 / 10
    assert quota.rate(60_000) == 0


def test_a_changed_limit_applies_at_once() -> None:
    limit = Limit(MB)
    limit.quota.record(10 * MB, 0)
    assert limit.quota.allowed_at_ms(0) == 10_000
    limit.limit = 5 * MB
    assert limit.quota.allowed_at_ms(0) == 2_000
    limit.limit = 10 * MB
    assert not limit.quota.is_exceeded(0)


def test_an_unlimited_quota_is_never_exceeded() -> None:
    quota = unlimited_quota()
    for _ in range(10):
        quota.record(1 << 40, 0)
    assert not quota.is_exceeded(0)


@pytest.mark.parametrize("seed", third_of(range(20)))
def test_the_time_of_the_next_byte_is_exact(seed: int) -> None:
    random = Random(seed)
    quota = Limit(random.choice((0, 1, 999, 1_000_000))).quota
    now_ms = 0
    for _ in range(30):
        now_ms += random.choice((0, 1, 10, 999, 1_000, 5_000))
        quota.record(random.choice((1, 1_000, 3_000_000)), now_ms)
        allowed_ms = quota.allowed_at_ms(now_ms)
        assert first_allowed(quota, now_ms) == allowed_ms
        assert allowed_ms <= now_ms + WINDOWS * 1_000
        now_ms = random.choice((now_ms, allowed_ms))


LOCAL = 1


@pytest.mark.parametrize(
    ("throttled", "listed"),
    [
        ((), []),
        (("",), []),
        (("*",), [(0, 1), (0, 2), (7, 1)]),
        (("*", ""), [(0, 1), (0, 2), (7, 1)]),
        (("0:1", "7:2"), [(0, 1)]),
        (("0:2", "", "07:01"), [(0, 2), (7, 1)]),
    ],
)
def test_pairs_list_the_replica_of_a_partition_on_a_broker(
    throttled: tuple[str, ...], listed: list[tuple[int, int]]
) -> None:
    assert [pair for pair in ((0, 1), (0, 2), (7, 1)) if is_listed(replica_pairs(throttled), *pair)] == listed


def replica(isr: list[int], leader: bool = True, follower: bool = True) -> Any:
    state = PartitionState(LOCAL, 5, isr, replicas=[1, 2, 3])
    return SimpleNamespace(state=state, is_leader_throttled=leader, is_follower_throttled=follower)


def exceeded() -> ReplicationQuota:
    quota = ReplicationQuota(lambda: 1)
    quota.record(1_000, 0)
    return quota


def test_the_leader_throttles_replicas_outside_the_isr_while_the_quota_is_exceeded() -> None:
    partition, quota = replica([1, 2]), exceeded()
    assert should_leader_throttle(partition, 3, quota, 10)
    assert not should_leader_throttle(partition, 2, quota, 10), "in sync"
    assert not should_leader_throttle(partition, 3, exceeded(), 20_000), "the quota allows it"
    assert not should_leader_throttle(replica([1, 2], leader=False), 3, quota, 10), "not listed"
    partition.state.propose([1, 2, 3])
    assert not should_leader_throttle(partition, 3, quota, 10), "the high watermark waits for it"


def test_the_follower_throttles_partitions_that_lag_while_the_quota_is_exceeded() -> None:
    partition, quota = replica([2]), exceeded()
    for lag in (-1, 5):
        assert should_follower_throttle(partition, lag, quota, 10)
        assert not should_follower_throttle(replica([1, 2]), lag, quota, 10), "in sync"
        assert not should_follower_throttle(partition, lag, exceeded(), 20_000), "the quota allows it"
        assert not should_follower_throttle(replica([2], follower=False), lag, quota, 10), "not listed"
    assert not should_follower_throttle(partition, 0, quota, 10), "it has all committed records"
