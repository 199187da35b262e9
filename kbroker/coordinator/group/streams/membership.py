"""Members of streams groups that join, return, leave and are removed: which requests are theirs, and the records of it
(pure).
"""

from collections.abc import Collection
from dataclasses import replace

from kbroker.common import KafkaError
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
from kbroker.coordinator.group.streams.streams_group_member import NO_ASSIGNED_TASKS, StreamsGroupMember
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode


def find_member(
    group: StreamsGroup, member_id: str, instance_id: str | None, epoch: int, owned: TaskSets | None, max_size: int
) -> StreamsGroupMember:
    """Return the member that sends a heartbeat; one that joins is new, and not in the group yet.

    Raises GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID.
    """
    if epoch == JOIN_EPOCH:
        static = None if instance_id is None else group.static_member(instance_id)
        if static is None and member_id not in group.members and len(group.members) >= max_size:
            message = f"The streams group has reached its maximum capacity of {max_size} members."
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        if static is not None:
            return _successor(static, member_id)
        return group.members.get(member_id) or StreamsGroupMember(member_id=member_id)
    if instance_id is None:
        member = group.existing_member(member_id)
    else:
        member = group.existing_static_member(member_id, instance_id)
    _validate_epoch(member, epoch, owned)
    return member


def _successor(static: StreamsGroupMember, member_id: str) -> StreamsGroupMember:
    """Return the member that takes over the tasks of a static member that left with epoch -2."""
    if static.epoch != LEAVE_STATIC_EPOCH:
        message = (
            f"Static member {member_id} with instance id {static.instance_id} cannot join the group because the "
            f"instance id is owned by {static.member_id} member."
        )
        raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, message)
    return replace(static, member_id=member_id, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)


def _validate_epoch(member: StreamsGroupMember, epoch: int, owned: TaskSets | None) -> None:
    """Raise FENCED_MEMBER_EPOCH unless the epoch is that of the member, or the one before.

    The member may have lost the response with its epoch. It then has at most what it was assigned before.
    """
    if epoch == member.epoch:
        return
    comparison = "greater" if epoch > member.epoch else "smaller"
    if epoch == member.previous_epoch and comparison == "smaller" and owned is not None:
        assigned = member.assigned
        is_active_subset = owned.active <= assigned.active.keys()
        if is_active_subset and owned.standby <= assigned.standby and owned.warmup <= assigned.warmup:
            return
    message = (
        f"The streams group member has a {comparison} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin."
    )
    raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)


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
