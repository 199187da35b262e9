"""Members of the classic protocol in a consumer group: what their requests change and are answered (pure).

The coordinator assigns their partitions, too. No request waits for other members: JoinGroup is a heartbeat with the
subscription, SyncGroup returns the current assignment, and Heartbeat makes a member join again that is not in the epoch
of the target, or has to revoke partitions. The generation of a member is its epoch.
"""

from collections.abc import Iterable, Iterator

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group_member import CONSUMER_PROTOCOL_TYPE
from kbroker.coordinator.group.classic.embedded_protocol import decode_subscription, encode_assignment
from kbroker.coordinator.group.classic.join import JoinRequest
from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.consumer.consumer_group_member import ConsumerGroupMember, MemberState
from kbroker.coordinator.group.consumer.conversion import (
    DISABLED_POLICY,
    TopicIdOf,
    TopicNameOf,
    assignment_by_id,
    classic_metadata,
    partitions_by_name,
)
from kbroker.coordinator.group.consumer.heartbeat import HeartbeatRequest
from kbroker.coordinator.group.consumer.membership import validate_size
from kbroker.coordinator.group.modern.modern_member import JOIN_EPOCH
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode, MalformedError
from protocol.messages.k11_classic_groups import (
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.messages.k68_consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)


def validate_join(group: ConsumerGroup, request: JoinRequest, policy: str, max_size: int) -> None:
    """Raise KafkaError if a member cannot join: also MEMBER_ID_REQUIRED for a new one, which is not remembered."""
    if policy == DISABLED_POLICY:
        message = f"Cannot join the consumer group {group.group_id} with the classic protocol because the group "
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"{message}migration is disabled.")
    validate_size(group, request.member_id, request.instance_id, max_size)
    if not group.supports_classic_protocols(request.protocol_type, [name for name, _ in request.protocols]):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not request.member_id and request.instance_id is None and request.requires_known_member_id:
        raise KafkaError(ErrorCode.MEMBER_ID_REQUIRED)


def join_as_heartbeat(group: ConsumerGroup, request: JoinRequest, topic_id_of: TopicIdOf) -> HeartbeatRequest:
    """Return the heartbeat that a JoinGroup is. Raises KafkaError, such as FENCED_INSTANCE_ID."""
    try:
        subscription = decode_subscription(request.protocols[0][1])
    except MalformedError:
        message = "Malformed embedded consumer protocol in subscription deserialization."
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, message) from None
    # Whatever its epoch: a member of the classic protocol that joins again need not know it.
    epoch = JOIN_EPOCH
    if request.member_id and request.instance_id is not None:
        epoch = group.existing_static_member(request.member_id, request.instance_id).epoch
    owned = assignment_by_id(subscription.owned_partitions, topic_id_of)
    heartbeat = ConsumerGroupHeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=epoch,
        instance_id=request.instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topic_names=subscription.topics,
        subscribed_topic_regex="",
        topic_partitions=[
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=list(indexes))
            for topic_id, indexes in owned.items()
        ],
    )
    classic = classic_metadata(request.session_timeout_ms, request.protocols)
    return HeartbeatRequest(heartbeat, request.new_member_id, request.client_id, request.client_host, classic)


def join_response(request: JoinRequest, member_id: str, epoch: int) -> JoinGroupResponse:
    """Return the response to a member, which is always a follower: it sends no assignments."""
    return JoinGroupResponse(
        member_id=member_id,
        generation_id=epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=request.protocols[0][0],
    )


def find_classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
    """Return a member. Raises UNKNOWN_MEMBER_ID, also for one of the consumer protocol, or FENCED_INSTANCE_ID."""
    if instance_id is None:
        member = group.existing_member(member_id)
    else:
        member = group.existing_static_member(member_id, instance_id)
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    return member


def validate_generation(member: ConsumerGroupMember, generation: int) -> None:
    if generation != member.epoch:
        message = f"The request generation id {generation} is not equal to the member epoch {member.epoch}"
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"{message} of member {member.member_id}.")


def sync_response(
    group: ConsumerGroup, member: ConsumerGroupMember, request: SyncGroupRequest, topic_name_of: TopicNameOf
) -> SyncGroupResponse:
    """Return the assignment of a member that has joined. Raises KafkaError, such as REBALANCE_IN_PROGRESS."""
    assert member.classic is not None
    protocol = member.classic.supported_protocols[0]
    for sent, expected in ((request.protocol_type, CONSUMER_PROTOCOL_TYPE), (request.protocol_name, protocol.name)):
        if sent is not None and sent != expected:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if member.epoch < group.assignment_epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    return SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=encode_assignment(protocol.metadata, partitions_by_name(member.assigned, topic_name_of)),
    )


def must_join_again(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    """Return whether another JoinGroup would bring a member closer to its target."""
    if member.state is MemberState.UNRELEASED_PARTITIONS and member.epoch == group.assignment_epoch:
        return not _waits_for_release(group, member)
    return member.epoch < group.assignment_epoch or member.state is MemberState.UNREVOKED_PARTITIONS


def _waits_for_release(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    """Return whether other members still have partitions of the member's target."""
    return any(
        not group.is_free_for(member.member_id, topic_id, index)
        for topic_id, indexes in group.target_of(member).items()
        for index in indexes
    )


def find_leaving_members(
    group: ConsumerGroup, identities: Iterable[MemberIdentity]
) -> Iterator[tuple[ErrorCode, ConsumerGroupMember | None]]:
    """Yield the result of each member of a LeaveGroup, which may be of either protocol, and the member."""
    for identity in paced(identities):
        try:
            yield ErrorCode.NONE, _find_leaving_member(group, identity.member_id, identity.group_instance_id)
        except KafkaError as error:
            yield error.code, None


def _find_leaving_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
    if instance_id is None:
        return group.existing_member(member_id)
    if not member_id and (member := group.static_member(instance_id)) is not None:
        # Administration tools do not know the member id.
        return member
    return group.existing_static_member(member_id, instance_id)
