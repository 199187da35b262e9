"""Mistakes in the group coordinator and in share groups: locks, acknowledgements, stored states, dead letters."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic import classic_groups, heartbeat
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.consumer import conversion
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.share.state_topics import StatesByTopic, StateTopics
from kbroker.coordinator.runtime import loader
from kbroker.coordinator.runtime.coordinator_context import CoordinatorContext
from kbroker.coordinator.runtime.operation import ORDERED, CoordinatorResult, ignore
from kbroker.coordinator.share import share_shard
from kbroker.coordinator.share.share_partition_state import SharePartitionKey
from kbroker.coordinator.share.share_shard import ShareShard
from kbroker.share.dead_letters import DeadLetterWriter
from kbroker.share.delivery import Acknowledgement
from kbroker.share.in_flight import Span
from kbroker.share.leader import SharePartitionLeader
from kbroker.share.partition import SharePartition, StateChange
from kbroker.simulation.disk.log_files import GROUPS_TOPIC
from kbroker.simulation.scenarios.simulation import Simulation
from kbroker.storage.cleaner import cleaner
from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers
from tests.unit.simulation.mutations.cluster import replicated
from tests.unit.simulation.mutations.mutation import INVARIANT, LIVENESS, SPINNING, ignore_errors, mutation, replaces
from tests.unit.simulation.mutations.scene import Scene
from tests.unit.simulation.mutations.shapes import (
    NEVER,
    Shape,
    broker,
    crash,
    member_out_of_reach,
    one_partition,
    only,
    short,
)


@mutation(
    "network",
    ["stale commit"],
    only(member_out_of_reach, pause_s=1.0, seconds=30.0, members=2, readers=1, producers=1),
    first_seed=5,
    slow=True,
)
def stale_member_commits(patch: pytest.MonkeyPatch) -> None:
    """A removed member may commit."""
    codes = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION
    ignore_errors(patch, ClassicGroup, "validate_offset_commit", *codes)


CONSUMER_PROTOCOL = {
    "group_consumer_min_session_timeout_ms": "1000",
    "group_consumer_session_timeout_ms": "6000",
    "group_consumer_assignment_interval_ms": "0",
}


@mutation(
    "network",
    ["stale commit"],
    broker(
        only(member_out_of_reach, pause_s=1.0, seconds=30.0, members=2, readers=1, producers=1, consumer_protocol=True),
        **CONSUMER_PROTOCOL,
    ),
    first_seed=6,
    slow=True,
)
def stale_consumer_protocol_member_commits(patch: pytest.MonkeyPatch) -> None:
    """A removed member of the consumer protocol may commit."""
    codes = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH
    ignore_errors(patch, ConsumerGroup, "validate_offset_commit", *codes)


@mutation(
    "calm",
    ["stale commit"],
    broker(short(seconds=8.0, members=3, readers=1, producers=1, consumer_protocol=True), **CONSUMER_PROTOCOL),
)
@replaces(ConsumerGroup, "is_free_for")
def partitions_are_assigned_before_they_are_revoked(*_: Any) -> bool:
    """A partition is given to another member before its owner has revoked it."""
    return True


@mutation(
    "calm",
    ["stale commit"],
    broker(short(seconds=12.0, members=4, readers=1, producers=1, consumer_protocol=True), **CONSUMER_PROTOCOL),
    first_seed=9,
)
@replaces(conversion, "assignment_by_id")
def converted_members_own_nothing(*_: Any) -> dict[bytes, tuple[int, ...]]:
    """A group that becomes one of the consumer protocol forgets what its members have."""
    return {}


@mutation("disk", ["lost commit"], only("full", members=3), first_seed=1)
@replaces(GroupCoordinator, "commit_offsets")
def commit_is_acknowledged_early(real: Any, groups: GroupCoordinator, *arguments: Any) -> None:
    """A commit is acknowledged before it is appended."""
    *commit, respond = arguments
    errors: list[KafkaError | None] = []
    real(groups, *commit, lambda _, error: errors.append(error))
    respond(None, errors[0] if errors else None)


@mutation("disk", ["lost commit"], only("full", "kill", concurrent_faults=3, members=3), first_seed=1)
@replaces(CoordinatorContext, "_on_append_failed")
def commit_counts_although_refused(_: Any, context: CoordinatorContext[Any], events: Any, error: ErrorCode) -> None:
    """A commit takes effect although its append failed."""
    for event in events:
        for record in event.result.records:
            context.shard.replay(record, -1, -1)
        context._finish(event, ErrorCode.NONE)


def consuming(*faults: Any, **values: Any) -> Shape:
    """Members of the consumer protocol in a cluster, with one coordinator."""
    shape = replicated(*faults, members=4, producers=1, consumer_protocol=True, pause_between_sends_s=0.05, **values)
    configs = {"offsets_topic_num_partitions": "1", "replica_lag_time_max_ms": "30000"}
    return broker(shape, **CONSUMER_PROTOCOL, **configs)


async def _refused_members(simulation: Simulation, random: Random) -> None:
    """The log refuses a batch with the records of members, once. A full disk refuses the first batch of any kind."""
    scene = Scene(simulation, (GROUPS_TOPIC, 0))
    if not await scene.until_in_sync(0) or scene.leader.services is None:
        return
    [context] = scene.leader.services.groups.runtime.contexts()
    append = context._append

    def refuse(events: Any, *rest: Any) -> bool:
        if not any(event.mode is ORDERED for event in events):
            return append(events, *rest)
        del context._append
        context._on_append_failed(events, ErrorCode.KAFKA_STORAGE_ERROR)
        return True

    context._append = refuse
    await asyncio.sleep(NEVER)


@mutation("cluster-groups", [INVARIANT], consuming(_refused_members, seconds=8.0))
@replaces(CoordinatorContext, "_on_append_failed")
def a_failed_append_leaves_replayed_state(
    _: Any, context: CoordinatorContext[Any], events: Any, error: ErrorCode
) -> None:
    """Records that were replayed when they were queued, and not appended, keep their effect."""
    context._fail_all(events, error)


async def _coordinator_without_followers(simulation: Simulation, random: Random) -> None:
    """The coordinator appends what its followers do not have, then another one is elected."""
    scene = Scene(simulation, (GROUPS_TOPIC, 0))
    if not await scene.until_in_sync(0):
        return
    coordinator, followers = scene.leader, scene.followers
    scene.cut(coordinator, followers)
    await asyncio.sleep(4.0)
    scene.expire(coordinator)
    await scene.until(lambda: scene.leads(followers[0]) or scene.leads(followers[1]))
    scene.heal(coordinator, followers)
    await scene.until_in_sync(0)


@mutation("cluster-groups", ["lost epoch"], consuming(_coordinator_without_followers, seconds=15.0), slow=True)
@replaces(CoordinatorContext, "_enqueue")
def heartbeats_respond_before_the_commit(real: Any, context: CoordinatorContext[Any], event: Any, *rest: Any) -> None:
    """The response to a heartbeat does not wait for the commit of its records."""
    real(context, event, *rest)
    if event.mode is ORDERED:
        event.respond, respond = ignore, event.respond
        if event.key in context._locks:
            context._locks[event.key].last_write = None
        respond(event.result.response, event.error)


@mutation("crash", ["backward generation", "double assignment"], only(crash, pause_s=1.0, members=3, readers=1))
@replaces(classic_groups, "group_from_record")
def generation_restarts_at_zero(real: Any, *arguments: Any) -> Any:
    """A loaded group restarts at generation 0."""
    group = real(*arguments)
    group.generation = 0
    return group


@mutation("crash", ["lost commit", "backward generation"], only(crash, pause_s=1.0, members=3, readers=1), first_seed=2)
@replaces(loader, "iter_headers")
def load_misses_the_last_batch(_: Any, data: Any) -> Any:
    """Loading a group omits the last batch."""
    return list(iter_headers(data))[:-1]


@mutation("calm", ["LivenessError"], short(members=2), slow=True)
@replaces(heartbeat, "_expire_session")
def sessions_never_end(_: Any, *arguments: Any) -> None:
    """A member's session never ends."""


