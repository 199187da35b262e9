"""What an assignor works with: the members of a group, and what they keep of their current targets (pure)."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kbroker.runtime.turns import paced

# Ascending partition numbers by topic id. Neither is changed once it is a member's target.
Assignment = Mapping[bytes, tuple[int, ...]]
Assignments = dict[str, Assignment]


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
    owned: dict[bytes, set[int]] = {topic_id: set() for topic_id in partition_counts}
    kept: Assignments = {}
    for member_id, member in paced(members.items()):
        target: dict[bytes, tuple[int, ...]] = {}
        for topic_id, partitions in member.target.items():
            owners = owned.get(topic_id)
            if not partitions or owners is None or topic_id not in member.subscribed:
                continue
            count = partition_counts[topic_id]
            if max(partitions) >= count or not owners.isdisjoint(partitions):
                partitions = tuple(p for p in partitions if p < count and p not in owners)
            if partitions:
                owners.update(partitions)
                target[topic_id] = partitions
        kept[member_id] = target
    return kept, owned


def free_partitions(owned: set[int], partition_count: int) -> Sequence[int]:
    """Return the partitions of a topic that nobody owns, in ascending order."""
    if not owned:
        return range(partition_count)
    return [] if len(owned) == partition_count else sorted(set(range(partition_count)) - owned)
