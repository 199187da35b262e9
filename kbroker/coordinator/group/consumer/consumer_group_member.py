"""A member of a consumer group, and its records."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType

from kbroker.coordinator.group.consumer.records import CurrentAssignment, MemberMetadata
from kbroker.coordinator.group.modern.modern_member import LEAVE_EPOCH, ModernMember
from protocol.messages.consumer_group_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    CurrentTopicPartitions,
)

# The epochs in which a member was assigned its partitions (KIP-1251), by topic id and partition.
AssignedPartitions = Mapping[bytes, Mapping[int, int]]
NO_PARTITIONS: AssignedPartitions = MappingProxyType({})


class MemberState(IntEnum):
    """How far a member is on its way from its current to its target assignment. The values are those in records.

    STABLE: it has the assignment of its epoch.
    UNREVOKED_PARTITIONS: it has to revoke partitions before it proceeds to the next epoch.
    UNRELEASED_PARTITIONS: it waits for partitions that other members have not revoked yet.
    UNKNOWN: the state in a record of a later version.
    """

    STABLE = 1
    UNREVOKED_PARTITIONS = 2
    UNRELEASED_PARTITIONS = 3
    UNKNOWN = 127


_STATES = {int(state): state for state in MemberState}


@dataclass(slots=True, frozen=True, kw_only=True)
class ConsumerGroupMember(ModernMember):
    """A member, which is replaced when it changes. `classic`: what it has sent as a member of the classic protocol."""

    rebalance_timeout_ms: int = -1
    subscribed_regex: str = ""
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    state: MemberState = MemberState.STABLE
    assigned: AssignedPartitions = field(default_factory=dict)
    pending_revocation: AssignedPartitions = field(default_factory=dict)

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == target_epoch

    # Records.

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> "ConsumerGroupMember":
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_names=frozenset(value.subscribed_topic_names),
            subscribed_regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def with_current_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> "ConsumerGroupMember":
        """Return the member with its current assignment; None in a tombstone, which precedes that of the member."""
        if value is None:
            return replace(
                self,
                epoch=LEAVE_EPOCH,
                previous_epoch=LEAVE_EPOCH,
                assigned=NO_PARTITIONS,
                pending_revocation=NO_PARTITIONS,
            )
        return replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=_STATES.get(value.state, MemberState.UNKNOWN),
            assigned=_partitions(value.assigned_partitions, value.member_epoch),
            pending_revocation=_partitions(value.partitions_pending_revocation, value.member_epoch),
        )

    def metadata_record(self, group_id: str) -> MemberMetadata:
        value = ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.subscribed_names),
            subscribed_topic_regex=self.subscribed_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=self.classic,
        )
        return MemberMetadata(group_id, self.member_id, value)

    def current_assignment_record(self, group_id: str) -> CurrentAssignment:
        value = ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=_structs(self.assigned),
            partitions_pending_revocation=_structs(self.pending_revocation),
        )
        return CurrentAssignment(group_id, self.member_id, value)


def _partitions(topics: Iterable[CurrentTopicPartitions], member_epoch: int) -> AssignedPartitions:
    """Return the partitions of a record. Brokers before Kafka 4.3 have not stored their assignment epochs."""
    found: dict[bytes, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [max(member_epoch, 0)] * len(topic.partitions)
        found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return found


def _structs(partitions: AssignedPartitions) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(topic_id=topic_id, partitions=list(epochs), assignment_epochs=list(epochs.values()))
        for topic_id, epochs in partitions.items()
    ]