@mutation(
    "crash",
    ["lost commit", "backward generation"],
    broker(
        only(
            "kill",
            "restart",
            pause_s=1.0,
            seconds=6.0,
            members=3,
            groups_topic={
                "internal.segment.bytes": "1024",
                "min.cleanable.dirty.ratio": "0",
                "max.compaction.lag.ms": "500",
            },
        ),
        log_cleaner_backoff_ms="100",
    ),
    first_seed=3,
)
@replaces(cleaner, "build_offset_map")
def compaction_drops_the_newest(real: Any, *arguments: Any) -> Any:
    """Compaction drops each key's newest record."""
    offsets, cleaned_to = real(*arguments)
    return {key: offset + 1 for key, offset in offsets.items()}, cleaned_to


# Share groups.

BROKEN = ["BrokenShareGroup"]


def shared(*faults: Any, pause_s: float = 0.3, **values: Any) -> Shape:
    """One partition, which a share group consumes."""
    plan: dict[str, Any] = {"producers": 1, "readers": 1, "members": 0, "deleters": 0, "transactors": 0}
    plan |= {"transformers": 0, "stale_clients": 0, "share_members": 3, "pause_between_sends_s": 0.05}
    return one_partition(only(*faults, pause_s=pause_s, **{**plan, **values}))


@mutation("share", [INVARIANT], shared())
@replaces(SharePartition, "next_deadline_ms")
def locks_never_expire(*_: Any) -> None:
    """A lock never expires."""


