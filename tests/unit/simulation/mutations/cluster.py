"""Mistakes in replication: what followers claim, who is in sync, who is elected, what is truncated."""

from asyncio import sleep
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kbroker.common import TopicPartition
from kbroker.coordination.interface import Op, WatchEvent
from kbroker.coordinator.group.group_shard import GroupShard
from kbroker.coordinator.runtime.coordinator_runtime import CoordinatorRuntime
from kbroker.coordinator.runtime.loader import PartitionLoader
from kbroker.metadata.control_manager import MetadataWriter
from kbroker.metadata.image import KnownBroker
from kbroker.metadata.metadata_loader import MetadataLoader
from kbroker.metadata.replication import (
    broker_changes,
    isr_change_queue,
    partition_requests,
    replication_control_manager,
)
from kbroker.metadata.store.change_log import change_ops
from kbroker.replica import delayed_delete_records
from kbroker.replica.fetcher.fetched_partitions import FetchedPartitions, PartitionFetchState
from kbroker.replica.isr_manager import IsrManager
from kbroker.replica.partition import Partition
from kbroker.replica.partition_state import FollowerState, PartitionState
from kbroker.simulation.scenarios.faults import Fault
from kbroker.storage.recovery.truncation import LogTruncator
from tests.unit.simulation.mutations.mutation import INVARIANT, LIVENESS, mutation, replaces, wrap
from tests.unit.simulation.mutations.replication_faults import (
    bounce_between_two_looks,
    bounce_while_joining,
    coordinator_changes_unheard,
    coordinator_returns,
    diverging_leader,
    eligible_replica_loses_its_tail,
    empty_disk_returns,
    fenced_follower,
    follower_loses_its_tail,
    follower_unheard,
    late_isr_change,
    leader_changes_unheard,
    leader_without_followers,
    leadership_flaps,
    lost_watches,
    two_controllers,
    unknown_isr_change,
)
from tests.unit.simulation.mutations.shapes import NEVER, Shape, broker, one_partition, only, topics

ONE_COORDINATOR = {"offsets_topic_num_partitions": "1"}
GROUPS: dict[str, Any] = {"members": 2, "seconds": 4.0}


def replicated(*faults: str | Fault, seconds: float = 3.0, partitions: int = 1, **values: Any) -> Shape:
    """One topic on three brokers, without groups and transactions."""
    plan: dict[str, Any] = {
        "members": 0,
        "transactors": 0,
        "transformers": 0,
        "stale_clients": 0,
        "deleters": 0,
        "readers": 1,
        "producers": 2,
    }
    plan["pause_between_sends_s"] = 0.01
    shape = one_partition(only(*faults, seconds=seconds, pause_s=0.15, **{**plan, **values}), partitions)
    return broker(
        topics(shape, internal_segment_bytes="1048576", flush_messages=str(NEVER), flush_ms=str(NEVER)),
        replica_lag_time_max_ms="1000",
        replica_fetch_wait_max_ms="500",
        replica_fetch_max_bytes="2048",
        replica_fetch_backoff_ms="50",
        auto_leader_rebalance_enable="false",
    )


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


@mutation("cluster", [INVARIANT], replicated(unknown_isr_change, partitions=3))
def the_high_watermark_ignores_replicas_that_may_have_joined(patch: pytest.MonkeyPatch) -> None:
    """Until the outcome of a proposal is known, the high watermark counts only the ISR that was stored before."""

    def count_isr(state: PartitionState) -> None:
        state._counted = tuple([follower for id, follower in state.followers.items() if id in state.isr])

    patch.setattr(PartitionState, "update_counted", count_isr)


@mutation("cluster", [INVARIANT], replicated(leader_without_followers, partitions=3))
@replaces(PartitionState, "advance_high_watermark")
def the_high_watermark_advances_below_the_minimum(original: Any, state: PartitionState, leader_position: int) -> bool:
    """Records are committed with fewer replicas in sync than min.insync.replicas."""
    is_under_min_isr, state.is_under_min_isr = state.is_under_min_isr, False
    try:
        return original(state, leader_position)  # type: ignore[no-any-return]
    finally:
        state.is_under_min_isr = is_under_min_isr


