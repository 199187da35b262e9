"""Decides which replicas are throttled now, without I/O.

Replicas in the ISR are never throttled: a throttle must not remove them from it, nor delay producers with acks=all.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kbroker.replica.partition_state import PartitionState
    from kbroker.replica.quota.replication_quota import ReplicationQuota

ALL_REPLICAS = "*"


class ThrottledReplica(Protocol):
    """The part of a partition that the decisions use."""

    is_leader_throttled: bool
    is_follower_throttled: bool

    @property
    def state(self) -> PartitionState: ...


def is_listed(throttled: Container[str], partition: int, broker_id: int) -> bool:
    """Return whether leader. or follower.replication.throttled.replicas contains a partition's replica on a broker.

    `throttled`: the set of its pairs (config/topic_config.py).
    """
    return ALL_REPLICAS in throttled or f"{partition}:{broker_id}" in throttled


def should_leader_throttle(partition: ThrottledReplica, replica_id: int, quota: ReplicationQuota, now_ms: int) -> bool:
    """Return whether a follower gets no records of the partition for now."""
    return partition.is_leader_throttled and replica_id not in partition.state.maximal_isr and quota.is_exceeded(now_ms)


def should_follower_throttle(partition: ThrottledReplica, lag: int, quota: ReplicationQuota, now_ms: int) -> bool:
    """Return whether this follower does not fetch the partition for now.

    `lag`: the number of committed records that it does not have; -1 if it is unknown.
    """
    return (
        partition.is_follower_throttled
        and lag != 0
        and partition.state.local_id not in partition.state.isr
        and quota.is_exceeded(now_ms)
    )
