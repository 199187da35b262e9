"""The consumer groups of one partition: heartbeats, members that leave or fail, and the replay of their records.

The decisions are in heartbeat.py, membership.py and current_assignment.py.
"""

from collections.abc import Mapping

from kbroker.authorization.authorizer import Access
from kbroker.common import KafkaError
from kbroker.coordinator.group.assignors.members import Assignment
from kbroker.coordinator.group.assignors.server_assignors import supported_assignors
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.consumer.classic_members import ClassicMembersOfConsumerGroups
from kbroker.coordinator.group.consumer.consumer_group import REVOCATION, ConsumerGroup, ConsumerGroupState
from kbroker.coordinator.group.consumer.consumer_group_member import ConsumerGroupMember, MemberState
from kbroker.coordinator.group.consumer.description import describe
from kbroker.coordinator.group.consumer.heartbeat import (
    HeartbeatRequest,
    HeartbeatSettings,
    MemberHeartbeat,
    changes_nothing,
    preferred_assignor,
)
from kbroker.coordinator.group.consumer.membership import leave_temporarily
from kbroker.coordinator.group.consumer.records import (
    CODEC,
    ConsumerGroupRecord,
    CurrentAssignment,
    GroupEpoch,
    MemberMetadata,
    RegularExpression,
    TargetAssignment,
    TargetEpoch,
    group_epoch_record,
    regex_record,
)
from kbroker.coordinator.group.consumer.regex import ResolvedRegex
from kbroker.coordinator.group.consumer.regex_resolver import RegexResolver
from kbroker.coordinator.group.group_shard import GroupShard
from kbroker.coordinator.group.modern.modern_groups import ModernGroups
from kbroker.coordinator.group.modern.modern_member import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH, assignment_of
from kbroker.coordinator.runtime.operation import CoordinatorResult
from kbroker.metadata.features import GROUP_VERSION
from kbroker.metadata.image import MetadataDelta
from protocol.errors import ErrorCode
from protocol.messages.consumer_group_records import ConsumerGroupTargetAssignmentMemberValue
from protocol.messages.k68_consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)

# When a removal is tried again that could not be written.
REMOVAL_RETRY_MS = 1_000


