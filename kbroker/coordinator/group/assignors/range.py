"""The assignor `range`: each member gets a contiguous range of the partitions of each topic (pure).

Members are in the order of their instance ids, then of their member ids, so that the same member gets the same numbers
of co-partitioned topics. As in Kafka 4.4, current targets and racks do not matter: a member that joins or leaves may
move many partitions.
"""

from collections.abc import Mapping

from kbroker.coordinator.group.assignors.members import Assignments, MemberSpec
from kbroker.runtime.turns import paced


def assign_range(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> Assignments:
    """Return the target of each member. Kafka's RangeAssignor returns the same."""
    targets: dict[str, dict[bytes, tuple[int, ...]]] = {member_id: {} for member_id in members}
    subscribers: dict[bytes, list[dict[bytes, tuple[int, ...]]]] = {topic_id: [] for topic_id in partition_counts}
    for member_id in paced(sorted(members, key=lambda member_id: _position(member_id, members[member_id]))):
        target = targets[member_id]
        for topic_id in members[member_id].subscribed:
            if topic_id in subscribers:
                subscribers[topic_id].append(target)
    for topic_id, topic_targets in paced(subscribers.items()):
        if topic_targets:
            _divide(topic_id, partition_counts[topic_id], topic_targets)
    return targets


def _position(member_id: str, member: MemberSpec) -> tuple[bool, str]:
    return member.instance_id is None, member_id if member.instance_id is None else member.instance_id


def _divide(topic_id: bytes, partition_count: int, targets: list[dict[bytes, tuple[int, ...]]]) -> None:
    """Add a range of a topic to each target; the first ranges are longer by one partition if that is necessary."""
    quota, extras = divmod(partition_count, len(targets))
    partitions = tuple(range(partition_count))
    position = 0
    for target in paced(targets if quota else targets[:extras]):
        end = position + quota + (extras > 0)
        target[topic_id] = partitions[position:end]
        position = end
        extras -= 1
