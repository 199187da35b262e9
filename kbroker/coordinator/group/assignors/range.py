"""The assignor `range`: each member gets a contiguous range of the partitions of each topic (pure).

Members are in the order of their instance ids, then of their member ids, so that the same member gets the same numbers
of co-partitioned topics. As in Kafka 4.4, current targets and racks do not matter: a member that joins or leaves may
move many partitions.
"""

from collections.abc import Mapping, Sequence
from functools import cache

from kbroker.coordinator.group.assignors.members import Assignments, MemberSpec, is_homogeneous
from kbroker.runtime.turns import paced

# What a member has so far.
Target = dict[bytes, tuple[int, ...]]


def assign_range(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> Assignments:
    """Return the target of each member. Kafka's RangeAssignor returns the same."""
    targets: dict[str, Target] = {member_id: {} for member_id in members}
    in_order = sorted(_position(member_id, member) for member_id, member in members.items())
    subscribers: dict[bytes, list[Target]] = {}
    if is_homogeneous(members):
        everybody = [targets[member_id] for *_, member_id in in_order]
        subscribed = next(iter(members.values())).subscribed if members else ()
        subscribers = dict.fromkeys(subscribed, everybody)
    else:
        for *_, member_id in paced(in_order):
            for topic_id in members[member_id].subscribed:
                subscribers.setdefault(topic_id, []).append(targets[member_id])
    # Topics with as many partitions and subscribers are divided in the same way.
    ranges = cache(_ranges)
    for topic_id, count in partition_counts.items():
        topic_targets = subscribers.get(topic_id, [])
        parts = ranges(count, len(topic_targets)) if topic_targets else ()
        for target, part in paced(zip(topic_targets, parts, strict=False)):
            target[topic_id] = part
    return targets


def _position(member_id: str, member: MemberSpec) -> tuple[bool, str, str]:
    return member.instance_id is None, member_id if member.instance_id is None else member.instance_id, member_id


def _ranges(partition_count: int, count: int) -> Sequence[tuple[int, ...]]:
    """Divide the partitions of a topic into at most `count` ranges; the first ones are longer if that is necessary."""
    quota, extras = divmod(partition_count, count)
    partitions = tuple(range(partition_count))
    longer = extras * (quota + 1)
    ranges = [partitions[start : start + quota + 1] for start in range(0, longer, quota + 1)]
    if quota:
        ranges += [partitions[start : start + quota] for start in paced(range(longer, partition_count, quota))]
    return ranges
