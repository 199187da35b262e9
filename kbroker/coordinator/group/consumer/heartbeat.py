"""ConsumerGroupHeartbeat: what a heartbeat changes in its group, and what it is answered (pure).

1. The member is found, created, or takes over a static member's place (membership.py).
2. What it has sent replaces what it had sent before; null means unchanged.
3. Another subscription, another preferred assignor or a changed topic begins a group epoch.
4. If the target assignment is older than the group epoch, it is computed, at most once per assignment interval.
5. The member proceeds towards its target (current_assignment.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kbroker.common import KafkaError
from kbroker.coordinator.group.assignors.members import Assignment, MemberSpec
from kbroker.coordinator.group.assignors.server_assignors import SERVER_ASSIGNORS
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.consumer.consumer_group_member import AssignedPartitions, ConsumerGroupMember
from kbroker.coordinator.group.consumer.current_assignment import OwnedPartitions, Target, next_assignment
from kbroker.coordinator.group.consumer.membership import find_member, replacement_records, validate_size
from kbroker.coordinator.group.consumer.records import (
    ConsumerGroupRecord,
    group_epoch_record,
    target_epoch_record,
    target_record,
)
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
    """A request, and what is known of its sender. `new_member_id`: the id of a member that has not chosen one."""

    message: ConsumerGroupHeartbeatRequest
    new_member_id: str
    client_id: str
    client_host: str


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
    """The records of a heartbeat, and its response."""

    records: list[ConsumerGroupRecord]
    response: ConsumerGroupHeartbeatResponse


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
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _is_blank(text: str | None) -> bool:
    return text is not None and not text.strip(_BLANKS)


def _refuse_if(is_invalid: bool, message: str) -> None:
    if is_invalid:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def heartbeat(
    group: ConsumerGroup, request: HeartbeatRequest, topics: SubscribedTopics, settings: HeartbeatSettings
) -> Heartbeat:
    """Handle the heartbeat of a member that joins or stays. Raises KafkaError."""
    message = request.message
    validate_size(group, message.member_id, message.instance_id, settings.max_size)
    owned = None if message.topic_partitions is None else assignment_of(message.topic_partitions)
    member_id = message.member_id or request.new_member_id
    member = find_member(group, member_id, message.instance_id, message.member_epoch, owned)
    records: list[ConsumerGroupRecord] = []
    replaced = None if message.instance_id is None else group.static_member(message.instance_id)
    if replaced is not None and message.member_epoch == JOIN_EPOCH:
        records += replacement_records(group, replaced, member)
    predecessor = replaced or group.members.get(member_id)
    updated = _updated(member, request)
    if updated != member:
        records.append(updated.metadata_record(group.group_id))
    has_subscription_changed = updated.subscribed_names != member.subscribed_names
    assignor = _preferred_assignor(group, predecessor, updated, settings.assignors)
    group_epoch = group.group_epoch
    bumps = has_subscription_changed or assignor != preferred_assignor(group, settings.assignors)
    if bumps or not group.is_metadata_current:
        group.is_metadata_current = True
        removed = () if predecessor is None else (predecessor,)
        metadata_hash = topics.hash(group.subscribed_topics_with(removed, (updated,)))
        if bumps or metadata_hash != group.metadata_hash:
            group_epoch += 1
            records.append(group_epoch_record(group.group_id, group_epoch, metadata_hash))
    target = _target(group, predecessor, updated, group_epoch, assignor, topics, settings, records)
    if has_subscription_changed or not updated.is_reconciled_to(target.epoch):
        updated = _reconcile(group, predecessor, updated, target, owned, has_subscription_changed, topics, records)
    response = ConsumerGroupHeartbeatResponse(
        member_id=updated.member_id,
        member_epoch=updated.epoch,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
    )
    if is_full(message) or updated.assigned != member.assigned:
        response.assignment = _response_assignment(updated.assigned)
    return Heartbeat(records, response)


def _updated(member: ConsumerGroupMember, request: HeartbeatRequest) -> ConsumerGroupMember:
    """Return the member with what the request has; null means unchanged."""
    message = request.message
    names = message.subscribed_topic_names
    sent: dict[str, Any] = {
        "instance_id": message.instance_id,
        "rack_id": message.rack_id,
        "rebalance_timeout_ms": None if message.rebalance_timeout_ms == UNSET_TIMEOUT else message.rebalance_timeout_ms,
        "server_assignor": message.server_assignor,
        "subscribed_names": None if names is None else frozenset(names),
        "subscribed_regex": message.subscribed_topic_regex,
        "client_id": request.client_id,
        "client_host": request.client_host,
    }
    changes = {name: value for name, value in sent.items() if value is not None and value != getattr(member, name)}
    if member.classic is not None:
        changes["classic"] = None
    return replace(member, **changes) if changes else member


def preferred_assignor(group: ConsumerGroup, assignors: Sequence[str]) -> str:
    """Return the server-side assignor that most members prefer."""
    votes = group.assignor_votes
    return max(votes, key=lambda name: votes[name]) if votes else assignors[0]


def _preferred_assignor(
    group: ConsumerGroup, old: ConsumerGroupMember | None, new: ConsumerGroupMember, assignors: Sequence[str]
) -> str:
    """Return the assignor that most members prefer once a member has changed."""
    before = None if old is None else old.server_assignor
    if before == new.server_assignor:
        return preferred_assignor(group, assignors)
    votes = group.assignor_votes.copy()
    if before is not None:
        votes[before] -= 1
    if new.server_assignor is not None:
        votes[new.server_assignor] += 1
    votes = +votes
    return max(votes, key=lambda name: votes[name]) if votes else assignors[0]


def _target(
    group: ConsumerGroup,
    predecessor: ConsumerGroupMember | None,
    updated: ConsumerGroupMember,
    group_epoch: int,
    assignor: str,
    topics: SubscribedTopics,
    settings: HeartbeatSettings,
    records: list[ConsumerGroupRecord],
) -> Target:
    """Return the target of a member. If that of the group is computed, its records are added: the epoch comes last."""
    own = group.target_of(updated)
    if not may_compute(
        group.assignment_epoch,
        group.assignment_timestamp_ms,
        group_epoch,
        settings.assignment_interval_ms,
        settings.wall_ms,
    ):
        return Target(group.assignment_epoch, own)
    members = dict(group.members)
    if predecessor is not None:
        del members[predecessor.member_id]
    members[updated.member_id] = updated
    subscribed = topics.subscriptions()
    specs: dict[str, MemberSpec] = {}
    for member_id, member in paced(members.items()):
        target = own if member is updated else group.target.get(member_id, NO_ASSIGNMENT)
        specs[member_id] = MemberSpec(subscribed.ids(group.topics_of(member)), target, member.instance_id)
    changed = changed_targets(SERVER_ASSIGNORS[assignor], specs, subscribed.partition_counts)
    records += [target_record(group.group_id, member_id, target) for member_id, target in paced(changed.items())]
    records.append(target_epoch_record(group.group_id, group_epoch, settings.wall_ms))
    assignment: Assignment = changed.get(updated.member_id, own)
    return Target(group_epoch, assignment)


def _reconcile(
    group: ConsumerGroup,
    predecessor: ConsumerGroupMember | None,
    member: ConsumerGroupMember,
    target: Target,
    owned: OwnedPartitions,
    has_subscription_changed: bool,
    topics: SubscribedTopics,
    records: list[ConsumerGroupRecord],
) -> ConsumerGroupMember:
    holder_id = member.member_id if predecessor is None else predecessor.member_id
    subscribed = topics.subscriptions().ids(group.topics_of(member))
    reconciled = next_assignment(
        member,
        target,
        owned,
        subscribed,
        has_subscription_changed,
        lambda topic_id, partition: group.is_free_for(holder_id, topic_id, partition),
    )
    if reconciled != member:
        records.append(reconciled.current_assignment_record(group.group_id))
    return reconciled


def is_full(message: ConsumerGroupHeartbeatRequest) -> bool:
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
