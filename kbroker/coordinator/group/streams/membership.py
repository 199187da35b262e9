"""Members of streams groups that join, return, leave and are removed: which requests are theirs, and the records of it
(pure).
"""

from collections.abc import Collection
from dataclasses import replace

from kbroker.coordinator.group.modern.modern_member import JOIN_EPOCH, LEAVE_STATIC_EPOCH
from kbroker.coordinator.group.streams.current_assignment import TaskSets
from kbroker.coordinator.group.streams.records import (
    StreamsGroupRecord,
    group_epoch_record,
    member_tombstones,
    target_epoch_record,
    target_record,
)
from kbroker.coordinator.group.streams.streams_group import StreamsGroup
from kbroker.coordinator.group.streams.streams_group_member import NO_ASSIGNED_TASKS, AssignedTasks, StreamsGroupMember
from kbroker.runtime.turns import paced


def find_member(
    group: StreamsGroup, member_id: str, instance_id: str | None, epoch: int, owned: TaskSets | None, max_size: int
) -> StreamsGroupMember:
    """Return the member that sends a heartbeat; one that joins is new, and not in the group yet.

    Raises GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID.
    """
    if epoch == JOIN_EPOCH:
        static = None if instance_id is None else group.static_member(instance_id)
        if static is None:
            if member_id not in group.members:
                group.check_size(max_size)
            return group.members.get(member_id) or StreamsGroupMember(member_id=member_id)
        if static.epoch != LEAVE_STATIC_EPOCH:
            raise group.unreleased_instance(member_id, static)
        # It takes over the tasks of the member that left with epoch -2.
        return replace(static, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
    member = group.named_member(member_id, instance_id)
    # The member may have lost the response with its epoch. It then has at most what it was assigned before.
    is_former = member.epoch > epoch == member.previous_epoch and _is_subset(owned, member.assigned)
    if epoch != member.epoch and not is_former:
        raise group.fenced_epoch(member, epoch)
    return member


def _is_subset(owned: TaskSets | None, assigned: AssignedTasks) -> bool:
    if owned is None:
        return False
    is_active_subset = owned.active <= assigned.active.keys()
    return is_active_subset and owned.standby <= assigned.standby and owned.warmup <= assigned.warmup


def replacement_records(
    group: StreamsGroup, existing: StreamsGroupMember, member: StreamsGroupMember
) -> list[StreamsGroupRecord]:
    """Return the records of a static member that takes over the tasks of another one."""
    group_id = group.group_id
    return [
        *member_tombstones(group_id, existing.member_id),
        member.metadata_record(group_id),
        target_record(group_id, member.member_id, group.target_of(existing)),
        member.current_assignment_record(group_id),
    ]


def leave_temporarily(group: StreamsGroup, member: StreamsGroupMember) -> list[StreamsGroupRecord]:
    """Return the record of a static member that leaves, and keeps its tasks until its session ends."""
    left = replace(
        member,
        epoch=LEAVE_STATIC_EPOCH,
        assigned=member.assigned._replace(active=dict.fromkeys(member.assigned.active, 0)),
        pending_revocation=NO_ASSIGNED_TASKS,
    )
    return [left.current_assignment_record(group.group_id)]


def remove_members(group: StreamsGroup, members: Collection[StreamsGroupMember]) -> list[StreamsGroupRecord]:
    """Return the records that remove members, and begin a group epoch."""
    group_id, epoch = group.group_id, group.group_epoch + 1
    records: list[StreamsGroupRecord] = []
    for member in paced(members):
        records += member_tombstones(group_id, member.member_id)
    records.append(
        group_epoch_record(group_id, epoch, group.metadata_hash, group.validated_topology_epoch, group.configs)
    )
    if len(members) == len(group.members):
        # Nothing is left to assign: the target of the empty group is that of its epoch.
        records.append(target_epoch_record(group_id, epoch, 0))
    return records
