"""Mistakes that show when a leader is replaced, and leads again, or when its disk is full."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from kbroker.coordination.interface import Coordination
from kbroker.coordinator.transaction.transaction_markers import TransactionMarkerSender
from kbroker.interbroker.fencing_check import FencingCheck
from kbroker.metadata import registration
from kbroker.metadata.image import UNKNOWN_REPLICA, PartitionRegistration, SeenMetadata, WriteHealth
from kbroker.metadata.recovery import log_recovery, log_recovery_manager
from kbroker.metadata.recovery.log_recovery import MAX_UNSEEN_EPOCHS, ReadLogs, ReplicaLog
from kbroker.metadata.replication import partition_requests, replication_control_manager
from kbroker.replica import isr_manager
from kbroker.replica.fetch import fetch_manager, partition_reads
from kbroker.replica.fetcher.fetched_partitions import PartitionFetchState
from kbroker.replica.logs.disk_reports import DiskReporter
from kbroker.replica.partition_state import PartitionState
from kbroker.simulation.scenarios.cluster_faults import fill, fill_several, flap
from kbroker.simulation.scenarios.faults import Fault
from kbroker.storage.log.log_state import LogOwner
from kbroker.storage.recovery.truncation import LogTruncator
from protocol.errors import ErrorCode
from tests.unit.simulation.mutations.cluster import replicated
from tests.unit.simulation.mutations.leadership_faults import (
    late_claim,
    late_response,
    leader_moves_unheard,
    leader_returns,
    only_clients_reach_the_leader,
    restored_while_sessions_expire,
    restored_with_a_stale_follower_first,
    restored_with_an_unaware_broker_first,
    restored_without_the_leader,
    successor_knows_a_lower_high_watermark,
    synced_records_are_truncated,
)
from tests.unit.simulation.mutations.mutation import INVARIANT, LIVENESS, Without, mutation, replaces, wrap
from tests.unit.simulation.mutations.shapes import Shape, broker, only, topics


class WithoutCheckpoints:
    """The owner of a log, which writes no checkpoint files."""

    def __init__(self, owner: LogOwner) -> None:
        self._owner = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owner, name)

    async def write_checkpoints(self) -> None:
        pass


@mutation("cluster", [INVARIANT], replicated(late_claim, partitions=3), first_seed=2)
def claims_of_former_epochs_count(patch: pytest.MonkeyPatch) -> None:
    """A leader does not check the leader epoch of a follower's Fetch."""

    def check_fetch(original: Any, partition: Any, fetched: Any, request: Any) -> Any:
        if request.replica_id >= 0:
            fetched.current_epoch = partition.leader_epoch
        return original(partition, fetched, request)

    wrap(patch, partition_reads, "check_fetch", check_fetch)
    wrap(patch, fetch_manager, "check_fetch", check_fetch)


@mutation(
    "cluster",
    [INVARIANT],
    broker(
        replicated(successor_knows_a_lower_high_watermark, partitions=4, brokers=4), replica_fetch_max_bytes="1048576"
    ),
)
@replaces(PartitionState, "can_join")
def followers_join_below_the_start_of_the_epoch(original: Any, state: PartitionState, *arguments: Any) -> bool:
    """A follower joins the ISR with what a new leader knows to be committed, which may be less than what is."""
    start, state.epoch_start_offset = state.epoch_start_offset, 0
    try:
        return original(state, *arguments)  # type: ignore[no-any-return]
    finally:
        state.epoch_start_offset = start


@mutation("cluster", [INVARIANT], replicated(late_response, partitions=3), first_seed=3, slow=True)
def late_responses_are_appended(patch: pytest.MonkeyPatch) -> None:
    """A follower appends what it has fetched in a former epoch, before it truncated its log."""

    def next_request(original: Any, state: PartitionFetchState, *arguments: int) -> Any:
        row = original(state, *arguments)
        state.request_number = 0
        return row

    wrap(patch, PartitionFetchState, "next_request", next_request)
    patch.setattr(PartitionFetchState, "is_late", False)


