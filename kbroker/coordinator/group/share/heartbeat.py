"""ShareGroupHeartbeat: what a heartbeat of a member that joins or stays changes, and its response (pure).

1. What the member has sent replaces what it had sent before; null means unchanged.
2. Another subscription, a changed topic, or partitions that are now initialized begin a group epoch.
3. If the target assignment is older than the group epoch, it is computed, at most once per assignment interval.
4. The member gets its target. Nothing is revoked first, since partitions are shared.
5. Partitions without a state begin to get one. They are assigned when they have it.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.coordinator.group.assignors.members import Assignment, MemberSpec
from kbroker.coordinator.group.assignors.simple import assign_simple
from kbroker.coordinator.group.modern.modern_member import JOIN_EPOCH, LEAVE_EPOCH
from kbroker.coordinator.group.modern.subscribed_topics import SubscribedTopics
from kbroker.coordinator.group.modern.target import may_compute
from kbroker.coordinator.group.share.records import (
    ShareGroupRecord,
    group_epoch_record,
    member_tombstones,
    target_epoch_record,
    target_record,
)
from kbroker.coordinator.group.share.share_group import ShareGroup, ShareGroupMember
from kbroker.coordinator.group.share.state_topics import Initialization
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k76_share_groups import (
    ShareGroupAssignment,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupTopicPartitions,
)

# Kafka's group.share.initialize.retry.interval.ms, which is internal: when an initialization is begun again.
INITIALIZE_RETRY_INTERVAL_MS = 30_000
# What Java's String.trim removes.
_BLANKS = "".join(map(chr, range(0x21)))


class ShareHeartbeatSettings(NamedTuple):
    """What a heartbeat depends on besides its group: configs and clocks, in milliseconds, and who has sent it."""

    client_id: str
    client_host: str
    max_size: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    mono_ms: int
    wall_ms: int


class ShareHeartbeat(NamedTuple):
    """The response to a heartbeat, and what the share coordinator has to initialize when its records are committed."""

    response: ShareGroupHeartbeatResponse
    initialization: Initialization | None = None


def validate_request(request: ShareGroupHeartbeatRequest) -> None:
    """Raise INVALID_REQUEST for a request that no group accepts. The messages are Kafka's, also that there is none."""
    if not request.member_id:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    for name, text in (("MemberId", request.member_id), ("GroupId", request.group_id), ("RackId", request.rack_id)):
        if text is not None and not text.strip(_BLANKS):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        if not request.subscribed_topic_names:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "SubscribedTopicNames must be set in first request.")
    elif request.member_epoch < LEAVE_EPOCH:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid.")


