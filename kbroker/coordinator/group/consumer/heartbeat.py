"""ConsumerGroupHeartbeat: what a heartbeat changes in its group, and what it is answered (pure).

1. The member is found, created, or takes over a static member's place (membership.py).
2. What it has sent replaces what it had sent before; null means unchanged.
3. Another subscription, another preferred assignor or a changed topic begins a group epoch.
4. If the target assignment is older than the group epoch, it is computed, at most once per assignment interval.
5. The member proceeds towards its target (current_assignment.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

from kbroker.authorization.authorizer import Access
from kbroker.common import KafkaError
from kbroker.coordinator.group.assignors.members import MemberSpec
from kbroker.coordinator.group.assignors.server_assignors import SERVER_ASSIGNORS
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup, votes_after
from kbroker.coordinator.group.consumer.consumer_group_member import (
    AssignedPartitions,
    ConsumerGroupMember,
    MemberState,
)
from kbroker.coordinator.group.consumer.current_assignment import Target, next_assignment
from kbroker.coordinator.group.consumer.membership import (
    find_member,
    replacement_records,
    unused_regexes,
    validate_size,
)
from kbroker.coordinator.group.consumer.records import (
    ConsumerGroupRecord,
    RegularExpression,
    group_epoch_record,
    target_epoch_record,
    target_record,
)
from kbroker.coordinator.group.consumer.regex import validate_regex
from kbroker.coordinator.group.modern.modern_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    NO_ASSIGNMENT,
    assignment_of,
)
from kbroker.coordinator.group.modern.subscribed_topics import SubscribedTopics
from kbroker.coordinator.group.modern.target import changed_targets, may_compute
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.consumer_group_records import ClassicMemberMetadata
from protocol.messages.k68_consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
)

# Clients choose the member id from this version on (KIP-1082).
CLIENT_MEMBER_ID_VERSION = 1
UNSET_TIMEOUT = -1
# What Java's String.trim removes.
_BLANKS = "".join(map(chr, range(0x21)))


class HeartbeatRequest(NamedTuple):
    """A request, and what is known of its sender. `new_member_id`: the id of a member that has not chosen one.

    `classic`: what the sender has sent in a JoinGroup, if it is a member of the classic protocol. `access`: what it may
    do, None if that is everything.
    """

    message: ConsumerGroupHeartbeatRequest
    new_member_id: str
    client_id: str
    client_host: str
    classic: ClassicMemberMetadata | None = None
    access: Access | None = None


class HeartbeatSettings(NamedTuple):
    """What a heartbeat depends on besides its group: configs, with times in milliseconds, and the wall clock.

    `assignors`: the names of the server-side assignors; the first is the default.
    """

    assignors: Sequence[str]
    max_size: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    wall_ms: int


class Heartbeat(NamedTuple):
    """The records of a heartbeat and its response; the member, and the group epoch, as the records make them."""

    records: list[ConsumerGroupRecord]
    response: ConsumerGroupHeartbeatResponse
    member: ConsumerGroupMember
    group_epoch: int


class RegexChange(Enum):
    """Whether a heartbeat changes the regular expression of its member.

    UNRESOLVED: to one whose topics are not known yet: the group epoch rises when they are.
    """

    NONE = auto()
    UNRESOLVED = auto()
    RESOLVED = auto()


def changes_nothing(
    group: ConsumerGroup, member: ConsumerGroupMember, request: ConsumerGroupHeartbeatRequest, client: tuple[str, str]
) -> bool:
    """Return whether a heartbeat only says that its member is there, or what it owns, once it has reached its target.

    Nearly all heartbeats are such. `client`: the id and the host of the sender.
    """
    return (
        request.member_epoch == member.epoch == group.assignment_epoch == group.group_epoch
        and member.state is MemberState.STABLE
        and group.is_metadata_current
        and request.subscribed_topic_names is None
        and request.subscribed_topic_regex is None
        and request.server_assignor is None
        and request.rack_id is None
        and request.rebalance_timeout_ms == UNSET_TIMEOUT
        and request.instance_id == member.instance_id
        and client == (member.client_id, member.client_host)
        and member.classic is None
        # They may have to be resolved again.
        and not group.regexes.members
    )


def validate_request(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Sequence[str]) -> None:
    """Raise INVALID_REQUEST or UNSUPPORTED_ASSIGNOR for a request that no group accepts. The messages are Kafka's."""
    epoch = request.member_epoch
    if version >= CLIENT_MEMBER_ID_VERSION or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH:
        _refuse_if(_is_blank(request.member_id), "MemberId can't be empty.")
    _refuse_if(_is_blank(request.group_id), "GroupId can't be empty.")
    _refuse_if(_is_blank(request.instance_id), "InstanceId can't be empty.")
    _refuse_if(_is_blank(request.rack_id), "RackId can't be empty.")
    if epoch == JOIN_EPOCH:
        _refuse_if(
            request.rebalance_timeout_ms == UNSET_TIMEOUT, "RebalanceTimeoutMs must be provided in first request."
        )
        _refuse_if(request.topic_partitions != [], "TopicPartitions must be empty when (re-)joining.")
        _refuse_if(
            request.subscribed_topic_names is None and request.subscribed_topic_regex is None,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )
    elif epoch == LEAVE_STATIC_EPOCH:
        _refuse_if(request.instance_id is None, "InstanceId can't be null.")
    else:
        _refuse_if(epoch < LEAVE_STATIC_EPOCH, "MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _is_blank(text: str | None) -> bool:
    return text is not None and not text.strip(_BLANKS)


def _refuse_if(is_invalid: bool, message: str) -> None:
    if is_invalid:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


class MemberHeartbeat:
    """The heartbeat of a member that joins or stays."""

    def __init__(
        self, group: ConsumerGroup, request: HeartbeatRequest, topics: SubscribedTopics, settings: HeartbeatSettings
    ) -> None:
        """Find the member. Raises KafkaError if the request is not that of a member."""
        message = request.message
        self._group = group
        self._request = request
        self._topics = topics
        self._settings = settings
        self._owned = None if message.topic_partitions is None else assignment_of(message.topic_partitions)
        self._records: list[ConsumerGroupRecord] = []
        validate_size(group, message.member_id, message.instance_id, settings.max_size)
        member_id = message.member_id or request.new_member_id
        self._member = find_member(
            group,
            member_id,
            message.instance_id,
            message.member_epoch,
            self._owned,
            is_classic=request.classic is not None,
        )
        # The same member as it is in the group: with its former id, if it takes over a static member's place.
        static = None if message.instance_id is None else group.static_member(message.instance_id)
        self._existing = static or group.members.get(member_id)
        if static is not None and message.member_epoch == JOIN_EPOCH:
            self._records += replacement_records(group, static, self._member)

    def run(self) -> Heartbeat:
        group, message = self._group, self._request.message
        updated = self._updated_member()
        if updated is not self._member:
            self._records.append(updated.metadata_record(group.group_id))
        regex_change = self._change_regex(updated)
        has_new_names = updated.subscribed_names != self._member.subscribed_names
        has_subscription_changed = has_new_names or regex_change is not RegexChange.NONE
        assignor = self._preferred_assignor(updated)
        group_epoch = self._next_group_epoch(
            updated,
            must_bump=has_new_names
            or regex_change is RegexChange.RESOLVED
            or assignor != preferred_assignor(group.assignor_votes, self._settings.assignors),
        )
        target = self._target(updated, group_epoch, assignor)
        if has_subscription_changed or not updated.is_reconciled_to(target.epoch):
            updated = self._reconcile(updated, target, has_subscription_changed)
        response = ConsumerGroupHeartbeatResponse(
            member_id=updated.member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
        )
        if _is_full(message) or updated.assigned != self._member.assigned:
            response.assignment = _response_assignment(updated.assigned)
        return Heartbeat(self._records, response, updated, group_epoch)

    def _updated_member(self) -> ConsumerGroupMember:
        """Return the member with what the request has; null means unchanged."""
        member, message = self._member, self._request.message
        names, timeout_ms = message.subscribed_topic_names, message.rebalance_timeout_ms
        sent: dict[str, Any] = {
            "instance_id": message.instance_id,
            "rack_id": message.rack_id,
            "rebalance_timeout_ms": None if timeout_ms == UNSET_TIMEOUT else timeout_ms,
            "server_assignor": message.server_assignor,
            "subscribed_names": None if names is None else frozenset(names),
            "subscribed_regex": message.subscribed_topic_regex,
            "client_id": self._request.client_id,
            "client_host": self._request.client_host,
        }
        changes = {name: value for name, value in sent.items() if value is not None and value != getattr(member, name)}
        if member.classic != self._request.classic:
            changes["classic"] = self._request.classic
        return replace(member, **changes) if changes else member

    def _change_regex(self, updated: ConsumerGroupMember) -> RegexChange:
        """Return whether the member has another regular expression. Raises INVALID_REGULAR_EXPRESSION."""
        regexes, old, new = self._group.regexes, self._member.subscribed_regex, updated.subscribed_regex
        if old == new:
            return RegexChange.NONE
        if old in regexes.resolved and regexes.members[old] == 1:
            self._records.append(RegularExpression(self._group.group_id, old, None))
        if not new:
            return RegexChange.RESOLVED
        if new not in regexes.members:
            validate_regex(new)
            return RegexChange.UNRESOLVED
        return RegexChange.RESOLVED if new in regexes.resolved else RegexChange.UNRESOLVED

    def _preferred_assignor(self, updated: ConsumerGroupMember) -> str:
        """Return the assignor that most members prefer once the member has changed."""
        votes = self._group.assignor_votes
        before = None if self._existing is None else self._existing.server_assignor
        if before != updated.server_assignor:
            votes = votes_after(votes, before, updated.server_assignor)
        return preferred_assignor(votes, self._settings.assignors)

    def _existing_members(self) -> tuple[ConsumerGroupMember, ...]:
        return () if self._existing is None else (self._existing,)

    def _next_group_epoch(self, updated: ConsumerGroupMember, *, must_bump: bool) -> int:
        """Return the group epoch. It rises if it must, or if a topic has changed."""
        group = self._group
        if group.is_metadata_current and not must_bump:
            return group.group_epoch
        group.is_metadata_current = True
        metadata_hash = self._topics.hash(self._subscribed_topics(updated))
        if not must_bump and metadata_hash == group.metadata_hash:
            return group.group_epoch
        self._records.append(group_epoch_record(group.group_id, group.group_epoch + 1, metadata_hash))
        return group.group_epoch + 1

    def _subscribed_topics(self, updated: ConsumerGroupMember) -> set[str]:
        existing = self._existing_members()
        unused: list[str] = []
        if self._group.regexes.members:
            unused = [regex for regex in unused_regexes(self._group, existing) if regex != updated.subscribed_regex]
        return self._group.subscribed_topics_with(existing, (updated,), unused)

    def _target(self, updated: ConsumerGroupMember, group_epoch: int, assignor: str) -> Target:
        """Return the target of the member. If that of the group is computed, its records are added, the epoch last."""
        group, settings = self._group, self._settings
        own = group.target_of(updated)
        computed_ms, interval_ms = group.assignment_timestamp_ms, settings.assignment_interval_ms
        if not may_compute(group.assignment_epoch, computed_ms, group_epoch, interval_ms, settings.wall_ms):
            return Target(group.assignment_epoch, own)
        # Members stay in order: the first ones get the partitions that remain.
        existing = self._existing
        members = [updated if member is existing else member for member in group.members.values()]
        if existing is None:
            members.append(updated)
        specs: dict[str, MemberSpec] = {}
        for member in paced(members):
            target = own if member is updated else group.target.get(member.member_id, NO_ASSIGNMENT)
            specs[member.member_id] = MemberSpec(self._topics.ids(group.topics_of(member)), target, member.instance_id)
        partition_counts = self._topics.partition_counts(self._subscribed_topics(updated))
        changed = changed_targets(SERVER_ASSIGNORS[assignor], specs, partition_counts)
        for member_id, target in paced(changed.items()):
            self._records.append(target_record(group.group_id, member_id, target))
        self._records.append(target_epoch_record(group.group_id, group_epoch, settings.wall_ms))
        return Target(group_epoch, changed.get(updated.member_id, own))

    def _reconcile(
        self, member: ConsumerGroupMember, target: Target, has_subscription_changed: bool
    ) -> ConsumerGroupMember:
        group = self._group
        holder_id = member.member_id if self._existing is None else self._existing.member_id
        reconciled = next_assignment(
            member,
            target,
            self._owned,
            self._topics.ids(group.topics_of(member)),
            has_subscription_changed,
            partial(group.is_free_for, holder_id),
        )
        if reconciled != member:
            self._records.append(reconciled.current_assignment_record(group.group_id))
        return reconciled


def preferred_assignor(votes: Mapping[str, int], assignors: Sequence[str]) -> str:
    """Return the server-side assignor with the most votes; the default if no member has a preference."""
    return max(assignors, key=lambda name: votes.get(name, 0))


def _is_full(message: ConsumerGroupHeartbeatRequest) -> bool:
    """Return whether a request has all that a member that joins has to send."""
    return message.member_epoch == JOIN_EPOCH or (
        message.rebalance_timeout_ms != UNSET_TIMEOUT
        and (message.subscribed_topic_names is not None or message.subscribed_topic_regex is not None)
        and message.topic_partitions is not None
    )


def _response_assignment(assigned: AssignedPartitions) -> ConsumerGroupHeartbeatResponseAssignment:
    return ConsumerGroupHeartbeatResponseAssignment(
        topic_partitions=[
            ConsumerGroupHeartbeatResponseTopicPartitions(topic_id=topic_id, partitions=list(epochs))
            for topic_id, epochs in assigned.items()
        ]
    )
