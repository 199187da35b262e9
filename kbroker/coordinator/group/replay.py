"""The one place where a committed record changes a group, in operation and while loading."""

from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.coordinator.group.classic.classic_group_member import loaded
from kbroker.coordinator.group.classic.group_state import GroupState
from kbroker.coordinator.group.records import GroupRecord
from kbroker.runtime.deadlines import Deadlines


def apply(group: ClassicGroup, record: GroupRecord) -> None:
    """Take a committed generation into the live group.

    While a record is on its way nothing else happens to its group, so that the group still is what the
    record was made of; or a rebalance has begun that the record knows nothing of (a new group's first
    record).
    """
    if record.generation != group.generation:
        return
    if group.state is GroupState.COMPLETING_REBALANCE:
        _take_members(group, record)
        group.enter(GroupState.STABLE)
    elif group.state is GroupState.STABLE:
        _take_members(group, record)
    elif group.state is not GroupState.EMPTY:
        return
    group.state_timestamp_ms = record.state_timestamp_ms


def _take_members(group: ClassicGroup, record: GroupRecord) -> None:
    for row in record.members:
        old_id = group.static.get(row.instance_id) if row.instance_id is not None else None
        if old_id is not None and old_id != row.member_id:
            group.replace(old_id, loaded(row, record.protocol))
        else:
            group.members[row.member_id].assignment = row.assignment


def restore(record: GroupRecord) -> ClassicGroup:
    """A group as it was written. Its members' sessions begin when loading is done (`start_sessions`)."""
    group = ClassicGroup(record.group_id)
    group.state = GroupState.STABLE if record.members else GroupState.EMPTY
    group.protocol_type = record.protocol_type or None
    group.protocol = record.protocol
    group.generation = record.generation
    group.state_timestamp_ms = record.state_timestamp_ms
    for row in record.members:
        group.add(loaded(row, record.protocol))
    group.leader = record.leader
    group.subscribed = group.find_subscription()
    return group


def start_sessions(group: ClassicGroup, now_ms: int) -> None:
    """Members of a group that was loaded have a whole session to find the new coordinator."""
    for member in group.members.values():
        group.keep_session(member, now_ms)


def bury(group: ClassicGroup) -> None:
    """The group is gone; whoever still has it in hand can see that."""
    group.enter(GroupState.DEAD)
    group.members.clear()
    group.pending_joins.clear()
    group.deadlines = Deadlines()