class ConsumerGroups(ModernGroups[ConsumerGroup]):
    """The groups of the consumer protocol (KIP-848)."""

    type_name = ConsumerGroup.type_name
    state_names = tuple(state.value for state in ConsumerGroupState)
    codec = CODEC
    feature = (GROUP_VERSION, 1)
    is_configured = True
    group_class = ConsumerGroup
    member_class = ConsumerGroupMember

    def __init__(self, shard: GroupShard) -> None:
        super().__init__(shard)
        self.classic_members = self._migration = ClassicMembersOfConsumerGroups(shard, self._topics, self._settings)
        self._resolver = RegexResolver(shard.environment, self._post_regexes)
        # Rises with each new topic, which a regular expression may match, and when ACLs have changed.
        self._topics_version = 0
        # The group of the last heartbeat, and what its client may do.
        self._last_client: tuple[str, Access | None] = "", None
        self._replays = {
            GroupEpoch: self.replay_group_epoch,
            MemberMetadata: self._replay_member,
            TargetEpoch: self.replay_target_epoch,
            TargetAssignment: self.replay_target,
            CurrentAssignment: self.replay_current_assignment,
            RegularExpression: self._replay_regex,
        }

    # Operations.

    def heartbeat(self, request: HeartbeatRequest) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
        """Handle a ConsumerGroupHeartbeat of a member that joins, stays or leaves. Raises KafkaError."""
        message = request.message
        self._note_client(message.group_id, request.access)
        if message.member_epoch in (LEAVE_EPOCH, LEAVE_STATIC_EPOCH):
            return self._leave(message)
        group, first_records = self._find_or_create(message.group_id, may_create=message.member_epoch == JOIN_EPOCH)
        heartbeat = MemberHeartbeat(group, request, self._topics, self._settings(message.group_id))
        records, response, *_ = heartbeat.run()
        if response.member_id in group.members:
            self.restart_session(group, response.member_id)
        self._resolve_regexes(group)
        result = CoordinatorResult(response, [*first_records, *records])
        return self._migration.converted(message.group_id, result) if first_records else result

    def unchanged(
        self, message: ConsumerGroupHeartbeatRequest, client: tuple[str, str]
    ) -> ConsumerGroupHeartbeatResponse | None:
        """Handle a heartbeat that changes nothing; None if it may change something, or must wait for a commit."""
        group = self.shard.groups.get(message.group_id)
        if not isinstance(group, ConsumerGroup) or self.shard.context.is_locked(message.group_id):
            return None
        member = group.members.get(message.member_id)
        if member is None or not changes_nothing(group, member, message, client):
            return None
        self.restart_session(group, member.member_id)
        interval_ms = self._config(message.group_id).consumer_heartbeat_interval_ms
        return ConsumerGroupHeartbeatResponse(
            member_id=member.member_id, member_epoch=member.epoch, heartbeat_interval_ms=interval_ms
        )

    def _settings(self, group_id: str) -> HeartbeatSettings:
        config, group_config = self.shard.config(), self._config(group_id)
        return HeartbeatSettings(
            assignors=supported_assignors(config.group_consumer_assignors),
            max_size=config.group_consumer_max_size,
            heartbeat_interval_ms=group_config.consumer_heartbeat_interval_ms,
            assignment_interval_ms=group_config.consumer_assignment_interval_ms,
            wall_ms=self.shard.now().wall_ms,
        )

    def _find_or_create(self, group_id: str, *, may_create: bool) -> tuple[ConsumerGroup, list[object]]:
        """Return the group, and the records that make it one if it has been one of the classic protocol.

        A new group is not in the shard before its records are replayed.
        """
        group = self.shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group, []
        if group is None and not may_create:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        if group is not None and not may_create:
            raise self.other_kind(group_id)
        if isinstance(group, ClassicGroup) and group.members:
            return self._migration.upgrade(group)
        if group is not None and not isinstance(group, ClassicGroup):
            raise self.other_kind(group_id)
        return ConsumerGroup(group_id), [] if group is None else list(group.tombstones())

    def _leave(self, message: ConsumerGroupHeartbeatRequest) -> CoordinatorResult[ConsumerGroupHeartbeatResponse]:
        group = self.existing_group(message.group_id)
        member = group.named_member(message.member_id, message.instance_id)
        response = ConsumerGroupHeartbeatResponse(member_id=message.member_id, member_epoch=message.member_epoch)
        if message.instance_id is not None and message.member_epoch == LEAVE_STATIC_EPOCH:
            return CoordinatorResult(response, leave_temporarily(group, member))
        return self._migration.remove(group, [member], response)

    def describe(self, group_id: str) -> CoordinatorResult[DescribedConsumerGroup]:
        """Return the description of a group. Raises GROUP_ID_NOT_FOUND."""
        group = self.existing_group(group_id)
        assignors = supported_assignors(self.shard.config().group_consumer_assignors)
        assignor = preferred_assignor(group.assignor_votes, assignors)
        return CoordinatorResult(describe(group, assignor, self.shard.topic_name))

    def expire_deadline(self, group: ConsumerGroup) -> CoordinatorResult[None]:
        """Remove the members whose session has ended, or that have not revoked their partitions in time."""
        passed = self.pop_expired(group)
        expired = {member_id: group.existing_member(member_id) for _, member_id in passed}
        if not expired:
            return CoordinatorResult(None)
        result = self._migration.remove(group, list(expired.values()), None)

        def on_failed(error: ErrorCode) -> None:
            result.on_failed(error)
            for deadline in passed:
                group.deadlines.set(deadline, self.shard.now().mono_ms + REMOVAL_RETRY_MS)
            self.shard.update_timer(group)

        return result._replace(on_failed=on_failed)

    # Regular expressions.

    def _note_client(self, group_id: str, access: Access | None) -> None:
        former = self._last_client[1]
        if former is not None and access is not None and former.rules is not access.rules:
            self._topics_version += 1
        self._last_client = group_id, access

    def _resolve_regexes(self, group: ConsumerGroup) -> None:
        """Start to resolve the regular expressions that have to be, in a thread.

        The records of a heartbeat are replayed before any other. With the rights of other clients nothing is resolved.
        """
        group_id, access = self._last_client
        if not group.regexes.members or (access is not None and group_id != group.group_id):
            return
        due = group.regexes.due(self._topics_version, self.shard.now().wall_ms)
        if due:
            names = list(self.shard.metadata.topics)
            self._resolver.start(group.group_id, group.regexes, due, names, self._topics_version, access)

    def _post_regexes(self, group_id: str, resolved: Mapping[str, ResolvedRegex]) -> None:
        self.shard.context.post(lambda _: self._update_regexes(group_id, resolved), group_id, self.mode)

    def _update_regexes(self, group_id: str, resolved: Mapping[str, ResolvedRegex]) -> CoordinatorResult[None]:
        """Store the topics that match. Others than before begin a group epoch."""
        group = self.shard.find(ConsumerGroup, group_id)
        if group is None:
            return CoordinatorResult(None)
        wanted = {regex: found for regex, found in resolved.items() if regex in group.regexes.members}
        records: list[ConsumerGroupRecord] = [regex_record(group_id, regex, found) for regex, found in wanted.items()]
        is_changed = any(found.topics != group.regexes.topics(regex) for regex, found in wanted.items())
        names = group.subscribed_topics_with((), (), wanted).union(*(found.topics for found in wanted.values()))
        metadata_hash = self._topics.hash(names)
        if is_changed or metadata_hash != group.metadata_hash:
            group.is_metadata_current = True
            records.append(group_epoch_record(group_id, group.group_epoch + 1, metadata_hash))
        return CoordinatorResult(None, records)

    # Topics.

    def on_delta(self, delta: MetadataDelta) -> None:
        super().on_delta(delta)
        if delta.created:
            self._topics_version += 1

    # Replay.

    def _replay_member(self, record: MemberMetadata) -> None:
        self.replay_member(record)
        if record.value is not None and self.shard.is_loaded:
            self._resolve_regexes(self.find_or_create(record.group_id))

    def target_in(self, value: ConsumerGroupTargetAssignmentMemberValue) -> Assignment:
        return assignment_of(value.topic_partitions)

    def _replay_regex(self, record: RegularExpression) -> None:
        group_id, regex, value = record.group_id, record.regular_expression, record.value
        if value is not None:
            resolved = ResolvedRegex(frozenset(value.topics), value.version, value.timestamp)
            self.find_or_create(group_id).regexes.resolved[regex] = resolved
        elif (existing := self.shard.find(ConsumerGroup, group_id)) is not None:
            existing.regexes.resolved.pop(regex, None)

    # Timeouts.

    def session_timeout_ms(self, group: ConsumerGroup, member_id: str) -> int:
        classic = group.members[member_id].classic
        return (
            self._config(group.group_id).consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        )

    def restart_revocation(self, group: ConsumerGroup, member: ConsumerGroupMember) -> None:
        """Restart the time in which a member has to revoke partitions, which ends when it has.

        One of the classic protocol has the time in which it has to join again instead.
        """
        key = (REVOCATION, member.member_id)
        has_to_revoke = member.state is MemberState.UNREVOKED_PARTITIONS and member.epoch != LEAVE_STATIC_EPOCH
        if has_to_revoke and member.classic is None:
            group.deadlines.set(key, self.shard.now().mono_ms + member.rebalance_timeout_ms)
            self.shard.update_timer(group)
        else:
            group.deadlines.cancel(key)