@mutation("share", [INVARIANT], shared("full", seconds=6.0, pause_s=0.1))
@replaces(SharePartition, "roll_back")
def locks_do_not_expire_after_a_failed_write(
    real: Any, partition: SharePartition, change: StateChange, now: int
) -> None:
    """A lock whose time ended while a change was being stored, in vain, has no timer any more."""
    real(partition, change, now)
    for update in change.updates:
        update.range.lock_until_ms = NEVER


@mutation("share", [INVARIANT, *BROKEN], shared("full", seconds=6.0, pause_s=0.1))
@replaces(SharePartition, "roll_back")
def lost_updates_count(_: Any, partition: SharePartition, change: StateChange, now_ms: int) -> None:
    """A change that was not stored takes effect."""
    partition.commit(change)


@mutation("share", BROKEN, shared(), first_seed=1)
@replaces(SharePartition, "begin_write")
def updates_move_the_start_past_open_records(
    real: Any, partition: SharePartition, changes: Sequence[StateChange]
) -> Any:
    """The start is stored behind the last record in flight, although others are still open."""
    write, undo = real(partition, changes)
    return write._replace(start_offset=partition.end + 1), undo


@mutation("share", BROKEN, shared(), first_seed=2)
@replaces(SharePartition, "acknowledge")
def acknowledgements_of_others_are_accepted(
    real: Any, partition: SharePartition, member_id: str, spans: Sequence[Acknowledgement], *rest: Any
) -> StateChange:
    """A member may acknowledge the records of another one."""
    for each in partition._ranges:
        if each.member_id and any(each.first <= span.last and span.first <= each.last for span in spans):
            each.member_id = member_id
    change: StateChange = real(partition, member_id, spans, *rest)
    return change


@mutation("share", [LIVENESS, SPINNING], shared("kill", transactors=1, producers=1))
@replaces(SharePartition, "_archive_hole")
def holes_stay_open(*_: Any) -> None:
    """Offsets without records are never archived."""


@mutation("share", BROKEN, shared("kill", pause_s=0.2))
@replaces(DeadLetterWriter, "_write")
async def records_are_archived_before_their_dead_letters(
    real: Any, writer: DeadLetterWriter, leader: SharePartitionLeader, span: Span, deliveries: int
) -> None:
    """A record is finished before its dead letter is written."""
    assert leader.state is not None
    await leader.submit(leader.state.archive_dead_letters(span))
    await asyncio.sleep(0.2)
    await real(writer, leader, span, deliveries)


@mutation("share", [LIVENESS, INVARIANT, *BROKEN], shared("kill", seconds=6.0), slow=True)
@replaces(ShareShard, "redundant_before")
def live_snapshots_are_deleted(_: Any, shard: ShareShard) -> int:
    """Records are deleted behind the last snapshot of a partition, too."""
    return shard._end_offset()


@mutation("share", [LIVENESS, *BROKEN], shared(group_changes=True, seconds=6.0), first_seed=2)
@replaces(ShareShard, "initialize")
def altered_offsets_keep_what_was_finished(
    real: Any, shard: ShareShard, key: SharePartitionKey, *rest: Any
) -> CoordinatorResult[None]:
    """The state with another start offset has the ranges of the former one."""
    current, result = shard.partitions.get(key), real(shard, key, *rest)
    batches = () if current is None else current.state.batches
    found: CoordinatorResult[None] = result._replace(records=[result.records[0]._replace(batches=batches)])
    return found


@mutation("share", [LIVENESS], shared(group_changes=True, seconds=6.0))
@replaces(StateTopics, "missing")
def added_partitions_get_no_state(real: Any, states: StateTopics, *rest: Any) -> StatesByTopic:
    """The partitions that a topic gets later are not initialized."""
    return {id: found for id, found in real(states, *rest).items() if id not in states.initialized}


@mutation("share", [LIVENESS], shared(group_changes=True, seconds=6.0), first_seed=1)
@replaces(ShareShard, "on_topics_deleted")
def states_of_deleted_topics_stay(*_: Any) -> None:
    """The share coordinator does not delete the states of deleted topics."""


async def _former_leader_goes_on(simulation: Simulation, random: Random) -> None:
    """The leader does not hear that it is replaced, but reaches the share coordinator and its members."""
    scene = Scene(simulation)
    if not await scene.until_in_sync(0):
        return
    leader = scene.leader
    scene.service.cut(leader.name)
    scene.expire(leader)
    await scene.until(lambda: scene.leader is not leader)
    await asyncio.sleep(1.0)
    scene.service.heal(leader.name)
    await scene.until_in_sync()


@mutation(
    "cluster-share",
    [INVARIANT, *BROKEN],
    broker(
        replicated(_former_leader_goes_on, seconds=8.0, share_members=3, pause_between_sends_s=0.05),
        share_coordinator_state_topic_num_partitions="3",
    ),
    first_seed=9,
    slow=True,
)
@replaces(share_shard, "_check_leader_epoch")
def former_leaders_store_acknowledgements(*_: Any) -> None:
    """The share coordinator accepts the writes of a leader that was replaced."""
