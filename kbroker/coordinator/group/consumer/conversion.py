"""The conversion of a group between the classic and the consumer protocol while its members consume (pure).

Up: the first member of the consumer protocol joins a classic group. Its generation becomes the group epoch, the
assignment epoch and the epoch of each member, and the assignments become both targets and current assignments.
Down: the last member of the consumer protocol leaves, and members of the classic protocol remain. The group epoch
becomes the generation, and the targets become the assignments.

Both are one write: tombstones of all records of the one kind, and the records of the other. Offsets stay.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from kbroker.common import KafkaError
from kbroker.coordinator.group.assignors.members import Assignment
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.classic_group_member import CONSUMER_PROTOCOL_TYPE, ClassicGroupMember
from kbroker.coordinator.group.classic.embedded_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.consumer.consumer_group_member import ConsumerGroupMember
from kbroker.coordinator.group.consumer.records import (
    GroupEpoch,
    RegularExpression,
    TargetEpoch,
    group_epoch_record,
    member_tombstones,
    target_epoch_record,
    target_record,
)
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode, MalformedError
from protocol.messages.consumer_group_records import ClassicMemberMetadata, ClassicProtocol
from protocol.messages.consumer_protocol import AssignedTopic, OwnedTopic

# The values of `group.consumer.migration.policy`.
UPGRADE_POLICIES = ("upgrade", "bidirectional")
DOWNGRADE_POLICIES = ("downgrade", "bidirectional")
DISABLED_POLICY = "disabled"

# The id of a topic, None if it does not exist; the name of a topic by its id.
TopicIdOf = Callable[[str], bytes | None]
TopicNameOf = Callable[[bytes], str | None]


# Up.


def validate_upgrade(group: ClassicGroup, policy: str, max_size: int) -> None:
    """Raise GROUP_ID_NOT_FOUND if a member of the consumer protocol cannot join a classic group."""
    if policy not in UPGRADE_POLICIES:
        raise _cannot_upgrade(group, "because online upgrade is disabled.")
    if not group.uses_consumer_protocol():
        raise _cannot_upgrade(group, "because the group does not use the consumer embedded protocol.")
    if len(group.members) > max_size:
        raise _cannot_upgrade(group, "because the group size exceeds the consumer group maximum size.")


def upgrade(group: ClassicGroup, topic_id_of: TopicIdOf) -> ConsumerGroup:
    """Return the consumer group that a classic one becomes, with metadata hash 0.

    Raises GROUP_ID_NOT_FOUND if a member's bytes cannot be read, or are more than subscribed topics and partitions.
    """
    converted = ConsumerGroup(group.group_id)
    converted.group_epoch = converted.assignment_epoch = generation = group.generation
    # A rebalance whose first generation is not complete has not selected a protocol yet.
    protocol = group.protocol or group.select_protocol()
    for member in paced(list(group.members.values())):
        try:
            subscription = decode_subscription(member.metadata(protocol))
            assignment = decode_assignment(member.assignment)
        except MalformedError:
            raise _cannot_upgrade(group, "because the embedded consumer protocol is malformed.") from None
        if assignment.user_data:
            raise _cannot_upgrade(
                group,
                "because an unsupported custom assignor is in use. Please refer to the documentation or switch to a "
                "default assignor before re-attempting the upgrade.",
            )
        target = assignment_by_id(assignment.assigned_partitions, topic_id_of)
        converted.target[member.member_id] = target
        converted.put_member(
            ConsumerGroupMember(
                member_id=member.member_id,
                epoch=generation,
                previous_epoch=generation,
                instance_id=member.instance_id,
                rack_id=subscription.rack_id or None,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                subscribed_names=frozenset(subscription.topics),
                assigned={topic_id: dict.fromkeys(indexes, generation) for topic_id, indexes in target.items()},
                classic=classic_metadata(member.session_timeout_ms, member.protocols),
            )
        )
    return converted


def classic_metadata(session_timeout_ms: int, protocols: Iterable[tuple[str, bytes]]) -> ClassicMemberMetadata:
    return ClassicMemberMetadata(
        session_timeout_ms=session_timeout_ms,
        supported_protocols=[ClassicProtocol(name=name, metadata=metadata) for name, metadata in protocols],
    )


def assignment_by_id(topics: Iterable[AssignedTopic | OwnedTopic], topic_id_of: TopicIdOf) -> Assignment:
    """Return partitions by topic id, in ascending order. Topics that do not exist are left out."""
    partitions: dict[bytes, set[int]] = {}
    for topic in topics:
        topic_id = topic_id_of(topic.topic)
        if topic_id is not None and topic.partitions:
            partitions.setdefault(topic_id, set()).update(topic.partitions)
    return {topic_id: tuple(sorted(indexes)) for topic_id, indexes in partitions.items()}


def upgrade_records(group: ClassicGroup, converted: ConsumerGroup) -> list[object]:
    """Return the records that make a classic group a consumer group."""
    group_id, members = group.group_id, list(converted.members.values())
    records: list[object] = list(group.tombstones())
    records += [member.metadata_record(group_id) for member in paced(members)]
    records.append(group_epoch_record(group_id, converted.group_epoch, converted.metadata_hash))
    records += [target_record(group_id, member_id, target) for member_id, target in paced(converted.target.items())]
    records.append(target_epoch_record(group_id, converted.assignment_epoch, 0))
    records += [member.current_assignment_record(group_id) for member in paced(members)]
    return records


def _cannot_upgrade(group: ClassicGroup, reason: str) -> KafkaError:
    message = f"Cannot upgrade classic group {group.group_id} to consumer group {reason}"
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, message)


# Down.


def can_downgrade(
    group: ConsumerGroup, removed: Collection[ConsumerGroupMember], size: int, policy: str, max_size: int
) -> bool:
    """Return whether only members of the classic protocol remain once some are removed, and may be a classic group.

    `size`: the number of members that the classic group would have.
    """
    if policy not in DOWNGRADE_POLICIES or not 0 < size <= max_size:
        return False
    others = len(group.members) - len(removed)
    return group.classic_member_count - sum(member.classic is not None for member in removed) == others


def downgrade_records(
    group: ConsumerGroup,
    remaining: Mapping[str, ConsumerGroupMember],
    group_epoch: int,
    topic_name_of: TopicNameOf,
    wall_ms: int,
    *,
    must_rebalance: bool,
) -> list[object]:
    """Return the records that make a consumer group a classic group with the remaining members.

    `must_rebalance`: their targets are out of date. This is durable, as the lack of a leader.
    """
    group_id = group.group_id
    records: list[object] = []
    for member_id in paced(list({**group.members, **remaining})):
        records += member_tombstones(group_id, member_id)
    records += [RegularExpression(group_id, regex, None) for regex in group.regexes.resolved]
    records += [TargetEpoch(group_id, None), GroupEpoch(group_id, None)]
    converted = ClassicGroup(group_id)
    converted.protocol_type = CONSUMER_PROTOCOL_TYPE
    converted.generation = group_epoch
    for member in paced(remaining.values()):
        converted.add_member(_classic_member(member))
    converted.protocol = converted.select_protocol()
    assignments = {
        member.member_id: encode_assignment(
            converted.members[member.member_id].metadata(converted.protocol),
            partitions_by_name(group.target_of(member), topic_name_of),
        )
        for member in paced(remaining.values())
    }
    if must_rebalance:
        converted.leader_id = None
    return [*records, converted.record(wall_ms, assignments)]


def _classic_member(member: ConsumerGroupMember) -> ClassicGroupMember:
    classic = member.classic
    assert classic is not None
    return ClassicGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in classic.supported_protocols),
    )


def partitions_by_name(
    partitions: Mapping[bytes, Iterable[int]], topic_name_of: TopicNameOf
) -> dict[str, Iterable[int]]:
    """Return partitions by the names of their topics. Topics that do not exist are left out."""
    named = {topic_name_of(topic_id): indexes for topic_id, indexes in partitions.items()}
    return {name: indexes for name, indexes in named.items() if name is not None}