@mutation("cluster", [INVARIANT], replicated(leader_returns, partitions=3))
@replaces(LogTruncator, "_apply")
def truncations_keep_the_epoch_of_the_last_append(original: Any, truncator: LogTruncator, truncation: Any) -> None:
    """A leader epoch that a truncation has removed is not recorded when its records are appended again."""
    log = truncator._log
    epoch = log._append_epoch
    original(truncator, truncation)
    log._append_epoch = epoch


@mutation("cluster", [INVARIANT], replicated(synced_records_are_truncated, seconds=2.0, partitions=3), first_seed=3)
@replaces(LogTruncator, "_apply")
def truncations_keep_the_recovery_point(original: Any, truncator: LogTruncator, truncation: Any) -> None:
    """What is appended after a truncation counts as synced, as what was truncated is."""
    log = truncator._log
    recovery_point = log.recovery_point
    original(truncator, truncation)
    log.recovery_point = recovery_point


@mutation(
    "cluster",
    [INVARIANT, "corrupt read"],
    topics(
        replicated(synced_records_are_truncated, seconds=2.0, partitions=3, producers=3), internal_segment_bytes="1024"
    ),
    first_seed=3,
    slow=True,
)
@replaces(LogTruncator, "truncate_to")
async def truncations_keep_the_checkpoints(original: Any, truncator: LogTruncator, offset: int) -> None:
    """A truncation does not write the lower recovery point, which a start after a power loss trusts."""
    truncator._owner = WithoutCheckpoints(truncator._owner)
    await original(truncator, offset)


@mutation(
    "cluster",
    [LIVENESS],
    broker(
        replicated(leader_moves_unheard, partitions=3, brokers=4, producers=0, transactors=1),
        transaction_state_log_num_partitions="1",
    ),
    slow=True,
)
@replaces(TransactionMarkerSender, "_retry_marker")
def markers_for_a_former_leader_are_forgotten(original: Any, sender: Any, markers: Any, tp: Any, error: Any) -> None:
    """A coordinator does not send a marker again that the former leader of the partition has refused."""
    if error is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
        original(sender, markers, tp, error)


@mutation("cluster", [INVARIANT], replicated(only_clients_reach_the_leader, seconds=20.0, partitions=3), slow=True)
def latest_offsets_of_replaced_leaders(patch: pytest.MonkeyPatch) -> None:
    """A leader that only clients reach returns the latest offsets until it gives up its roles."""
    patch.setattr(FencingCheck, "is_in_doubt", False)


# Brokers that cannot write to their disks.


def disks(fault: Fault) -> Shape:
    """Two producers, and one fault at a time."""
    none = dict.fromkeys(("members", "transactors", "transformers", "stale_clients"), 0)
    return only(fault, seconds=14.0, pause_s=1.0, producers=2, readers=1, **none)


@mutation("cluster-disks", [INVARIANT], disks(fill))
@replaces(DiskReporter, "_is_needed")
def brokers_that_cannot_write_report_nothing(original: Any, reporter: Any, health: WriteHealth) -> bool:
    """A broker whose disk is full keeps its roles, and refuses writes."""
    return False


@mutation("cluster-disks", [INVARIANT], disks(fill), slow=True)
@replaces(replication_control_manager, "give_up_replica")
def leaders_that_cannot_write_stay(original: Any, partition: Any, broker_id: int, *arguments: Any) -> Any:
    """Only followers leave the ISR when they cannot write."""
    return None if partition.leader == broker_id else original(partition, broker_id, *arguments)


@mutation("cluster-disks", [INVARIANT], disks(fill))
@replaces(replication_control_manager, "give_up_replica")
def followers_that_cannot_write_stay_in_sync(original: Any, partition: Any, broker_id: int, *arguments: Any) -> Any:
    """Only leaders leave the ISR when they cannot write: acks=all waits for the followers."""
    return original(partition, broker_id, *arguments) if partition.leader == broker_id else None


@mutation("cluster-disks", [INVARIANT], disks(fill_several))
def brokers_on_probation_are_not_needed(patch: pytest.MonkeyPatch) -> None:
    """A broker on probation does not join the ISR where writes have stopped without it."""

    def may_join(original: Any, broker_id: int, isr: Any, write_health: Any, min_isr: int) -> bool:
        return write_health(broker_id) is WriteHealth.OK

    for module in (partition_requests, isr_manager):
        wrap(patch, module, "may_join", may_join)


