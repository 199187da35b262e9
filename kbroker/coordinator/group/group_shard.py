"""The groups of one partition of __consumer_offsets: the operations on them, and the replay of their records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.classic.heartbeat import expire_deadline, heartbeat
from kbroker.coordinator.group.classic.join import check_new_group, join_group
from kbroker.coordinator.group.classic.leave import leave_group
from kbroker.coordinator.group.classic.rebalance import prepare_rebalance
from kbroker.coordinator.group.classic.replay import group_from_record, replay_group_record
from kbroker.coordinator.group.classic.requests import (
    JoinRequest,
    JoinResponse,
    LeavingMember,
    Now,
    PendingRecord,
    RespondToJoin,
    RespondToSync,
    SyncRequest,
    SyncResponse,
)
from kbroker.coordinator.group.classic.sync import sync_group
from kbroker.coordinator.group.offsets.commit_validation import (
    validate_commit_size,
    validate_delete_group,
    validate_offset_commit,
    validate_offset_delete,
    validate_transactional_offset_commit,
)
from kbroker.coordinator.group.offsets.expiration import expired_offsets
from kbroker.coordinator.group.offsets.offset_metadata_manager import (
    FetchedOffsets,
    OffsetMetadataManager,
    offset_tombstones,
)
from kbroker.coordinator.group.record_codec import decode_record, encode_record
from kbroker.coordinator.group.records import (
    GroupCoordinatorRecord,
    GroupRecord,
    GroupTombstone,
    OffsetRecord,
)
from kbroker.coordinator.runtime.operation import CoordinatorResult, LockMode
from kbroker.runtime.deadlines import Deadlines
from kbroker.runtime.timer import DeadlineTimer
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig
    from kbroker.coordinator.runtime.coordinator_context import CoordinatorContext
    from kbroker.runtime.environment import Environment

T = TypeVar("T")
TopicPartitions = Sequence[tuple[str, int]]


class GroupShard:
    """The state of one partition of __consumer_offsets, and the operations on it.

    Every group that has members or offsets, committed or pending, is in `groups`.
    """

    def __init__(
        self, environment: Environment, config: Callable[[], BrokerConfig], context: CoordinatorContext[GroupShard]
    ) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self.offsets = OffsetMetadataManager()
        self._clock = environment.clock
        self._config = config
        self._context = context
        # The earliest deadline of each group that has one.
        self._timer: DeadlineTimer[str] = DeadlineTimer(environment, self._on_deadline)
        self._is_loaded = False
        self._topics_deleted_while_loading: list[str] = []

    # Operations on members.

    def join_group(self, request: JoinRequest, respond: RespondToJoin) -> CoordinatorResult[None]:
        """Handle a JoinGroup. `respond` is called now or when the rebalance completes."""
        group = self.groups.get(request.group_id)
        if group is not None:
            return self._result(group, join_group(group, request, respond, self._now(), self._config()), None)
        error = check_new_group(request)
        if error is not ErrorCode.NONE:
            respond(JoinResponse(error, request.member_id))
            return CoordinatorResult(None)
        group = self.groups[request.group_id] = ClassicGroup(request.group_id)
        join_group(group, request, respond, self._now(), self._config())
        return self._result(group, self._first_record(group), None)

    def _first_record(self, group: ClassicGroup) -> PendingRecord:
        """Write a new group immediately, without members, so that the next coordinator knows it."""

        def on_failed(error: ErrorCode, now: Now) -> None:
            if self.groups.get(group.group_id) is group:
                del self.groups[group.group_id]
            self._close_group(group, error)

        record = ClassicGroup(group.group_id).record(self._now().wall_ms)
        return PendingRecord(record, on_failed=on_failed)

    def sync_group(self, request: SyncRequest, respond: RespondToSync) -> CoordinatorResult[None]:
        """Handle a SyncGroup. `respond` is called now or when the leader's assignment is committed."""
        group = self.groups.get(request.group_id)
        if group is None:
            respond(SyncResponse(ErrorCode.UNKNOWN_MEMBER_ID))
            return CoordinatorResult(None)
        return self._result(group, sync_group(group, request, respond, self._now(), self._config()), None)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = heartbeat(group, member_id, instance_id, generation, self._now())
        self._update_timer(group)
        return error

    def leave_group(self, group_id: str, members: list[LeavingMember]) -> CoordinatorResult[list[ErrorCode]]:
        """Remove members. The response is the result of each member."""
        group = self.groups.get(group_id)
        if group is None:
            return CoordinatorResult([ErrorCode.UNKNOWN_MEMBER_ID] * len(members))
        errors, pending = leave_group(group, members, self._now(), self._config())
        return self._result(group, pending, errors)

    def expire_deadline(self, group_id: str) -> CoordinatorResult[None]:
        group = self.groups.get(group_id)
        if group is None:
            return CoordinatorResult(None)
        return self._result(group, expire_deadline(group, self._now(), self._config()), None)

    def delete_group(self, group_id: str) -> CoordinatorResult[None]:
        """Delete a group. As in Kafka, this includes pending offsets, which their transactions no longer commit."""
        validate_delete_group(self.groups.get(group_id))
        tombstones = offset_tombstones(group_id, self.offsets.partitions(group_id))
        return CoordinatorResult(None, [*tombstones, GroupTombstone(group_id)])

    def _result(self, group: ClassicGroup, pending: PendingRecord | None, response: T) -> CoordinatorResult[T]:
        self._update_timer(group)
        if pending is None:
            return CoordinatorResult(response)

        def on_committed() -> None:
            pending.on_committed(self._now())
            self._update_timer(group)

        def on_failed(error: ErrorCode) -> None:
            pending.on_failed(error, self._now())
            self._update_timer(group)

        return CoordinatorResult(response, [pending.record], on_committed, on_failed)

    # Operations on offsets.

    def commit_offsets(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Sequence[OffsetRecord],
        max_bytes: int | None,
    ) -> CoordinatorResult[None]:
        group = self.groups.get(group_id)
        member = validate_offset_commit(group, member_id, instance_id, generation)
        if group is not None and member is not None:
            # The commit of a member is also a heartbeat.
            group.restart_session(member, self._clock.mono_ms())
            self._update_timer(group)
        validate_commit_size(offsets, max_bytes)
        return CoordinatorResult(None, offsets)

    def commit_transactional_offsets(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Sequence[OffsetRecord],
        max_bytes: int | None,
    ) -> CoordinatorResult[None]:
        validate_transactional_offset_commit(self.groups.get(group_id), member_id, instance_id, generation)
        validate_commit_size(offsets, max_bytes)
        return CoordinatorResult(None, offsets)

    def fetch_offsets(self, group_id: str) -> FetchedOffsets:
        return FetchedOffsets(self.offsets.topics(group_id))

    def fetch_stable_offsets(self, group_id: str) -> CoordinatorResult[FetchedOffsets]:
        unstable = frozenset(self.offsets.pending.partitions(group_id))
        return CoordinatorResult(FetchedOffsets(self.offsets.topics(group_id), unstable))

    def delete_offsets(self, group_id: str, partitions: TopicPartitions) -> CoordinatorResult[list[ErrorCode]]:
        """Delete offsets. The response is the result of each partition; a missing offset is not an error."""
        group = validate_offset_delete(self.groups.get(group_id))
        by_topic = {
            topic: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(topic) else ErrorCode.NONE
            for topic in dict.fromkeys([topic for topic, _ in partitions])
        }
        errors = [by_topic[topic] for topic, _ in partitions]
        existing = set(self.offsets.partitions(group_id))
        deleted = [
            partition
            for partition, error in zip(partitions, errors, strict=True)
            if error is ErrorCode.NONE and partition in existing
        ]
        return CoordinatorResult(errors, offset_tombstones(group_id, deleted))

    def delete_offsets_of_topics(self, group_id: str, topics: Collection[str]) -> CoordinatorResult[None]:
        """Delete the offsets of deleted topics, whether the group has members or not."""
        deleted = [partition for partition in self.offsets.partitions(group_id) if partition[0] in topics]
        return CoordinatorResult(None, offset_tombstones(group_id, deleted))

    def delete_offsets_of_partitions(
        self, group_id: str, removed: Collection[tuple[str, int]]
    ) -> CoordinatorResult[None]:
        """Delete the offsets of partitions that were removed from their topics."""
        deleted = [partition for partition in self.offsets.partitions(group_id) if partition in removed]
        return CoordinatorResult(None, offset_tombstones(group_id, deleted))

    def expire_offsets(self, group_id: str, retention_ms: int) -> CoordinatorResult[None]:
        """Delete expired offsets, and an empty group with its last offset.

        A committed offset does not expire while an open transaction has written an offset of its partition.
        """
        group = self.groups.get(group_id)
        if group is None:
            return CoordinatorResult(None)
        pending = set(self.offsets.pending.partitions(group_id))
        expired = [
            partition
            for partition in expired_offsets(group, self.offsets.topics(group_id), retention_ms, self._now().wall_ms)
            if partition not in pending
        ]
        records: list[GroupCoordinatorRecord] = list(offset_tombstones(group_id, expired))
        is_unused = group.state is GroupState.EMPTY and not group.pending_join_members
        if is_unused and len(self.offsets.partitions(group_id)) == len(expired):
            records.append(GroupTombstone(group_id))
        return CoordinatorResult(None, records)

    def on_topics_deleted(self, topics: list[str]) -> None:
        """Delete the offsets of deleted topics in every group, once the partition is loaded."""
        if not self._is_loaded:
            self._topics_deleted_while_loading += topics
            return
        # A commit in flight may add offsets of the topics to a group.
        groups = [*self.offsets.groups_with_topics(topics), *self._context.locked_keys()]
        for group_id in dict.fromkeys(groups):
            operation = partial(GroupShard.delete_offsets_of_topics, group_id=group_id, topics=topics)
            self._context.post(operation, group_id, LockMode.EXCLUSIVE_AFTER_SHARED)

    def on_partitions_removed(self, removed: Collection[tuple[str, int]]) -> None:
        """Delete the offsets of removed partitions in every group: partitions with these numbers may be added again.

        Those of groups that are still being loaded stay.
        """
        if not self._is_loaded:
            return
        groups = [*self.offsets.groups_with_topics({topic for topic, _ in removed}), *self._context.locked_keys()]
        for group_id in dict.fromkeys(groups):
            operation = partial(GroupShard.delete_offsets_of_partitions, group_id=group_id, removed=removed)
            self._context.post(operation, group_id, LockMode.EXCLUSIVE_AFTER_SHARED)

    def schedule_offset_expiration(self, retention_ms: int) -> None:
        """Schedule the expiration of each group's offsets."""
        for group_id in list(self.groups):
            operation = partial(GroupShard.expire_offsets, group_id=group_id, retention_ms=retention_ms)
            self._context.post(operation, group_id, LockMode.EXCLUSIVE_AFTER_SHARED)

    # Replay.

    encode = staticmethod(encode_record)
    decode = staticmethod(decode_record)

    def replay(self, record: GroupCoordinatorRecord, offset: int, producer_id: int) -> None:
        if isinstance(record, OffsetRecord):
            self.offsets.replay(record, offset, producer_id)
            group_id = record.key.group_id
            if record.value is not None and group_id not in self.groups:
                # A simple group, which commits offsets and never has members.
                self.groups[group_id] = ClassicGroup(group_id)
        elif isinstance(record, GroupTombstone):
            deleted = self.groups.pop(record.group_id, None)
            if deleted is not None:
                self._close_group(deleted, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            self._replay_group(record)

    def _replay_group(self, record: GroupRecord) -> None:
        group = self.groups.get(record.group_id)
        if group is None or not self._is_loaded:
            self.groups[record.group_id] = group_from_record(record)
        else:
            replay_group_record(group, record)

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        # As in Kafka, a group without offsets stays until the next check for expired offsets.
        self.offsets.replay_end_transaction(producer_id, committed)

    def on_loaded(self) -> None:
        """Start the sessions of all members. They have to find this coordinator within their session timeout.

        A group that exceeds a lowered group.max.size is rebalanced, which removes its last members.
        """
        self._is_loaded = True
        now, config = self._now(), self._config()
        for group in self.groups.values():
            for member in group.members.values():
                group.restart_session(member, now.mono_ms)
            if len(group.members) > config.group_max_size:
                prepare_rebalance(group, now, config)
            self._update_timer(group)
        if self._topics_deleted_while_loading:
            self.on_topics_deleted(self._topics_deleted_while_loading)

    def on_unloaded(self, error: ErrorCode) -> None:
        groups, self.groups = self.groups, {}
        self.offsets = OffsetMetadataManager()
        for group in groups.values():
            self._close_group(group, error)
        self._timer.stop()

    def _close_group(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Respond to the waiting requests of a group that no longer exists."""
        for member in list(group.members.values()):
            group.respond_to_join(member, JoinResponse(error, member.member_id))
            group.respond_to_sync(member, SyncResponse(error))
        group.transition_to(GroupState.DEAD)
        group.members.clear()
        group.pending_join_members.clear()
        group.deadlines = Deadlines()
        self._timer.cancel(group.group_id)

    # Time.

    def _now(self) -> Now:
        return Now(self._clock.mono_ms(), self._clock.now_ms())

    def _update_timer(self, group: ClassicGroup) -> None:
        # A heartbeat moves a deadline later. The timer runs at the earlier time, and then finds the next deadline.
        time_ms = group.deadlines.not_before_ms()
        if time_ms is None:
            self._timer.cancel(group.group_id)
        else:
            self._timer.set(group.group_id, time_ms)

    def _on_deadline(self, group_id: str) -> None:
        self._context.post(lambda shard: shard.expire_deadline(group_id), group_id, LockMode.EXCLUSIVE)
