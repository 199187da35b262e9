"""The streams groups of one partition: heartbeats, members that leave or fail, and the replay of their records.

The decisions are in heartbeat.py, membership.py and current_assignment.py.
"""

from typing import Any

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.group_shard import GroupShard
from kbroker.coordinator.group.modern.modern_groups import ModernGroups
from kbroker.coordinator.group.modern.modern_member import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from kbroker.coordinator.group.streams.description import describe
from kbroker.coordinator.group.streams.heartbeat import (
    StreamsHeartbeat,
    StreamsHeartbeatSettings,
    StreamsMemberHeartbeat,
    compute_target,
)
from kbroker.coordinator.group.streams.membership import leave_temporarily, remove_members
from kbroker.coordinator.group.streams.records import (
    CODEC,
    StreamsCurrentAssignment,
    StreamsGroupEpoch,
    StreamsMemberMetadata,
    StreamsTargetAssignment,
    StreamsTargetEpoch,
    StreamsTopology,
)
from kbroker.coordinator.group.streams.streams_group import (
    INITIAL_DELAY,
    REVOCATION,
    StreamsGroup,
    StreamsGroupState,
)
from kbroker.coordinator.group.streams.streams_group_member import StreamsGroupMember, StreamsMemberState
from kbroker.coordinator.group.streams.tasks import Tasks, task_ids_of
from kbroker.coordinator.runtime.operation import CoordinatorResult
from kbroker.metadata.features import STREAMS_VERSION
from protocol.errors import ErrorCode
from protocol.messages.k88_streams_groups import (
    DescribedStreamsGroup,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from protocol.messages.streams_group_records import StreamsGroupTargetAssignmentMemberValue


class StreamsGroups(ModernGroups[StreamsGroup]):
    """The groups of Kafka Streams applications (KIP-1071)."""

    type_name = StreamsGroup.type_name
    state_names = tuple(state.value for state in StreamsGroupState)
    codec = CODEC
    feature = (STREAMS_VERSION, 1)
    is_configured = True
    group_class = StreamsGroup
    member_class = StreamsGroupMember

    def __init__(self, shard: GroupShard) -> None:
        super().__init__(shard)
        self._replays = {
            StreamsGroupEpoch: self.replay_group_epoch,
            StreamsMemberMetadata: self._replay_member,
            StreamsTargetEpoch: self.replay_target_epoch,
            StreamsTargetAssignment: self.replay_target,
            StreamsCurrentAssignment: self.replay_current_assignment,
            StreamsTopology: self._replay_topology,
        }

    # Operations.

    def heartbeat(
        self, request: StreamsGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> CoordinatorResult[StreamsHeartbeat]:
        """Handle a StreamsGroupHeartbeat of a member that joins, stays or leaves. Raises KafkaError."""
        if request.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(request)
        group, first_records = self._find_or_create(request.group_id, may_create=request.member_epoch == JOIN_EPOCH)
        is_new = self.shard.groups.get(request.group_id) is not group
        settings = self._settings(group, client_id, client_host)
        beat = StreamsMemberHeartbeat(group, request, self._topics, settings, is_new_group=is_new)
        records, heartbeat = beat.run()
        if request.member_id in group.members:
            self.restart_session(group, request.member_id)
        return CoordinatorResult(heartbeat, [*first_records, *records])

    def _settings(self, group: StreamsGroup, client_id: str = "", client_host: str = "") -> StreamsHeartbeatSettings:
        config = self._config(group.group_id)
        starts_delay = not group.members and config.streams_initial_rebalance_delay_ms > 0
        return StreamsHeartbeatSettings(
            client_id=client_id,
            client_host=client_host,
            max_size=self.shard.config().group_streams_max_size,
            heartbeat_interval_ms=config.streams_heartbeat_interval_ms,
            assignment_interval_ms=config.streams_assignment_interval_ms,
            standby_count=config.streams_num_standby_replicas,
            rack_tags=config.streams_rack_aware_assignment_tags,
            is_delayed=starts_delay or (INITIAL_DELAY, "") in group.deadlines,
            wall_ms=self.shard.now().wall_ms,
        )

    def _find_or_create(self, group_id: str, *, may_create: bool) -> tuple[StreamsGroup, list[object]]:
        """Return the group, and the records that delete the empty classic group that becomes it.

        A new group is not in the shard before its records are replayed.
        """
        group = self.shard.groups.get(group_id)
        if isinstance(group, StreamsGroup):
            return group, []
        if group is None and not may_create:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Streams group {group_id} not found.")
        if group is not None and not (may_create and isinstance(group, ClassicGroup) and group.is_unused):
            raise self.other_kind(group_id)
        return StreamsGroup(group_id), [] if group is None else list(group.tombstones())

    def _leave(self, request: StreamsGroupHeartbeatRequest) -> CoordinatorResult[StreamsHeartbeat]:
        group = self.existing_group(request.group_id)
        member = group.named_member(request.member_id, request.instance_id)
        response = StreamsGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)
        is_temporary = request.member_epoch == LEAVE_STATIC_EPOCH
        records = leave_temporarily(group, member) if is_temporary else remove_members(group, [member])
        return CoordinatorResult(StreamsHeartbeat(response), records)

    def describe(self, group_id: str) -> CoordinatorResult[DescribedStreamsGroup]:
        """Return the description of a group. Raises GROUP_ID_NOT_FOUND."""
        group = self.existing_group(group_id)
        return CoordinatorResult(describe(group, self._config(group_id).streams_assignor_name))

    def expire_deadline(self, group: StreamsGroup) -> CoordinatorResult[None]:
        """Remove the members whose time has passed, or compute the first target."""
        passed = self.pop_expired(group)
        expired = {member_id: group.members[member_id] for _, member_id in passed if member_id in group.members}
        if expired:
            return CoordinatorResult(None, remove_members(group, list(expired.values())))
        if (INITIAL_DELAY, "") not in passed or group.configured is None or group.assignment_epoch >= group.group_epoch:
            return CoordinatorResult(None)
        members = list(group.members.values())
        return CoordinatorResult(
            None, compute_target(group, members, group.configured, self._settings(group), group.group_epoch)[1]
        )

    # Replay.

    def replay_group_epoch(self, record: StreamsGroupEpoch) -> None:
        super().replay_group_epoch(record)
        if record.value is not None:
            group, configs = self.find_or_create(record.group_id), record.value.last_assignment_configs or ()
            group.validated_topology_epoch = record.value.validated_topology_epoch
            group.configs = {config.key: config.value for config in configs}

    def _replay_member(self, record: StreamsMemberMetadata) -> None:
        group = self.shard.find(StreamsGroup, record.group_id)
        is_first = record.value is not None and (group is None or not group.members)
        self.replay_member(record)
        if is_first and self.shard.is_loaded:
            self._start_initial_delay(self.find_or_create(record.group_id))

    def _start_initial_delay(self, group: StreamsGroup) -> None:
        delay_ms, key = self._config(group.group_id).streams_initial_rebalance_delay_ms, (INITIAL_DELAY, "")
        if delay_ms > 0 and key not in group.deadlines:
            group.deadlines.set(key, self.shard.now().mono_ms + delay_ms)
            self.shard.update_timer(group)

    def target_in(self, value: StreamsGroupTargetAssignmentMemberValue) -> Tasks:
        return Tasks(task_ids_of(value.active_tasks), task_ids_of(value.standby_tasks), task_ids_of(value.warmup_tasks))

    def _replay_topology(self, record: StreamsTopology) -> None:
        if record.value is not None:
            self.find_or_create(record.group_id).set_topology(record.value)
        elif (existing := self.shard.find(StreamsGroup, record.group_id)) is not None:
            existing.set_topology(None)

    # Timeouts.

    def session_timeout_ms(self, group: StreamsGroup, member_id: str) -> int:
        return self._config(group.group_id).streams_session_timeout_ms

    def restart_revocation(self, group: StreamsGroup, member: Any) -> None:
        key = (REVOCATION, member.member_id)
        if member.state is StreamsMemberState.UNREVOKED_TASKS and member.epoch != LEAVE_STATIC_EPOCH:
            group.deadlines.set(key, self.shard.now().mono_ms + member.rebalance_timeout_ms)
            self.shard.update_timer(group)
        else:
            group.deadlines.cancel(key)
