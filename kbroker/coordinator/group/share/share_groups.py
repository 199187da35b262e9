"""The share groups of one partition: operations, members whose sessions end, and the replay of their records.

Heartbeats are decided in heartbeat.py. What the share coordinator has to do is returned by the operations, and their
callers (share_group_states.py) tell this kind what has come of it.
"""

from collections.abc import Collection, Mapping
from functools import partial

from kbroker.common import KafkaError
from kbroker.coordinator.group.assignors.members import Assignment
from kbroker.coordinator.group.group_shard import GroupShard
from kbroker.coordinator.group.modern.modern_groups import ModernGroups
from kbroker.coordinator.group.modern.modern_member import JOIN_EPOCH, LEAVE_EPOCH, assignment_of
from kbroker.coordinator.group.share.description import describe
from kbroker.coordinator.group.share.heartbeat import (
    ShareHeartbeat,
    ShareHeartbeatSettings,
    ShareMemberHeartbeat,
    remove_members,
)
from kbroker.coordinator.group.share.records import (
    CODEC,
    ShareCurrentAssignment,
    ShareGroupEpoch,
    ShareMemberMetadata,
    ShareStateTopics,
    ShareTargetAssignment,
    ShareTargetEpoch,
)
from kbroker.coordinator.group.share.share_group import ShareGroup, ShareGroupMember, ShareGroupState
from kbroker.coordinator.group.share.state_topics import Initialization, StatePartitions, StatesByTopic, StateTopics
from kbroker.coordinator.runtime.operation import CoordinatorResult
from kbroker.metadata.features import SHARE_VERSION
from kbroker.metadata.image import MetadataDelta
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k76_share_groups import (
    DescribedShareGroup,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from protocol.messages.share_group_records import ShareGroupTargetAssignmentMemberValue


class ShareGroups(ModernGroups[ShareGroup]):
    """The share groups (KIP-932)."""

    type_name = ShareGroup.type_name
    state_names = tuple(state.value for state in ShareGroupState)
    codec = CODEC
    feature = (SHARE_VERSION, 1)
    group_class = ShareGroup
    member_class = ShareGroupMember

    def __init__(self, shard: GroupShard) -> None:
        super().__init__(shard)
        self._replays = {
            ShareMemberMetadata: self.replay_member,
            ShareGroupEpoch: self.replay_group_epoch,
            ShareTargetEpoch: self.replay_target_epoch,
            ShareTargetAssignment: self.replay_target,
            ShareCurrentAssignment: self.replay_current_assignment,
            ShareStateTopics: self._replay_states,
        }

    def _empty_group(self, group_id: str) -> ShareGroup:
        """Return a group without members. Raises GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        group = self.existing_group(group_id)
        if group.members:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
        return group

    # Members.

    def heartbeat(
        self, request: ShareGroupHeartbeatRequest, client_id: str, client_host: str
    ) -> CoordinatorResult[ShareHeartbeat]:
        """Handle a ShareGroupHeartbeat of a member that joins, stays or leaves. Raises KafkaError."""
        group_id = request.group_id
        if request.member_epoch == LEAVE_EPOCH:
            group = self.existing_group(group_id)
            leaving = group.existing_member(request.member_id)
            response = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=LEAVE_EPOCH)
            return CoordinatorResult(ShareHeartbeat(response), remove_members(group, [leaving], self._topics))
        if group_id not in self.shard.groups:
            if request.member_epoch != JOIN_EPOCH:
                raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Share group {group_id} not found.")
            # It is not in the shard before its records are replayed.
            group = ShareGroup(group_id)
        else:
            group = self.existing_group(group_id)
        config, now = self._config(group_id), self.shard.now()
        settings = ShareHeartbeatSettings(
            client_id=client_id,
            client_host=client_host,
            max_size=self.shard.config().group_share_max_size,
            heartbeat_interval_ms=config.share_heartbeat_interval_ms,
            assignment_interval_ms=config.share_assignment_interval_ms,
            mono_ms=now.mono_ms,
            wall_ms=now.wall_ms,
        )
        records, heartbeat = ShareMemberHeartbeat(group, request, self._topics, settings).run()
        if request.member_id in group.members:
            self.restart_session(group, request.member_id)
        return CoordinatorResult(heartbeat, records)

    def expire_deadline(self, group: ShareGroup) -> CoordinatorResult[None]:
        """Remove the members whose session has ended."""
        expired = [group.existing_member(member_id) for _, member_id in self.pop_expired(group)]
        return CoordinatorResult(None, remove_members(group, expired, self._topics) if expired else ())

    def describe(self, group_id: str) -> CoordinatorResult[DescribedShareGroup]:
        """Return the description of a group. Raises GROUP_ID_NOT_FOUND."""
        return CoordinatorResult(describe(self.existing_group(group_id), self.shard.metadata.topics_by_id))

    # States at the share coordinator.

    def end_initialization(self, group_id: str, states: StatesByTopic, is_done: bool) -> CoordinatorResult[None]:
        """Store that states are initialized, or that this has failed: the next heartbeat begins it again."""
        group = self.shard.find(ShareGroup, group_id)
        if group is None:
            return CoordinatorResult(None)
        for topic_id in states:
            group.initializing_since_ms.pop(topic_id, None)
        changed = group.states.finish(states) if is_done else group.states.abandon(states)
        return CoordinatorResult(None, [group.state_record(changed)])

    def alter_offsets(
        self, group_id: str, start_offsets: Mapping[str, Mapping[int, int]]
    ) -> CoordinatorResult[Initialization]:
        """Begin to set start offsets, by topic and partition. Unknown partitions are left out. Raises KafkaError."""
        group = self._empty_group(group_id) if group_id in self.shard.groups else ShareGroup(group_id)
        found = {topic.topic_id: (name, topic) for name, topic in self._topics.existing(start_offsets)}
        offsets = {
            topic_id: {
                index: start for index, start in start_offsets[name].items() if 0 <= index < topic.partition_count
            }
            for topic_id, (name, topic) in found.items()
        }
        states = {id: StatePartitions(found[id][0], frozenset(indexes)) for id, indexes in offsets.items() if indexes}
        initialization = Initialization(group_id, group.group_epoch, offsets)
        if not states:
            return CoordinatorResult(initialization)
        return CoordinatorResult(initialization, [group.state_record(group.states.begin(states))])

    def begin_deletion(
        self, group_id: str, topics: Collection[str] | None = None
    ) -> CoordinatorResult[dict[bytes, StatePartitions]]:
        """Begin to delete the states of topics, of all if None. Returns those that exist. Raises KafkaError."""
        group = self._empty_group(group_id)
        states = group.states
        found = {id: each for id, each in states.initialized.items() if topics is None or each.topic_name in topics}
        for topic_id, name in states.deleting.items():
            if topics is None or name in topics:
                # Its deletion may have ended half way.
                image = self.shard.metadata.topics_by_id.get(topic_id)
                count = 0 if image is None else len(self.shard.metadata.resolve_view(image).partitions)
                found[topic_id] = StatePartitions(name, frozenset(range(count)))
        if topics is None:
            found = {**states.initializing, **found}
        if not found:
            return CoordinatorResult({})
        deleting = states.delete({topic_id: name for topic_id, (name, _) in found.items()})
        return CoordinatorResult(found, [group.state_record(deleting)])

    def end_deletion(self, group_id: str, topic_ids: Collection[bytes]) -> CoordinatorResult[None]:
        """Store that the states of topics are deleted."""
        group = self.shard.find(ShareGroup, group_id)
        if group is None or group.states.topic_ids().isdisjoint(topic_ids):
            return CoordinatorResult(None)
        return CoordinatorResult(None, [group.state_record(group.states.without(topic_ids))])

    def initialized_partitions(self, group_id: str) -> CoordinatorResult[StatesByTopic]:
        """Return the partitions that have a state; none for a group that does not exist."""
        group = self.shard.find(ShareGroup, group_id)
        return CoordinatorResult({} if group is None else group.states.initialized)

    # Topics.

    def on_delta(self, delta: MetadataDelta) -> None:
        """Forget the partitions of deleted topics. The share coordinator deletes their states."""
        super().on_delta(delta)
        deleted = {topic.topic_id for topic in delta.deleted}
        for group in paced(list(self.shard.groups.values()) if deleted else []):
            if isinstance(group, ShareGroup) and not group.states.topic_ids().isdisjoint(deleted):
                self.shard.context.post(
                    partial(self._forget_states, group.group_id, deleted), group.group_id, self.mode
                )

    def _forget_states(self, group_id: str, topic_ids: Collection[bytes], _: GroupShard) -> CoordinatorResult[None]:
        return self.end_deletion(group_id, topic_ids)

    def on_topics_changed(self, group: ShareGroup, topics: Collection[str]) -> CoordinatorResult[None]:
        """Compare the topics of the group with its hash, and find new partitions, at the next heartbeat."""
        group.may_lack_partitions = True
        return super().on_topics_changed(group, topics)

    # Replay.

    def _replay_states(self, record: ShareStateTopics) -> None:
        if record.value is not None:
            group = self.find_or_create(record.group_id)
            group.states = StateTopics.of(record.value)
            group.may_lack_partitions = True
        elif (existing := self.shard.find(ShareGroup, record.group_id)) is not None:
            existing.states = StateTopics()

    # Timeouts.

    def session_timeout_ms(self, group: ShareGroup, member_id: str) -> int:
        return self._config(group.group_id).share_session_timeout_ms

    def target_in(self, value: ShareGroupTargetAssignmentMemberValue) -> Assignment:
        return assignment_of(value.topic_partitions)
