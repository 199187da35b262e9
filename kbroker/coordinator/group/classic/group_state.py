"""The states of a classic group."""

from enum import StrEnum


class GroupState(StrEnum):
    """Named as DescribeGroups and ListGroups spell them.

    Empty                no members; offsets may be kept, and simple consumers may commit
    PreparingRebalance   members are told to join again; ends when all have, or after the rebalance timeout
    CompletingRebalance  a new generation is out; waits for the leader's assignment (SyncGroup)
    Stable               every member can have its assignment
    Dead                 the group is gone
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# Each state, and those from which it is entered.
ENTERED_FROM: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.EMPTY, GroupState.STABLE, GroupState.COMPLETING_REBALANCE}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}
