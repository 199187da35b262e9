"""Members that join, return, leave and are removed: which requests are theirs, and the records of it (pure)."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from kbroker.coordinator.group.consumer.consumer_group import ConsumerGroup
from kbroker.coordinator.group.consumer.consumer_group_member import (
    NO_PARTITIONS,
    AssignedPartitions,
    ConsumerGroupMember,
)
from kbroker.coordinator.group.consumer.current_assignment import OwnedPartitions
from kbroker.coordinator.group.consumer.records import (
    ConsumerGroupRecord,
    RegularExpression,
    group_epoch_record,
    member_tombstones,
    target_epoch_record,
    target_record,
)
from kbroker.coordinator.group.modern.modern_member import JOIN_EPOCH, LEAVE_STATIC_EPOCH
from kbroker.runtime.turns import paced

# Returns the hash of topics by their names.
HashTopics = Callable[[Collection[str]], int]


def validate_size(group: ConsumerGroup, member_id: str, instance_id: str | None, max_size: int) -> None:
    """Raise GROUP_MAX_SIZE_REACHED if a new member would be one too many."""
    is_known = member_id in group.members or (instance_id is not None and instance_id in group.static_members)
    if not is_known:
        group.check_size(max_size)


def find_member(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    owned: OwnedPartitions,
    *,
    is_classic: bool,
) -> ConsumerGroupMember:
    """Return the member that sends a heartbeat; one that joins is new, and not in the group yet.

    Raises UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID.
    """
    if epoch == JOIN_EPOCH and instance_id is None:
        # A known member joins again after it was fenced, or if the response to its first request was lost.
        return group.members.get(member_id) or ConsumerGroupMember(member_id=member_id)
    if epoch == JOIN_EPOCH and instance_id is not None:
        return _joining_static_member(group, member_id, instance_id, is_classic=is_classic)
    member = group.named_member(member_id, instance_id)
    # The member may have lost the response with its epoch. It then has at most what it was assigned before.
    is_former = member.epoch > epoch == member.previous_epoch and _is_subset(owned, member.assigned)
    if epoch != member.epoch and not is_former:
        raise group.fenced_epoch(member, epoch)
    return member


def _joining_static_member(
    group: ConsumerGroup, member_id: str, instance_id: str, *, is_classic: bool
) -> ConsumerGroupMember:
    """Return a new static member, or the one that takes over the partitions of a member that left with epoch -2.

    With the classic protocol an instance is released by its successor; so is one of that protocol.
    """
    existing = group.static_member(instance_id)
    if existing is None:
        return group.members.get(member_id) or ConsumerGroupMember(member_id=member_id)
    if not is_classic and existing.classic is None and existing.epoch != LEAVE_STATIC_EPOCH:
        raise group.unreleased_instance(member_id, existing)
    return replace(existing, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)


def _is_subset(owned: OwnedPartitions, assigned: AssignedPartitions) -> bool:
    if owned is None:
        return False
    return all(
        topic_id in assigned and assigned[topic_id].keys() >= set(indexes) for topic_id, indexes in owned.items()
    )


def replacement_records(
    group: ConsumerGroup, existing: ConsumerGroupMember, member: ConsumerGroupMember
) -> list[ConsumerGroupRecord]:
    """Return the records of a static member that takes over the partitions of another one."""
    group_id = group.group_id
    return [
        *member_tombstones(group_id, existing.member_id),
        member.metadata_record(group_id),
        target_record(group_id, member.member_id, group.target_of(existing)),
        member.current_assignment_record(group_id),
    ]


def leave_temporarily(group: ConsumerGroup, member: ConsumerGroupMember) -> list[ConsumerGroupRecord]:
    """Return the record of a static member that leaves, and keeps its partitions until its session ends."""
    left = replace(
        member,
        epoch=LEAVE_STATIC_EPOCH,
        assigned={topic_id: dict.fromkeys(epochs, 0) for topic_id, epochs in member.assigned.items()},
        pending_revocation=NO_PARTITIONS,
    )
    return [left.current_assignment_record(group.group_id)]


def remove_members(
    group: ConsumerGroup, members: Collection[ConsumerGroupMember], hash_topics: HashTopics
) -> list[ConsumerGroupRecord]:
    """Return the records that remove members, and begin a group epoch."""
    group_id, epoch = group.group_id, group.group_epoch + 1
    records: list[ConsumerGroupRecord] = []
    for member in paced(members):
        records += member_tombstones(group_id, member.member_id)
    unused = unused_regexes(group, members)
    records += [RegularExpression(group_id, regex, None) for regex in unused]
    metadata_hash = hash_topics(group.subscribed_topics_with(members, (), unused))
    records.append(group_epoch_record(group_id, epoch, metadata_hash))
    if len(members) == len(group.members):
        # Nothing is left to assign: the target of the empty group is that of its epoch.
        records.append(target_epoch_record(group_id, epoch, 0))
    return records


def unused_regexes(group: ConsumerGroup, removed: Collection[ConsumerGroupMember]) -> list[str]:
    """Return the regular expressions that no member has after these are removed."""
    counts = Counter(member.subscribed_regex for member in removed if member.subscribed_regex)
    return [regex for regex, count in counts.items() if group.regexes.members[regex] == count]
