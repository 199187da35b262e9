"""A share group and its members: state, description, deletion. It has no committed offsets."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kbroker.common import KafkaError
from kbroker.coordinator.group.assignors.members import Assignment
from kbroker.coordinator.group.group import Committer
from kbroker.coordinator.group.modern.modern_group import ModernGroup
from kbroker.coordinator.group.modern.modern_member import (
    NO_ASSIGNMENT,
    ModernMember,
    assignment_of,
    topic_partitions,
)
from kbroker.coordinator.group.records import OffsetRecord
from kbroker.coordinator.group.share.records import (
    ShareCurrentAssignment,
    ShareGroupEpoch,
    ShareGroupRecord,
    ShareMemberMetadata,
    ShareStateTopics,
    ShareTargetEpoch,
)
from kbroker.coordinator.group.share.state_topics import StateTopics
from protocol.errors import ErrorCode
from protocol.messages.share_group_records import ShareGroupCurrentMemberAssignmentValue, ShareGroupMemberMetadataValue


class ShareGroupState(StrEnum):
    EMPTY = "Empty"
    STABLE = "Stable"
    # Of a group that does not exist.
    DEAD = "Dead"


@dataclass(slots=True, frozen=True, kw_only=True)
class ShareGroupMember(ModernMember):
    """Several members may have the same partition, so nothing is revoked: a member gets its target at once."""

    assigned: Assignment = field(default_factory=lambda: NO_ASSIGNMENT)

    def with_metadata(self, value: ShareGroupMemberMetadataValue) -> "ShareGroupMember":
        return replace(
            self,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_names=frozenset(value.subscribed_topic_names),
        )

    def with_current_assignment(self, value: ShareGroupCurrentMemberAssignmentValue | None) -> "ShareGroupMember":
        """Return the member with its current assignment; None in a tombstone, which precedes that of the member."""
        if value is None:
            return self
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            assigned=assignment_of(value.assigned_partitions),
        )

    def metadata_record(self, group_id: str) -> ShareMemberMetadata:
        value = ShareGroupMemberMetadataValue(
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.subscribed_names),
        )
        return ShareMemberMetadata(group_id, self.member_id, value)

    def current_assignment_record(self, group_id: str) -> ShareCurrentAssignment:
        value = ShareGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            assigned_partitions=topic_partitions(self.assigned),
        )
        return ShareCurrentAssignment(group_id, self.member_id, value)


class ShareGroup(ModernGroup[ShareGroupMember, Assignment]):
    """`states`: which partitions have a state at the share coordinator.

    Soft state: `initializing_since_ms`, when the initialization of a topic's states has begun (monotonic), and
    `may_lack_partitions`, whether `states` have changed since all of them were known to be in the target.
    """

    __slots__ = ("initializing_since_ms", "may_lack_partitions", "states")

    type_name = "share"
    no_target = NO_ASSIGNMENT
    # Its states are elsewhere.
    changes_kind = False

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.assignment_epoch = self.group_epoch
        self.states = StateTopics()
        self.initializing_since_ms: dict[bytes, int] = {}
        self.may_lack_partitions = True

    @property
    def state_name(self) -> str:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def abandoned_topics(self, before_ms: int) -> list[bytes]:
        """Return the topics whose initialization has begun before a time, or on another broker, and is not known to
        have ended."""
        since = self.initializing_since_ms
        return [topic_id for topic_id in self.states.initializing if since.get(topic_id, before_ms) <= before_ms]

    def state_record(self, states: StateTopics) -> ShareStateTopics:
        return ShareStateTopics(self.group_id, states.record_value)

    # The interface of groups.

    def _not_a_consumer_group(self) -> KafkaError:
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a consumer group.")

    def validate_offset_commit(self, committer: Committer, offsets: Sequence[OffsetRecord], now_ms: int) -> None:
        raise self._not_a_consumer_group()

    def validate_transactional_offset_commit(self, committer: Committer, offsets: Sequence[OffsetRecord]) -> None:
        raise self._not_a_consumer_group()

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        if member_id is not None:
            raise self._not_a_consumer_group()

    def validate_offset_delete(self) -> None:
        raise self._not_a_consumer_group()

    def offsets_expire_since_ms(self) -> int | None:
        return None

    @property
    def is_unused(self) -> bool:
        """A share group stays until it is deleted: its states are elsewhere."""
        return False

    def tombstones(self) -> Sequence[ShareGroupRecord]:
        return [
            ShareTargetEpoch(self.group_id, None),
            ShareStateTopics(self.group_id, None),
            ShareGroupEpoch(self.group_id, None),
        ]
