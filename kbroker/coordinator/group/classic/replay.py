"""The replay of a GroupRecord: the only place where the durable state of a group changes."""

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.classic_group_member import member_from_record
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.records import GroupRecord


def group_from_record(record: GroupRecord) -> ClassicGroup:
    """Return a loaded group. The sessions of its members start when the whole partition is loaded."""
    group = ClassicGroup(record.group_id)
    group.state = GroupState.STABLE if record.members else GroupState.EMPTY
    group.protocol_type = record.protocol_type or None
    group.protocol = record.protocol
    group.generation = record.generation
    group.state_timestamp_ms = record.state_timestamp_ms
    for member in record.members:
        group.add_member(member_from_record(member, record.protocol))
    group.leader_id = record.leader_id
    group.subscribed_topics = group.compute_subscribed_topics()
    return group


def replay_group_record(group: ClassicGroup, record: GroupRecord) -> None:
    """Apply a record to the group in memory that it was made from.

    The group was locked in the meantime, so it is unchanged. There is one exception: after the first, empty record of a
    new group, a rebalance has started that the record does not contain.
    """
    if record.generation != group.generation:
        return
    if group.state is GroupState.COMPLETING_REBALANCE:
        _replay_members(group, record)
        group.transition_to(GroupState.STABLE)
    elif group.state is GroupState.STABLE:
        _replay_members(group, record)
    elif group.state is not GroupState.EMPTY:
        return
    group.state_timestamp_ms = record.state_timestamp_ms


def _replay_members(group: ClassicGroup, record: GroupRecord) -> None:
    for member in record.members:
        old_member_id = group.static_members.get(member.instance_id) if member.instance_id is not None else None
        if old_member_id is not None and old_member_id != member.member_id:
            group.replace_static_member(old_member_id, member_from_record(member, record.protocol))
        else:
            group.members[member.member_id].assignment = member.assignment