@mutation("cluster", [INVARIANT], replicated(leadership_flaps))
def claims_survive_a_leader_epoch(patch: pytest.MonkeyPatch) -> None:
    """A new leader counts what followers claimed when it led the last time."""
    claims: dict[tuple[PartitionState, int], int] = {}

    def remember(original: Any, state: PartitionState, *arguments: Any) -> None:
        for follower in state.followers.values():
            if follower.log_end_offset >= 0:
                claims[state, follower.broker_id] = follower.log_end_offset
        original(state, *arguments)
        for follower in state.followers.values():
            follower.log_end_offset = claims.get((state, follower.broker_id), -1)

    wrap(patch, PartitionState, "begin_leader_epoch", remember)
    wrap(patch, PartitionState, "begin_follower_epoch", remember)


@mutation("cluster", [INVARIANT], replicated(follower_loses_its_tail))
@replaces(FollowerState, "record_fetch")
def the_highest_claim_counts(original: Any, follower: FollowerState, epoch: int, offset: int, *others: int) -> None:
    """A follower that has lost the end of its log still counts with what it had before."""
    original(follower, epoch, max(offset, follower.log_end_offset), *others)


@mutation("cluster", [INVARIANT], replicated(follower_loses_its_tail))
@replaces(PartitionState, "can_join")
def followers_join_one_fetch_early(original: Any, state: PartitionState, follower: FollowerState, end: int) -> bool:
    """A follower joins the ISR when the response to its Fetch has what it lacks, before it has it."""
    claim, follower.log_end_offset = follower.log_end_offset, end
    try:
        return original(state, follower, end)  # type: ignore[no-any-return]
    finally:
        follower.log_end_offset = claim


# Elections.


@mutation("cluster", [INVARIANT], replicated("kill"), first_seed=2)
def a_leader_epoch_is_used_again(patch: pytest.MonkeyPatch) -> None:
    """A new leader continues the epoch of the former one."""

    def keep_epoch(original: Any, partition: Any, *arguments: Any, **named: Any) -> Any:
        changed = original(partition, *arguments, **named)
        if changed is not None and changed.leader >= 0:
            changed.leader_epoch = partition.leader_epoch
        return changed

    wrap(patch, broker_changes, "change_partition", keep_epoch)


@mutation("cluster", [INVARIANT], replicated(fenced_follower))
def fenced_followers_join(patch: pytest.MonkeyPatch) -> None:
    """A broker without a session joins the ISR as long as it fetches."""
    patch.setattr(IsrManager, "_is_eligible", lambda manager, state, follower: True)
    patch.setattr(partition_requests, "_is_eligible", lambda broker, epoch: True)


@mutation("cluster", [INVARIANT], replicated(bounce_between_two_looks))
@replaces(replication_control_manager, "settle_partition")
def a_bounce_goes_unseen(original: Any, partition: Any, changes: Any, *others: Any) -> Any:
    """A broker that registers again within one look of the controller stays in the ISR."""
    return original(partition, replace(changes, restarted={}), *others)


@mutation("cluster", [INVARIANT], replicated(bounce_while_joining, partitions=3))
def former_broker_epochs_join(patch: pytest.MonkeyPatch) -> None:
    """A follower joins the ISR for what it had before it was restarted."""

    def is_eligible(broker: KnownBroker | None, epoch: int) -> bool:
        return broker is not None and not broker.fenced and not broker.registration.in_controlled_shutdown

    patch.setattr(partition_requests, "_is_eligible", is_eligible)


@mutation("cluster", [INVARIANT], replicated(late_isr_change, partitions=4, brokers=4))
@replaces(isr_change_queue, "alter_partition")
def late_isr_changes_are_accepted(original: Any, partition: Any, leader: int, proposal: Any, *others: Any) -> Any:
    """The controller makes a leader's change although it has changed the partition since."""
    if proposal.leader_epoch == partition.leader_epoch:
        proposal = replace(proposal, partition_epoch=partition.partition_epoch)
    return original(partition, leader, proposal, *others)


@mutation("cluster", [INVARIANT], replicated(eligible_replica_loses_its_tail))
@replaces(broker_changes, "change_partition")
def replicas_stay_eligible_after_a_crash(original: Any, *arguments: Any, **named: Any) -> Any:
    """A broker that cannot prove that it stopped cleanly may be elected as before."""
    return original(*arguments, **{**named, "unclean": ()})


@mutation("cluster", [INVARIANT], replicated(empty_disk_returns))
@replaces(broker_changes, "change_partition")
def an_empty_disk_is_elected(original: Any, *arguments: Any, **named: Any) -> Any:
    """The last known leader is elected although its disk was replaced."""
    return original(*arguments, **{**named, "replaced_disks": ()})


