"""The classic groups of one partition: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and the replay of their records.

The decisions are in join.py, rebalance.py and heartbeat.py.
"""

from collections.abc import Iterable
from typing import TypeVar

from kbroker.coordinator.group.classic.classic_group import ClassicGroup, GroupState
from kbroker.coordinator.group.classic.classic_group_member import RespondToJoin, RespondToSync, member_from_record
from kbroker.coordinator.group.classic.classic_members import ClassicMembers
from kbroker.coordinator.group.classic.heartbeat import expire_deadline, heartbeat, leave_group
from kbroker.coordinator.group.classic.join import JoinRequest, check_new_group, join_group
from kbroker.coordinator.group.classic.rebalance import join_error, prepare_rebalance, sync_group
from kbroker.coordinator.group.classic.records import CODEC, ClassicGroupRecord, PendingRecord
from kbroker.coordinator.group.group import Group, Now
from kbroker.coordinator.group.group_shard import GroupKind, GroupShard
from kbroker.coordinator.runtime.operation import CoordinatorResult
from kbroker.runtime.deadlines import Deadlines
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.group_records import GroupMetadataMember, GroupMetadataValue
from protocol.messages.k11_classic_groups import MemberIdentity, SyncGroupRequest, SyncGroupResponse

T = TypeVar("T")
log = EventLogger("kbroker.groups")

# A request may have 10,000 members, whose lines in the log would take 0.2 seconds.
MAX_LOGGED_MEMBERS = 20