class ShareMemberHeartbeat:
    """The heartbeat of a member that joins or stays."""

    def __init__(
        self,
        group: ShareGroup,
        request: ShareGroupHeartbeatRequest,
        topics: SubscribedTopics,
        settings: ShareHeartbeatSettings,
    ) -> None:
        """Find the member. Raises KafkaError if the request is not that of a member."""
        self._group = group
        self._request = request
        self._topics = topics
        self._settings = settings
        self._records: list[ShareGroupRecord] = []
        self._member = _find_member(group, request.member_id, request.member_epoch, settings.max_size)

    def run(self) -> tuple[list[ShareGroupRecord], ShareHeartbeat]:
        """Return the records, and the response."""
        group, names = self._group, self._request.subscribed_topic_names
        updated = replace(
            self._member,
            rack_id=self._request.rack_id or self._member.rack_id,
            client_id=self._settings.client_id,
            client_host=self._settings.client_host,
            subscribed_names=self._member.subscribed_names if names is None else frozenset(names),
        )
        if updated != self._member or self._member.member_id not in group.members:
            self._records.append(updated.metadata_record(group.group_id))
        has_subscription_changed = updated.subscribed_names != self._member.subscribed_names
        subscribed = group.subscribed_topics_with(self._existing_members(), [updated])
        group_epoch = self._next_group_epoch(subscribed, has_subscription_changed)
        target_epoch, target = self._target(updated, group_epoch, subscribed)
        if has_subscription_changed or updated.epoch != target_epoch:
            updated = self._reconcile(updated, target_epoch, target)
        response = ShareGroupHeartbeatResponse(
            member_id=updated.member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=self._settings.heartbeat_interval_ms,
        )
        if names is not None or self._request.member_epoch == JOIN_EPOCH or updated.assigned != self._member.assigned:
            response.assignment = _response_assignment(updated.assigned)
        return self._records, ShareHeartbeat(response, self._initialize(group_epoch, subscribed))

    def _existing_members(self) -> list[ShareGroupMember]:
        member = self._group.members.get(self._member.member_id)
        return [] if member is None else [member]

    def _next_group_epoch(self, subscribed: Collection[str], must_bump: bool) -> int:
        """Return the epoch of the group. A new one is written if the heartbeat begins it."""
        group = self._group
        if group.assignment_epoch >= group.group_epoch and group.may_lack_partitions and not must_bump:
            must_bump = self._lacks_partitions(subscribed)
            group.may_lack_partitions = must_bump
        if group.is_metadata_current and not must_bump:
            return group.group_epoch
        metadata_hash = self._topics.hash(subscribed)
        group.is_metadata_current = True
        if metadata_hash == group.metadata_hash and not must_bump:
            return group.group_epoch
        self._records.append(group_epoch_record(group.group_id, group.group_epoch + 1, metadata_hash))
        return group.group_epoch + 1

    def _lacks_partitions(self, subscribed: Collection[str]) -> bool:
        """Return whether initialized partitions are in the target of no member."""
        if not self._group.members:
            return False
        assigned: dict[bytes, set[int]] = {}
        for target in paced(self._group.target.values()):
            for topic_id, indexes in target.items():
                assigned.setdefault(topic_id, set()).update(indexes)
        allowed = self._assignable(subscribed)
        return any(assigned.get(topic_id, set()) != set(indexes) for topic_id, indexes in allowed.items())

    def _assignable(self, subscribed: Collection[str]) -> dict[bytes, list[int]]:
        """Return the existing partitions that have a state, of the topics that have any."""
        initialized = self._group.states.initialized
        return {
            topic.topic_id: [index for index in initialized[topic.topic_id].partitions if index < topic.partition_count]
            for _, topic in self._topics.existing(subscribed)
            if topic.topic_id in initialized
        }

    def _target(
        self, updated: ShareGroupMember, group_epoch: int, subscribed: Collection[str]
    ) -> tuple[int, Assignment]:
        """Return the epoch and target of the member. If the group's is computed, it is written, the epoch last."""
        group, settings = self._group, self._settings
        own = group.target_of(updated)
        computed_ms, interval_ms = group.assignment_timestamp_ms, settings.assignment_interval_ms
        if not may_compute(group.assignment_epoch, computed_ms, group_epoch, interval_ms, settings.wall_ms):
            return group.assignment_epoch, own
        members = {**group.members, updated.member_id: updated}
        specs = {
            member_id: MemberSpec(self._topics.ids(member.subscribed_names), group.target_of(member))
            for member_id, member in paced(members.items())
        }
        targets = assign_simple(specs, self._assignable(subscribed))
        for member_id, target in paced(targets.items()):
            if target != specs[member_id].target:
                self._records.append(target_record(group.group_id, member_id, target))
        self._records.append(target_epoch_record(group.group_id, group_epoch, settings.wall_ms))
        return group_epoch, targets[updated.member_id]

    def _reconcile(self, updated: ShareGroupMember, target_epoch: int, target: Assignment) -> ShareGroupMember:
        """Return the member with its target, without topics to which it no longer subscribes."""
        subscribed = self._topics.ids(updated.subscribed_names)
        assigned = {topic_id: indexes for topic_id, indexes in target.items() if topic_id in subscribed}
        reconciled = replace(updated, assigned=assigned)
        if updated.epoch != target_epoch:
            reconciled = replace(reconciled, epoch=target_epoch, previous_epoch=updated.epoch)
        if reconciled != updated:
            self._records.append(reconciled.current_assignment_record(self._group.group_id))
        return reconciled

    def _initialize(self, group_epoch: int, subscribed: Collection[str]) -> Initialization | None:
        """Begin to initialize the partitions without a state, and return them; None if there are none."""
        group, states, mono_ms = self._group, self._group.states, self._settings.mono_ms
        abandoned = group.abandoned_topics(mono_ms - INITIALIZE_RETRY_INTERVAL_MS)
        missing = states.missing(dict(self._topics.existing(subscribed)), abandoned)
        if not missing:
            return None
        group.initializing_since_ms.update(dict.fromkeys(missing, mono_ms))
        self._records.append(group.state_record(states.begin(missing)))
        return states.initialization(group.group_id, group_epoch, missing)


def remove_members(
    group: ShareGroup, members: Collection[ShareGroupMember], topics: SubscribedTopics
) -> list[ShareGroupRecord]:
    """Return the records that remove members, and begin a group epoch."""
    records: list[ShareGroupRecord] = []
    for member in paced(members):
        records += member_tombstones(group.group_id, member.member_id)
    metadata_hash = topics.hash(group.subscribed_topics_with(members, ()))
    records.append(group_epoch_record(group.group_id, group.group_epoch + 1, metadata_hash))
    if len(members) == len(group.members):
        # Nothing is left to assign: the target of the empty group is that of its epoch.
        records.append(target_epoch_record(group.group_id, group.group_epoch + 1, 0))
    return records


def _find_member(group: ShareGroup, member_id: str, epoch: int, max_size: int) -> ShareGroupMember:
    """Return the member that sends a heartbeat; one that joins is new, and not in the group yet.

    Raises GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH.
    """
    if member_id not in group.members:
        group.check_size(max_size)
    if epoch == JOIN_EPOCH:
        return group.members.get(member_id) or ShareGroupMember(member_id=member_id)
    member = group.existing_member(member_id)
    # A member that has lost the response with its epoch sends the one before.
    if epoch > member.epoch or (epoch < member.epoch and epoch != member.previous_epoch):
        mismatch = f", and it does not match the previous member epoch ({member.previous_epoch})"
        raise group.fenced_epoch(member, epoch, mismatch if epoch < member.epoch else "")
    return member


def _response_assignment(assigned: Assignment) -> ShareGroupAssignment:
    return ShareGroupAssignment(
        topic_partitions=[
            ShareGroupTopicPartitions(topic_id=topic_id, partitions=list(indexes))
            for topic_id, indexes in assigned.items()
        ]
    )