@mutation("cluster", [INVARIANT], replicated(two_controllers, partitions=3, seconds=4.0))
def a_former_controller_writes(patch: pytest.MonkeyPatch) -> None:
    """The writes of a controller are not fenced: they check neither its epoch nor the number of the last change."""

    async def write(writer: MetadataWriter, ops: Sequence[Op], deleted_topics: Sequence[bytes] = ()) -> None:
        await writer.coordination.multi([*change_ops(writer._loader.change_log.number + 1, ops), *ops])
        await writer._loader.catch_up()

    patch.setattr(MetadataWriter, "write", write)


@mutation("cluster", [LIVENESS], replicated(lost_watches, producers=1, pause_between_sends_s=0.2))
def lost_watches_are_not_set_again(patch: pytest.MonkeyPatch) -> None:
    """After a lost connection the coordination service has no watch, and no event comes."""

    def ignore_loss(original: Any, loader: MetadataLoader, *events: WatchEvent) -> None:
        if all(event.kind != "lost" for event in events):
            original(loader, *events)

    wrap(patch, MetadataLoader, "_on_change", ignore_loss)
    wrap(patch, MetadataLoader, "_on_controller_change", ignore_loss)


# Followers.


@mutation("cluster", [INVARIANT], replicated(leader_changes_unheard))
@replaces(FetchedPartitions, "add")
def followers_truncate_to_their_high_watermark(
    original: Any, fetched: FetchedPartitions, state: PartitionFetchState
) -> None:
    """A follower of a new leader removes what it does not know to be committed, as Kafka did before KIP-101."""
    original(fetched, state)
    partition = state.partition
    if partition.high_watermark < partition.log.log_end_offset:
        fetched._change_log(state, partition.follower_truncate(partition.high_watermark))


@mutation("cluster-durable", [INVARIANT], replicated("slow_disk", seconds=6.0))
def followers_claim_what_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    """With flush.before.ack a follower fetches again before its records are synced."""
    patch.setattr(FetchedPartitions, "_wait_for_sync", lambda fetched, state: fetched.mark_changed(state))
    patch.setattr(FetchedPartitions, "is_held_for_sync", lambda fetched, state: False)


@mutation("cluster", [INVARIANT], replicated(diverging_leader), slow=True)
@replaces(LogTruncator, "_apply")
def truncations_keep_the_producers(original: Any, truncator: LogTruncator, truncation: Any) -> None:
    """After a truncation batches that are no longer in the log count as duplicates."""
    log = truncator._log
    producers = log.producers
    original(truncator, truncation)
    log.producers = producers


@mutation("cluster", [INVARIANT], replicated(follower_unheard, deleters=1), slow=True)
@replaces(delayed_delete_records, "low_watermark")
def deletions_ignore_followers(original: Any, partition: Partition, is_alive: Any) -> int:
    """DeleteRecords responds when the leader has deleted the records."""
    return partition.log.log_start_offset


# Coordinators.


@mutation(
    "cluster", [INVARIANT], broker(replicated(coordinator_changes_unheard, **GROUPS), **ONE_COORDINATOR), first_seed=1
)
def coordinators_do_not_wait_for_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """A coordinator answers from records that may not be committed."""

    async def load(loader: PartitionLoader, shard: Any) -> None:
        await loader._leader_end_offset()
        if not loader._stopped:
            await loader._replay(shard)

    patch.setattr(PartitionLoader, "load", load)


@mutation("cluster", [INVARIANT], broker(replicated(coordinator_returns, **GROUPS), **ONE_COORDINATOR))
def coordinators_are_not_loaded_again(patch: pytest.MonkeyPatch) -> None:
    """A broker that is elected again continues with the committed offsets of its former leader epoch."""
    former: dict[tuple[Any, int], Any] = {}

    def keep(original: Any, runtime: CoordinatorRuntime[Any], tp: TopicPartition, epoch: int) -> None:
        original(runtime, tp, epoch)
        shard = runtime._contexts[tp.partition].shard
        if isinstance(shard, GroupShard):
            shard.offsets = former.setdefault((runtime, tp.partition), shard.offsets)

    def has_loaded(original: Any, loader: PartitionLoader, shard: Any) -> Any:
        is_known = isinstance(shard, GroupShard) and bool(shard.offsets.by_group)
        return sleep(0) if is_known else original(loader, shard)

    wrap(patch, CoordinatorRuntime, "_elect", keep)
    wrap(patch, PartitionLoader, "_replay", has_loaded)
