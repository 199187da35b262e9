"""The requests of members of the classic protocol in consumer groups, and the conversion of groups.

The decisions are in classic_member.py and conversion.py.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.classic_group_member import RespondToJoin, RespondToSync
from kbroker.coordinator.group.classic.classic_groups import ClassicGroups
from kbroker.coordinator.group.classic.classic_members import ClassicMembers
from kbroker.coordinator.group.classic.join import JoinRequest
from kbroker.coordinator.group.classic.rebalance import join_error
from kbroker.coordinator.group.consumer.classic_member import (
    find_classic_member,
    find_leaving_members,
    join_as_heartbeat,
    join_response,
    must_join_again,
    sync_response,
    validate_generation,
    validate_join,
)
from kbroker.coordinator.group.consumer.consumer_group import CLASSIC_JOIN, CLASSIC_SYNC, ConsumerGroup
from kbroker.coordinator.group.consumer.consumer_group_member import ConsumerGroupMember
from kbroker.coordinator.group.consumer.conversion import (
    can_downgrade,
    downgrade_records,
    upgrade,
    upgrade_records,
    validate_upgrade,
)
from kbroker.coordinator.group.consumer.heartbeat import HeartbeatSettings, MemberHeartbeat
from kbroker.coordinator.group.consumer.membership import remove_members
from kbroker.coordinator.group.group_shard import GroupShard
from kbroker.coordinator.group.modern.modern_group import SESSION
from kbroker.coordinator.group.modern.subscribed_topics import SubscribedTopics
from kbroker.coordinator.runtime.operation import CoordinatorResult, LockMode, ignore
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k11_classic_groups import MemberIdentity, SyncGroupRequest, SyncGroupResponse

T = TypeVar("T")


# An assignment interval that never ends.
NEVER_MS = 1 << 62
# More than a batch has besides its one record.
BATCH_BYTES = 256


class ClassicMembersOfConsumerGroups(ClassicMembers):
    """The members of the classic protocol in the consumer groups of one partition of __consumer_offsets."""

    mode = LockMode.ORDERED

    def __init__(
        self, shard: GroupShard, topics: SubscribedTopics, settings: Callable[[str], HeartbeatSettings]
    ) -> None:
        """`settings` returns those of a group."""
        self._shard = shard
        self._topics = topics
        self._settings = settings

    # Requests.

    def join_group(self, request: JoinRequest, respond: RespondToJoin) -> CoordinatorResult[None]:
        """Handle a JoinGroup. The member replaces a static one of the consumer protocol: if that is the last, the group
        becomes a classic one with the target as it is.
        """
        group, settings = self._group(request.group_id), self._settings(request.group_id)
        try:
            validate_join(group, request, self._policy, settings.max_size)
            replaced = None if request.instance_id is None else group.static_member(request.instance_id)
            is_downgrade = replaced is not None and self._can_downgrade(group, [replaced], len(group.members))
            if is_downgrade:
                settings = settings._replace(assignment_interval_ms=NEVER_MS)
            as_heartbeat = join_as_heartbeat(group, request, self._topic_id)
            joined = MemberHeartbeat(group, as_heartbeat, self._topics, settings).run()
        except KafkaError as error:
            member_id = request.new_member_id if error.code is ErrorCode.MEMBER_ID_REQUIRED else ""
            response = join_error(error.code, member_id)
            return CoordinatorResult(None, on_committed=lambda: respond(response))
        response = join_response(request, joined.member.member_id, joined.member.epoch)
        if replaced is not None and is_downgrade:
            remaining = {**group.members, joined.member.member_id: joined.member}
            del remaining[replaced.member_id]
            is_stale = group.assignment_epoch < joined.group_epoch
            result = self._downgrade(group, remaining, joined.group_epoch, is_stale, None, lambda: respond(response))
            return self.converted(group.group_id, result)

        def on_committed() -> None:
            self._start_timeouts(group, joined.member.member_id, request)
            respond(response)

        return CoordinatorResult(None, joined.records, on_committed)

    def sync_group(self, request: SyncGroupRequest, respond: RespondToSync) -> CoordinatorResult[None]:
        group = self._group(request.group_id)
        member = find_classic_member(group, request.member_id, request.group_instance_id)
        validate_generation(member, request.generation_id)
        try:
            response = sync_response(group, member, request, self._shard.topic_name)
        except KafkaError as error:
            if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                self._expect_join(group, member)
            raise

        def on_committed() -> None:
            group.deadlines.cancel((CLASSIC_SYNC, member.member_id))
            self._restart_session(group, member)
            respond(response)

        return CoordinatorResult(None, on_committed=on_committed)

    def classic_heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        group = self._group(group_id)
        try:
            member = find_classic_member(group, member_id, instance_id)
            validate_generation(member, generation)
        except KafkaError as error:
            return error.code
        self._restart_session(group, member)
        if not must_join_again(group, member):
            return ErrorCode.NONE
        self._expect_join(group, member)
        return ErrorCode.REBALANCE_IN_PROGRESS

    def leave_group(self, group_id: str, members: list[MemberIdentity]) -> CoordinatorResult[list[ErrorCode]]:
        group = self._group(group_id)
        results = list(find_leaving_members(group, members))
        errors = [error for error, _ in results]
        leaving = {member.member_id: member for _, member in results if member is not None}
        return self.remove(group, list(leaving.values()), errors) if leaving else CoordinatorResult(errors)

    def _group(self, group_id: str) -> ConsumerGroup:
        group = self._shard.find(ConsumerGroup, group_id)
        assert group is not None
        return group

    def _topic_id(self, name: str) -> bytes | None:
        topic = self._shard.topic(name)
        return None if topic is None else topic.topic_id

    # Timeouts. A member has its own session timeout, and its rebalance timeout for each JoinGroup and SyncGroup.

    def _restart_session(self, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        if member.classic is not None and member.member_id in group.members:
            self._set_deadline(group, SESSION, member.member_id, member.classic.session_timeout_ms)

    def _expect_join(self, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        if (CLASSIC_JOIN, member.member_id) not in group.deadlines:
            self._set_deadline(group, CLASSIC_JOIN, member.member_id, member.rebalance_timeout_ms)

    def _start_timeouts(self, group: ConsumerGroup, member_id: str, request: JoinRequest) -> None:
        """A member has joined. It may have left before the record of that was committed."""
        if member_id in group.members:
            group.deadlines.cancel((CLASSIC_JOIN, member_id))
            self._set_deadline(group, SESSION, member_id, request.session_timeout_ms)
            self._set_deadline(group, CLASSIC_SYNC, member_id, request.rebalance_timeout_ms)

    def _set_deadline(self, group: ConsumerGroup, reason: str, member_id: str, timeout_ms: int) -> None:
        if self._shard.groups.get(group.group_id) is group:
            group.deadlines.set((reason, member_id), self._shard.now().mono_ms + timeout_ms)
            self._shard.update_timer(group)

    # Conversion.

    def upgrade(self, group: ClassicGroup) -> tuple[ConsumerGroup, list[object]]:
        """Return the consumer group that a classic group with members becomes, and the records of that.

        The members are told to join again. Raises GROUP_ID_NOT_FOUND.
        """
        validate_upgrade(group, self._policy, self._shard.config().group_consumer_max_size)
        converted = upgrade(group, self._topic_id)
        converted.metadata_hash = self._topics.hash(converted.subscribed_topics())
        converted.is_metadata_current = True
        for member in paced(list(group.members.values())):
            group.respond_to_join(member, join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
            group.respond_to_sync(member, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        return converted, upgrade_records(group, converted)

    def remove(
        self, group: ConsumerGroup, members: Collection[ConsumerGroupMember], response: T
    ) -> CoordinatorResult[T]:
        """Remove members. If only members of the classic protocol remain, the group becomes a classic one."""
        if self._can_downgrade(group, members, len(group.members) - len(members)):
            remaining = dict(group.members)
            for member in members:
                del remaining[member.member_id]
            result = self._downgrade(group, remaining, group.group_epoch, True, response)
            key, value = self._shard.encode(result.records[-1])
            if len(key) + len(value or b"") <= self._shard.config().message_max_bytes - BATCH_BYTES:
                return self.converted(group.group_id, result)
            # A classic group is one record, which would be too large.
        return CoordinatorResult(response, remove_members(group, members, self._topics.hash))

    def _can_downgrade(self, group: ConsumerGroup, removed: Collection[ConsumerGroupMember], size: int) -> bool:
        return can_downgrade(group, removed, size, self._policy, self._shard.config().group_max_size)

    @property
    def _policy(self) -> str:
        return self._shard.config().group_consumer_migration_policy.lower()

    def _downgrade(
        self,
        group: ConsumerGroup,
        remaining: Mapping[str, ConsumerGroupMember],
        group_epoch: int,
        must_rebalance: bool,
        response: T,
        respond: Callable[[], None] = ignore,
    ) -> CoordinatorResult[T]:
        records = downgrade_records(
            group,
            remaining,
            group_epoch,
            self._shard.topic_name,
            self._shard.now().wall_ms,
            must_rebalance=must_rebalance,
        )

        def on_committed() -> None:
            self._shard.kind(ClassicGroups).on_converted(group.group_id)
            respond()

        return CoordinatorResult(response, records, on_committed)

    def converted(self, group_id: str, result: CoordinatorResult[T]) -> CoordinatorResult[T]:
        """Return the result of an operation that converts a group, which is marked until its records are committed."""
        self._shard.converted_groups.add(group_id)

        def on_committed() -> None:
            self._shard.converted_groups.discard(group_id)
            result.on_committed()

        return result._replace(
            on_committed=on_committed, on_failed=lambda _: self._shard.converted_groups.discard(group_id)
        )