class ClassicGroups(GroupKind[ClassicGroup], ClassicMembers):
    """The groups of the classic protocol, and those of simple consumers, which only commit offsets."""

    type_name = ClassicGroup.type_name
    state_names = tuple(state.value for state in GroupState)
    codec = CODEC

    def __init__(self, shard: GroupShard) -> None:
        super().__init__(shard)
        self.classic_members = self

    def new_group(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id)

    # Operations.

    def join_group(self, request: JoinRequest, respond: RespondToJoin) -> CoordinatorResult[None]:
        """Handle a JoinGroup. `respond` is called now or when the rebalance completes."""
        if request.reason is not None:
            log.info("member joins", group=request.group_id, member=request.member_id or None, reason=request.reason)
        group_id, now, config = request.group_id, self.shard.now(), self.shard.config()
        group = self.shard.find(ClassicGroup, group_id)
        if group is not None:
            return self._result(group, join_group(group, request, respond, now, config), None)
        former = self.shard.groups.get(group_id)
        if former is not None and not (former.is_unused and former.changes_kind):
            respond(join_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ""))
            return CoordinatorResult(None)
        error = check_new_group(request)
        if error is not ErrorCode.NONE:
            respond(join_error(error, request.member_id))
            return CoordinatorResult(None)
        group = self.shard.groups[group_id] = ClassicGroup(group_id)
        join_group(group, request, respond, now, config)
        result = self._result(group, self._first_record(group, former), None)
        return result if former is None else result._replace(records=[*former.tombstones(), *result.records])

    def _first_record(self, group: ClassicGroup, former: Group | None) -> PendingRecord:
        """Write a new group immediately, without members, so that the next coordinator knows it.

        `former`: the empty group of another kind that it replaces.
        """

        def on_failed(error: ErrorCode, now: Now) -> None:
            if self.shard.groups.get(group.group_id) is group:
                del self.shard.groups[group.group_id]
                if former is not None:
                    self.shard.groups[group.group_id] = former
                self.shard.keep_simple_group(group.group_id)
            self.close(group, error)

        record = ClassicGroup(group.group_id).record(self.shard.now().wall_ms, {})
        return PendingRecord(record, on_failed=on_failed)

    def sync_group(self, request: SyncGroupRequest, respond: RespondToSync) -> CoordinatorResult[None]:
        """Handle a SyncGroup. `respond` is called now or when the leader's assignment is committed."""
        group = self.shard.find(ClassicGroup, request.group_id)
        if group is None:
            respond(SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
            return CoordinatorResult(None)
        pending = sync_group(group, request, respond, self.shard.now(), self.shard.config())
        return self._result(group, pending, None)

    def classic_heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        group = self.shard.find(ClassicGroup, group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = heartbeat(group, member_id, instance_id, generation, self.shard.mono_ms())
        self.shard.update_timer(group)
        return error

    def leave_group(self, group_id: str, members: list[MemberIdentity]) -> CoordinatorResult[list[ErrorCode]]:
        """Remove members. The response is the result of each member."""
        _log_reasons(group_id, members)
        group = self.shard.find(ClassicGroup, group_id)
        if group is None:
            return CoordinatorResult([ErrorCode.UNKNOWN_MEMBER_ID] * len(members))
        errors, pending = leave_group(group, members, self.shard.now(), self.shard.config())
        return self._result(group, pending, errors)

    def expire_deadline(self, group: ClassicGroup) -> CoordinatorResult[None]:
        return self._result(group, expire_deadline(group, self.shard.now(), self.shard.config()), None)

    def _result(self, group: ClassicGroup, pending: PendingRecord | None, response: T) -> CoordinatorResult[T]:
        self.shard.update_timer(group)
        if pending is None:
            return CoordinatorResult(response)

        def on_committed() -> None:
            pending.on_committed(self.shard.now())
            self.shard.update_timer(group)

        def on_failed(error: ErrorCode) -> None:
            pending.on_failed(error, self.shard.now())
            self.shard.update_timer(group)

        return CoordinatorResult(response, [pending.record], on_committed, on_failed)

    # Replay.

    def replay(self, record: ClassicGroupRecord) -> None:
        group_id, value = record
        group = self.shard.find(ClassicGroup, group_id)
        if value is None:
            self.remove(group_id)
        elif group is None or not self.shard.is_loaded or group.generation < value.generation:
            # A generation that the group does not know is that of a group of another kind. While the partition is
            # loading, and only then, nothing else is replayed before the end of a pause.
            members = value.members if self.shard.is_loaded else paced(value.members)
            self.put(group_from_record(group_id, value, members))
        else:
            replay_group_record(group, value)

    def on_converted(self, group_id: str) -> None:
        """Start the sessions of a group that has been of another kind, unless it is no more of this kind."""
        group = self.shard.find(ClassicGroup, group_id)
        if group is not None and group.state is GroupState.STABLE:
            self.on_loaded(group)
            self.shard.update_timer(group)

    def on_loaded(self, group: ClassicGroup) -> None:
        """Start the sessions of the members.

        A group that exceeds a lowered group.max.size is rebalanced, which removes its last members. So is one without a
        leader: it was converted from another kind, and its assignments are not all that its members need.
        """
        now, config = self.shard.now(), self.shard.config()
        for member in paced(list(group.members.values())):
            group.restart_session(member, now.mono_ms)
        group.subscribed_topics = group.compute_subscribed_topics(group.protocol)
        if len(group.members) > config.group_max_size or (group.members and group.leader_id is None):
            prepare_rebalance(group, now, config)

    def close(self, group: ClassicGroup, error: ErrorCode) -> None:
        members = list(group.members.values())
        group.transition_to(GroupState.DEAD)
        group.members.clear()
        group.pending_join_members.clear()
        group.deadlines = Deadlines()
        self.shard.update_timer(group)
        for member in paced(members):
            group.respond_to_join(member, join_error(error, member.member_id))
            group.respond_to_sync(member, SyncGroupResponse(error_code=error))


def _log_reasons(group_id: str, members: list[MemberIdentity]) -> None:
    with_reason = [member for member in members if member.reason is not None]
    for member in with_reason[:MAX_LOGGED_MEMBERS]:
        name = member.member_id or member.group_instance_id
        log.info("member leaves", group=group_id, member=name, reason=member.reason)
    if len(with_reason) > MAX_LOGGED_MEMBERS:
        log.info("more members leave", group=group_id, members=len(with_reason) - MAX_LOGGED_MEMBERS)


def group_from_record(
    group_id: str, record: GroupMetadataValue, members: Iterable[GroupMetadataMember]
) -> ClassicGroup:
    """Return a loaded group. The sessions of its members start when the whole partition is loaded."""
    group = ClassicGroup(group_id)
    group.state = GroupState.STABLE if record.members else GroupState.EMPTY
    group.protocol_type = record.protocol_type or None
    group.protocol = record.protocol
    group.generation = record.generation
    group.state_timestamp_ms = record.current_state_timestamp
    for member in members:
        group.add_member(member_from_record(member, record.protocol))
    group.leader_id = record.leader
    return group


def replay_group_record(group: ClassicGroup, record: GroupMetadataValue) -> None:
    """Apply a record to the group in memory that it was made from: only this changes the durable state of a group.

    The group was locked in the meantime, so it is unchanged. There is one exception: after the first, empty record of a
    new group, a rebalance has started that the record does not contain.
    """
    if record.generation != group.generation:
        return
    if group.state is GroupState.COMPLETING_REBALANCE:
        _replay_members(group, record)
        group.transition_to(GroupState.STABLE)
    elif group.state is GroupState.STABLE:
        _replay_members(group, record)
    elif group.state is not GroupState.EMPTY:
        return
    group.state_timestamp_ms = record.current_state_timestamp


def _replay_members(group: ClassicGroup, record: GroupMetadataValue) -> None:
    for member in record.members:
        instance_id = member.group_instance_id
        old_member_id = group.static_members.get(instance_id) if instance_id is not None else None
        if old_member_id is not None and old_member_id != member.member_id:
            group.replace_static_member(old_member_id, member_from_record(member, record.protocol))
        else:
            group.members[member.member_id].assignment = member.assignment
