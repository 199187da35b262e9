"""The rebalance itself: it is prepared, waits for members to join, and ends in a new generation.

Functions give what is to be written first, or None.
"""

from kbroker.coordinator.group.classic.classic_group import JOIN_DEADLINE, SYNC_DEADLINE, ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.classic.requests import JoinResponse, Now, Settings, SyncResponse, Write
from protocol.errors import ErrorCode


def rebalance(group: ClassicGroup, now: Now, settings: Settings) -> Write | None:
    """Start a rebalance, or see whether the one in progress can end."""
    if group.can_rebalance():
        return prepare(group, now, settings)
    return end_if_all_joined(group, now)


def prepare(group: ClassicGroup, now: Now, settings: Settings) -> Write | None:
    """Have every member join again.

    The first rebalance of an empty group always waits group.initial.rebalance.delay.ms for more members.
    """
    if group.state is GroupState.COMPLETING_REBALANCE:
        drop_assignment(group, ErrorCode.REBALANCE_IN_PROGRESS, now)
    group.pending_syncs.clear()
    group.deadlines.cancel(SYNC_DEADLINE)
    initial = group.state is GroupState.EMPTY
    group.enter(GroupState.PREPARING_REBALANCE)
    if initial:
        delay_ms = settings.group_initial_rebalance_delay_ms
        _delay(group, delay_ms, max(group.rebalance_timeout_ms() - delay_ms, 0), now)
        return None
    group.initial_delay = None
    if group.all_joined():
        return complete_join(group, now)
    group.deadlines.set(JOIN_DEADLINE, now.mono_ms + group.rebalance_timeout_ms())
    return None


def _delay(group: ClassicGroup, delay_ms: int, left_ms: int, now: Now) -> None:
    group.initial_delay = (delay_ms, left_ms)
    group.deadlines.set(JOIN_DEADLINE, now.mono_ms + delay_ms)


def end_if_all_joined(group: ClassicGroup, now: Now) -> Write | None:
    """The initial delay is not cut short by that."""
    preparing = group.state is GroupState.PREPARING_REBALANCE and group.initial_delay is None
    return complete_join(group, now) if preparing and group.all_joined() else None


def on_join_deadline(group: ClassicGroup, now: Now, settings: Settings) -> Write | None:
    """The rebalance timeout has passed, or the initial delay: which is extended while new members come."""
    if group.initial_delay is not None and group.joined_during_delay:
        delay_ms, left_ms = group.initial_delay
        if left_ms > 0:
            group.joined_during_delay = False
            next_ms = min(settings.group_initial_rebalance_delay_ms, left_ms)
            _delay(group, next_ms, max(left_ms - delay_ms, 0), now)
            return None
    return complete_join(group, now)


def complete_join(group: ClassicGroup, now: Now) -> Write | None:
    """End the joining: who has not come is out, except static members, who have until their session ends."""
    group.deadlines.cancel(JOIN_DEADLINE)
    for member in [one for one in group.members.values() if one.joining is None and one.instance_id is None]:
        group.remove(member.member_id)
    if group.members and not _find_joined_leader(group):
        # Only static members are left and none has come: wait until one does, or their sessions end.
        group.deadlines.set(JOIN_DEADLINE, now.mono_ms + group.rebalance_timeout_ms())
        return None
    group.initial_delay, group.joined_during_delay = None, False
    group.generation += 1
    group.pending_syncs.clear()
    if not group.members:
        return _become_empty(group, now)
    group.protocol = group.choose_protocol()
    group.subscribed = group.find_subscription()
    group.enter(GroupState.COMPLETING_REBALANCE)
    _answer_joins(group, now)
    group.deadlines.set(SYNC_DEADLINE, now.mono_ms + group.rebalance_timeout_ms())
    return None


def _find_joined_leader(group: ClassicGroup) -> bool:
    """Keep the leader if it has joined, else take the first member that has; False when nobody has."""
    leader = group.members.get(group.leader or "")
    if leader is not None and leader.joining is not None:
        return True
    joined = next((member for member in group.members.values() if member.joining is not None), None)
    if joined is not None:
        group.leader = joined.member_id
    return joined is not None


def _become_empty(group: ClassicGroup, now: Now) -> Write:
    group.protocol = None
    group.subscribed = group.find_subscription()
    group.enter(GroupState.EMPTY)
    return Write(group.record(now.wall_ms))


def _answer_joins(group: ClassicGroup, now: Now) -> None:
    for member in list(group.members.values()):
        group.answer_join(member, generation_answer(group, member.member_id))
        group.keep_session(member, now.mono_ms)
        member.is_new = False
        group.pending_syncs.add(member.member_id)


def generation_answer(group: ClassicGroup, member_id: str) -> JoinResponse:
    """The current generation as a join is answered; the leader gets the members."""
    return JoinResponse(
        member_id=member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader or "",
        members=group.joined_members() if group.leader == member_id else (),
    )


def drop_assignment(group: ClassicGroup, error: ErrorCode, now: Now) -> None:
    """No assignment comes of this generation: tell those who wait for it."""
    for member in group.members.values():
        member.assignment = b""
        if group.answer_sync(member, SyncResponse(error)):
            group.keep_session(member, now.mono_ms)
