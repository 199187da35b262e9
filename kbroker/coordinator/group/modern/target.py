"""When and how the target assignment of a group is computed (pure).

A target is computed in the operation that needs it, so its response has the member's new target. The operation pauses
after each turn (kbroker/runtime/turns.py): the group's other operations wait, all other requests do not. A thread would
take the GIL for 5 ms at a time, and its result could be late.
"""

from collections.abc import Mapping

from kbroker.coordinator.group.assignors.members import Assignments, Assignor, MemberSpec
from kbroker.runtime.turns import paced


def may_compute(target_epoch: int, computed_ms: int, group_epoch: int, interval_ms: int, now_ms: int) -> bool:
    """Return whether the target of an epoch is out of date, and computed at least an interval ago.

    So many joins at once need few computations. Times are wall clock; `computed_ms` is 0 for never, and later than
    `now_ms` if the clock was set back.
    """
    return target_epoch < group_epoch and not computed_ms <= now_ms < computed_ms + interval_ms


def changed_targets(
    assign: Assignor, members: Mapping[str, MemberSpec], partition_counts: Mapping[bytes, int]
) -> Assignments:
    """Return the new targets of the members whose target changes."""
    targets = assign(members, partition_counts)
    return {member_id: target for member_id, target in paced(targets.items()) if target != members[member_id].target}
