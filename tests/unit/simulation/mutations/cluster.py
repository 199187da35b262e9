"""Mistakes in replication: what followers claim, who is in sync, who is elected, what is truncated."""

from typing import Any

import pytest

from kbroker.replica.fetcher.fetched_partitions import FetchedPartitions
from kbroker.replica.isr.follower_state import FollowerState
from kbroker.replica.partition_state import PartitionState
from kbroker.simulation.scenarios.faults import Fault
from tests.unit.simulation.mutations.mutation import INVARIANT, mutation, replaces, wrap
from tests.unit.simulation.mutations.shapes import Shape, one_partition, only

LIVENESS = "LivenessError"


def replicated(*faults: str | Fault, seconds: float = 3.0, **values: Any) -> Shape:
    """One partition on three brokers, without groups and transactions."""
    plan: dict[str, Any] = {
        "members": 0,
        "transactors": 0,
        "transformers": 0,
        "stale_clients": 0,
        "readers": 1,
        "producers": 2,
    }
    plan["pause_between_sends_s"] = 0.01
    return one_partition(only(*faults, seconds=seconds, pause_s=0.15, **{**plan, **values}))


# The in-sync replicas and the high watermark.


@mutation("cluster", [INVARIANT], replicated("kill"))
@replaces(PartitionState, "advance_high_watermark")
def the_high_watermark_ignores_followers(original: Any, state: PartitionState, leader_position: int) -> bool:
    """Records are committed as soon as the leader has them."""
    followers, state.followers = state.followers, {}
    try:
        return original(state, leader_position)  # type: ignore[no-any-return]
    finally:
        state.followers = followers


@mutation("cluster", [INVARIANT], replicated("kill", "restart", "clog", seconds=6.0), first_seed=6)
@replaces(PartitionState, "can_join")
def followers_join_behind_the_high_watermark(
    original: Any, state: PartitionState, follower: FollowerState, end: int
) -> bool:
    """A follower joins the ISR with its first fetch."""
    return state.proposal is None and follower.broker_id not in state.isr


# Elections.


@mutation("cluster", [INVARIANT], replicated("kill"), first_seed=2)
def a_leader_epoch_is_used_again(patch: pytest.MonkeyPatch) -> None:
    """A new leader continues the epoch of the former one."""

    def keep_epoch(original: Any, partition: Any, *arguments: Any, **named: Any) -> Any:
        changed = original(partition, *arguments, **named)
        if changed is not None and changed.leader >= 0:
            changed.leader_epoch = partition.leader_epoch
        return changed

    from kbroker.metadata.replication import broker_changes

    wrap(patch, broker_changes, "change_partition", keep_epoch)


# Followers.


@mutation("cluster-durable", [INVARIANT], replicated("slow_disk", seconds=6.0))
def followers_claim_what_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    """With flush.before.ack a follower fetches again before its records are synced."""
    patch.setattr(FetchedPartitions, "_wait_for_sync", lambda fetched, state: fetched._fetcher.changed(state))
    patch.setattr(FetchedPartitions, "is_held_for_sync", lambda fetched, state: False)
