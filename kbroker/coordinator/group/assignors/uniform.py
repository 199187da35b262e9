"""The assignor `uniform`: members get equally many partitions, and keep as many as possible of those they have (pure).

As in Kafka 4.4, racks do not matter. uniform_heterogeneous.py is the case of different subscriptions.
"""

from collections.abc import Iterator, Mapping, Sequence

from kbroker.coordinator.group.assignors.members import (
    Assignment,
    Assignments,
    MemberSpec,
    free_partitions,
    is_homogeneous,
    keep_targets,
)
from kbroker.coordinator.group.assignors.uniform_heterogeneous import assign_heterogeneous
from kbroker.runtime.turns import paced

# Partitions of one topic, ascending.
Part = tuple[bytes, Sequence[int]]


def assign_uniform(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> Assignments:
    """Return the target of each member, with as many partitions as Kafka's UniformAssignor gives to it."""
    if not members:
        return {}
    assign = _assign_homogeneous if is_homogeneous(members) else assign_heterogeneous
    return assign(members, partition_counts)


def _assign_homogeneous(members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]) -> Assignments:
    """Every member gets the quota, and as many as remain get one more: those that have more already come first.

    So a partition moves only if nobody owns it, or its owner has more than its share.
    """
    subscribed = next(iter(members.values())).subscribed
    counts = {topic_id: partition_counts[topic_id] for topic_id in sorted(subscribed) if topic_id in partition_counts}
    kept, owned = keep_targets(members, counts)
    targets = dict(kept)
    quota, extras = divmod(sum(counts.values()), len(members))
    unfilled: list[tuple[str, int]] = []
    for index, (member_id, target) in enumerate(paced(kept.items())):
        size = sum(map(len, target.values()))
        has_extra = extras > 0 and (size > quota or len(members) - index <= extras)
        extras -= has_extra
        share = quota + has_extra
        if size > share:
            targets[member_id] = _trim(target, share, owned)
        elif size < share:
            unfilled.append((member_id, share - size))
    free = [(topic_id, free_partitions(owned[topic_id], count)) for topic_id, count in paced(counts.items())]
    parts = _split(free, [missing for _, missing in unfilled])
    for (member_id, _), added in zip(paced(unfilled), parts, strict=True):
        targets[member_id] = _union(targets[member_id], added)
    return targets


def _trim(target: Assignment, size: int, owned: Mapping[bytes, set[int]]) -> Assignment:
    """Return the first `size` partitions of a target. The others are not owned any more."""
    trimmed: dict[bytes, tuple[int, ...]] = {}
    for topic_id, partitions in target.items():
        if size:
            trimmed[topic_id] = partitions[:size]
        owned[topic_id].difference_update(partitions[size:])
        size -= min(size, len(partitions))
    return trimmed


def _split(free: Sequence[Part], sizes: Sequence[int]) -> Iterator[list[Part]]:
    """Divide the free partitions, in order, into parts of these sizes, whose sum is the number of free partitions."""
    topics = iter(free)
    topic_id: bytes = b""
    partitions: Sequence[int] = ()
    position = 0
    for size in sizes:
        parts: list[Part] = []
        while size:
            while position == len(partitions):
                topic_id, partitions = next(topics)
                position = 0
            part = partitions[position : position + size]
            parts.append((topic_id, part))
            position += len(part)
            size -= len(part)
        yield parts


def _union(target: Assignment, added: Sequence[Part]) -> Assignment:
    union = dict(target)
    for topic_id, partitions in added:
        former = union.get(topic_id)
        union[topic_id] = tuple(sorted((*former, *partitions)) if former else partitions)
    return union
