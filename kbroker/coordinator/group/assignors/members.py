"""What an assignor works with: the members of a group, and what they keep of their current targets (pure)."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from kbroker.runtime.turns import paced

# Ascending partition numbers by topic id. Neither is changed once it is a member's target.
Assignment = Mapping[bytes, tuple[int, ...]]
Assignments = Mapping[str, Assignment]


class MemberSpec(NamedTuple):
    """A member: the ids of the topics that it subscribes to, and its target in the last assignment."""

    subscribed: frozenset[bytes]
    target: Assignment
    instance_id: str | None = None


# Members by id, and the number of partitions of all subscribed topics by topic id. Returns the target of each member.
Assignor = Callable[[Mapping[str, MemberSpec], Mapping[bytes, int]], Assignments]


def is_homogeneous(members: Mapping[str, MemberSpec]) -> bool:
    """Return whether all members subscribe to the same topics."""
    return len({member.subscribed for member in members.values()}) <= 1


def keep_targets(
    members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> tuple[Assignments, dict[bytes, set[int]]]:
    """Return what each member may keep of its target, and all partitions that are kept, by topic id.

    A member does not keep topics without a subscription, and partitions that do not exist or that a member before it
    keeps: a target that comes from a classic group is what its leader has sent.
    """
    parts: dict[bytes, list[tuple[int, ...]]] = {topic_id: [] for topic_id in partition_counts}
    are_valid = True
    for member in paced(members.values()):
        for topic_id, partitions in member.target.items():
            if partitions and topic_id in member.subscribed and topic_id in parts:
                parts[topic_id].append(partitions)
            else:
                are_valid = False
    owned: dict[bytes, set[int]] = {}
    for topic_id, topic_parts in paced(parts.items()):
        owned[topic_id] = partitions_of_topic = set(chain.from_iterable(topic_parts))
        are_valid = are_valid and len(partitions_of_topic) == sum(map(len, topic_parts))
        are_valid = are_valid and max(partitions_of_topic, default=-1) < partition_counts[topic_id]
    if are_valid:
        return {member_id: member.target for member_id, member in members.items()}, owned
    return _repair(members, partition_counts)


def _repair(
    members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> tuple[Assignments, dict[bytes, set[int]]]:
    free = {topic_id: set(range(count)) for topic_id, count in paced(partition_counts.items())}
    kept: dict[str, dict[bytes, tuple[int, ...]]] = {}
    for member_id, member in paced(members.items()):
        kept[member_id] = target = {}
        for topic_id, partitions in member.target.items():
            if topic_id in member.subscribed and topic_id in free:
                valid = tuple(partition for partition in partitions if partition in free[topic_id])
                if valid:
                    free[topic_id].difference_update(valid)
                    target[topic_id] = valid
    return kept, {topic_id: set(range(count)) - free[topic_id] for topic_id, count in partition_counts.items()}


def free_partitions(owned: set[int], partition_count: int) -> Sequence[int]:
    """Return the partitions of a topic that nobody owns, in ascending order."""
    if not owned:
        return range(partition_count)
    return [] if len(owned) == partition_count else sorted(set(range(partition_count)) - owned)
