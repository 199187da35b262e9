"""Which replicas the topic configs list, and which of them are throttled now."""

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.config.topic_config import replica_pairs
from kbroker.replica.partition_state import PartitionState
from kbroker.replica.quota.replication_quota import ReplicationQuota
from kbroker.replica.quota.throttled_replicas import (
    is_listed,
    should_follower_throttle,
    should_leader_throttle,
)

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
