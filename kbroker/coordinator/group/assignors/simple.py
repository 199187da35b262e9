"""The assignor of share groups: partitions are shared by members, evenly, and stay where they are (KIP-932; pure).

With more partitions than members each partition has one member, else each member has at least one partition. A
partition has the same number of members as any other one, rounded up, so that records of all are acquired as fast. If
members subscribe to different topics, each topic is shared by its subscribers in this way.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from kbroker.coordinator.group.assignors.members import Assignments, MemberSpec, is_homogeneous
from kbroker.runtime.turns import paced

TopicIdPartition = tuple[bytes, int]


def assign_simple(members: Mapping[str, MemberSpec], partitions: Mapping[bytes, Collection[int]]) -> Assignments:
    """Return the target of each member. `partitions`: those that may be assigned, by topic id."""
    targets: dict[str, dict[bytes, set[int]]] = {member_id: {} for member_id in members}
    subscribers: dict[bytes, list[str]] = {}
    for member_id in paced(sorted(members)):
        for topic_id in members[member_id].subscribed & partitions.keys():
            subscribers.setdefault(topic_id, []).append(member_id)
    if is_homogeneous(members):
        shares = [
            (sorted(members), [pair for topic_id in sorted(subscribers) for pair in _pairs(topic_id, partitions)])
        ]
    else:
        shares = [(ids, _pairs(topic_id, partitions)) for topic_id, ids in sorted(subscribers.items())]
    totals = dict.fromkeys(members, 0)
    for ids, shared in shares:
        # The members with the fewest partitions of the topics before get one more of this one.
        ids.sort(key=totals.__getitem__)
        for member_id, assigned in _share(shared, ids, members).items():
            totals[member_id] += len(assigned)
            for topic_id, index in assigned:
                targets[member_id].setdefault(topic_id, set()).add(index)
    return {
        member_id: {topic_id: tuple(sorted(indexes)) for topic_id, indexes in sorted(topics.items())}
        for member_id, topics in targets.items()
    }


def _pairs(topic_id: bytes, partitions: Mapping[bytes, Collection[int]]) -> list[TopicIdPartition]:
    return [(topic_id, index) for index in paced(sorted(partitions[topic_id]))]


def _share(
    partitions: Sequence[TopicIdPartition], member_ids: Sequence[str], members: Mapping[str, MemberSpec]
) -> dict[str, set[TopicIdPartition]]:
    """Return the partitions of each member. It keeps those that it has, as far as that leaves all with their share."""
    if not partitions or not member_ids:
        return {}
    count = len(member_ids)
    sharing = -(-count // len(partitions))
    total = sharing * len(partitions)
    # Rounded up in the same way at each member, so the quotas add up to the total.
    quotas = {id: -(-total * (i + 1) // count) + (-total * i // count) for i, id in enumerate(member_ids)}
    sharers = dict.fromkeys(partitions, 0)
    assigned: dict[str, set[TopicIdPartition]] = {}
    for member_id in paced(member_ids):
        kept = [partition for partition in _target(members[member_id]) if sharers.get(partition, sharing) < sharing]
        # Kafka keeps the last of them, too.
        del kept[: max(0, len(kept) - quotas[member_id])]
        for partition in kept:
            sharers[partition] += 1
        assigned[member_id] = set(kept)
    # Each of them is free for one member if no member shares a partition.
    free = iter([partition for partition, count in sharers.items() if not count])
    for member_id in paced(member_ids):
        missing = quotas[member_id] - len(assigned[member_id])
        if sharing > 1:
            _fill(assigned[member_id], missing, sharers, sharing)
        else:
            assigned[member_id].update(islice(free, missing))
    return assigned


def _target(member: MemberSpec) -> Iterable[TopicIdPartition]:
    return ((topic_id, index) for topic_id, indexes in member.target.items() for index in indexes)


def _fill(assigned: set[TopicIdPartition], missing: int, sharers: dict[TopicIdPartition, int], sharing: int) -> None:
    """Add the partitions with the fewest members."""
    candidates = [partition for partition, count in sharers.items() if count < sharing and partition not in assigned]
    candidates.sort(key=sharers.__getitem__)
    for partition in candidates[:missing]:
        assigned.add(partition)
        sharers[partition] += 1
