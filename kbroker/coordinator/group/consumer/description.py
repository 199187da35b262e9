"""The description of a consumer group, as ConsumerGroupDescribe returns it (pure)."""

from collections.abc import Callable, Iterable, Mapping

from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.consumer.consumer_group_member import ConsumerGroupMember
from kbroker.coordinator.group.modern.modern_member import NO_ASSIGNMENT
from kbroker.runtime.turns import paced
from protocol.messages.k68_consumer_groups import (
    ConsumerGroupDescribeAssignment,
    ConsumerGroupDescribeMember,
    ConsumerGroupDescribeTopicPartitions,
    DescribedConsumerGroup,
)

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1

# Returns the name of a topic by its id, None if it does not exist.
TopicName = Callable[[bytes], str | None]


def describe(group: ConsumerGroup, assignor: str, topic_name: TopicName) -> DescribedConsumerGroup:
    """Return the group with its members. Partitions of deleted topics are left out."""
    return DescribedConsumerGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor,
        members=[_describe_member(group, member, topic_name) for member in paced(list(group.members.values()))],
    )


def _describe_member(
    group: ConsumerGroup, member: ConsumerGroupMember, topic_name: TopicName
) -> ConsumerGroupDescribeMember:
    """The partitions of a member include those that it still has to revoke."""
    has: dict[bytes, list[int]] = {}
    for partitions in (member.assigned, member.pending_revocation):
        for topic_id, epochs in partitions.items():
            has.setdefault(topic_id, []).extend(epochs)
    return ConsumerGroupDescribeMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_names),
        subscribed_topic_regex=member.subscribed_regex,
        assignment=_assignment(has, topic_name),
        target_assignment=_assignment(group.target.get(member.member_id, NO_ASSIGNMENT), topic_name),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(partitions: Mapping[bytes, Iterable[int]], topic_name: TopicName) -> ConsumerGroupDescribeAssignment:
    return ConsumerGroupDescribeAssignment(
        topic_partitions=[
            ConsumerGroupDescribeTopicPartitions(topic_id=topic_id, topic_name=name, partitions=list(indexes))
            for topic_id, indexes in partitions.items()
            if (name := topic_name(topic_id)) is not None
        ]
    )