@mutation("cluster-disks", [INVARIANT], disks(flap), slow=True)
def brokers_that_cannot_write_join(patch: pytest.MonkeyPatch) -> None:
    """A follower whose disk is full joins the ISR of a partition to which nobody writes."""
    for module in (partition_requests, isr_manager):
        wrap(patch, module, "may_join", lambda original, *arguments: True)


# What a restore from an older copy may reveal.
RESTORE_SIGNS = [INVARIANT, LIVENESS, "lost write", "inconsistent offsets"]


@mutation("cluster", RESTORE_SIGNS, replicated(restored_without_the_leader, seconds=12.0))
def an_older_copy_goes_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """Leaders are elected by the ISRs of the copy."""
    patch.setattr(log_recovery_manager, "needs_recovery", lambda seen, log: False)


@mutation("cluster", RESTORE_SIGNS, replicated(restored_without_the_leader, seconds=12.0))
def a_recovery_uses_epochs_of_the_lost_history(patch: pytest.MonkeyPatch) -> None:
    """Leader epochs continue with those of the copy."""

    def begin(partition: PartitionRegistration, seen: Iterable[SeenMetadata]) -> PartitionRegistration:
        # The checks go by the partition epoch.
        epoch = partition.partition_epoch + MAX_UNSEEN_EPOCHS
        return replace(
            partition, leader=-1, isr=[], elr=[], last_known_elr=list(UNKNOWN_REPLICA), partition_epoch=epoch
        )

    patch.setattr(log_recovery_manager, "begin_recovery", begin)


@mutation("cluster", RESTORE_SIGNS, replicated(restored_without_the_leader, seconds=12.0))
def a_recovery_elects_the_worst_log(patch: pytest.MonkeyPatch) -> None:
    """The log with the lowest epoch, and of these the shortest, leads."""

    class Reversed(ReplicaLog):
        def __gt__(self, other: tuple[object, ...]) -> bool:
            return ReplicaLog.__lt__(self, other)

    best = log_recovery._best

    def worst(partition: PartitionRegistration, logs: dict[int, ReplicaLog | None], acceptable: set[int]) -> int | None:
        return best(partition, {id: log and Reversed(*log) for id, log in logs.items()}, acceptable)

    patch.setattr(log_recovery, "_best", worst)


@mutation(
    "cluster", RESTORE_SIGNS, replicated(restored_with_a_stale_follower_first, seconds=25.0), first_seed=1, slow=True
)
def a_recovery_does_not_wait_for_other_logs(patch: pytest.MonkeyPatch) -> None:
    """The first broker that has a log leads."""

    def suffices(replicas: list[int], read: ReadLogs, min_isr: int) -> bool:
        return bool(read.logs)

    patch.setattr(log_recovery, "_suffices", suffices)


@mutation(
    "cluster",
    RESTORE_SIGNS,
    # The broker can acknowledge records alone.
    topics(replicated(restored_with_an_unaware_broker_first, seconds=25.0), min_insync_replicas="1"),
    slow=True,
)
def brokers_are_not_waited_for_after_all_sessions_have_ended(patch: pytest.MonkeyPatch) -> None:
    """The first broker that registers leads by the copy, though others may have seen that it is old."""
    patch.setattr(log_recovery_manager, "FORMER_BROKERS_S", 0.0)


@mutation(
    "cluster",
    RESTORE_SIGNS,
    topics(replicated(restored_while_sessions_expire, seconds=25.0), min_insync_replicas="1"),
    slow=True,
)
def a_starting_broker_does_not_notice_the_end_of_its_session(patch: pytest.MonkeyPatch) -> None:
    """It waits for the end of its former session in one that has expired, so the others stop waiting for it."""

    def wait(original: Any, environment: Any, coordination: Coordination, *arguments: Any) -> Any:
        return original(environment, Without(coordination, "on_expired"), *arguments)

    wrap(patch, registration, "_wait_until_deleted", wait)
