"""Mistakes in share groups: locks, acknowledgements, stored states, dead letters."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from kbroker.coordinator.share import share_shard
from kbroker.coordinator.share.share_shard import ShareShard
from kbroker.share.dead_letters import DeadLetterWriter
from kbroker.share.delivery import Acknowledgement
from kbroker.share.in_flight import Span
from kbroker.share.leader import SharePartitionLeader
from kbroker.share.partition import SharePartition, StateChange
from kbroker.simulation.scenarios.simulation import Simulation
from tests.unit.simulation.mutations.cluster import replicated
from tests.unit.simulation.mutations.mutation import INVARIANT, LIVENESS, mutation, replaces
from tests.unit.simulation.mutations.scene import Scene
from tests.unit.simulation.mutations.shapes import NEVER, Shape, broker, one_partition, only

SPINNING = "SpinningError"
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


@mutation("share", [LIVENESS, INVARIANT, *BROKEN], shared("kill", seconds=6.0))
@replaces(ShareShard, "redundant_before")
def live_snapshots_are_deleted(_: Any, shard: ShareShard) -> int:
    """Records are deleted behind the last snapshot of a partition, too."""
    return shard._end_offset()


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
)
@replaces(share_shard, "_check_leader_epoch")
def former_leaders_store_acknowledgements(*_: Any) -> None:
    """The share coordinator accepts the writes of a leader that was replaced."""
