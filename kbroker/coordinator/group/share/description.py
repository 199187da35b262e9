"""The description of a share group, as ShareGroupDescribe returns it (pure)."""

from collections.abc import Mapping

from kbroker.coordinator.group.share.share_group import ShareGroup, ShareGroupMember
from kbroker.metadata.image import TopicImage
from kbroker.runtime.turns import paced
from protocol.messages.k76_share_groups import (
    DescribedAssignment,
    DescribedShareGroup,
    DescribedShareGroupMember,
    DescribedTopicPartitions,
)

ASSIGNOR = "simple"


def describe(group: ShareGroup, topics: Mapping[bytes, TopicImage]) -> DescribedShareGroup:
    """Return the group with its members. `topics`: those that exist, by id; partitions of others are left out."""
    return DescribedShareGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR,
        members=[_describe_member(member, topics) for member in paced(list(group.members.values()))],
    )


def _describe_member(member: ShareGroupMember, topics: Mapping[bytes, TopicImage]) -> DescribedShareGroupMember:
    return DescribedShareGroupMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.subscribed_names),
        assignment=DescribedAssignment(
            topic_partitions=[
                DescribedTopicPartitions(topic_id=topic_id, topic_name=topics[topic_id].name, partitions=list(indexes))
                for topic_id, indexes in member.assigned.items()
                if topic_id in topics
            ]
        ),
    )
