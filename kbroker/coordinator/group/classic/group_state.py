"""The states of a classic group."""

from enum import StrEnum


class GroupState(StrEnum):
    """The values are the names that DescribeGroups and ListGroups return.

    Empty: no members; the group exists for its committed offsets, or only for a moment.
        JoinGroup of new members; OffsetCommit without a member (simple consumers, tools); may be deleted.
        -> PreparingRebalance: a member joins
        -> Dead: the group is deleted, or its last offset has expired

    PreparingRebalance: members have to join again.
        JoinGroup waits for the other members; SyncGroup, Heartbeat: REBALANCE_IN_PROGRESS; OffsetCommit of the
        generation is accepted.
        -> CompletingRebalance: all members have joined, or the rebalance timeout has passed
        -> Empty: all members have left

    CompletingRebalance: a new generation waits for the assignment of its leader.
        SyncGroup of followers waits for the leader's; a changed JoinGroup starts another rebalance; Heartbeat: NONE;
        OffsetCommit: REBALANCE_IN_PROGRESS.
        -> Stable: the assignment of the leader is committed
        -> PreparingRebalance: a member joins, leaves or fails

    Stable: every member can fetch its assignment.
        SyncGroup returns the assignment; JoinGroup of an unchanged follower returns the generation; Heartbeat: NONE.
        -> PreparingRebalance: a member joins, changes, leaves or fails, or the leader joins again

    Dead: the group is deleted, or its partition has moved to another broker. There are no transitions.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


VALID_PREVIOUS_STATES: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.EMPTY, GroupState.STABLE, GroupState.COMPLETING_REBALANCE}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
