"""Invariants of reassignments (KIP-455), checked on each state of a partition that the controller writes.

- While one is in progress, the partition has all the replicas of before.
- One that ends leaves the replicas of before, or those of a target. Those that it has added are in sync then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.metadata.replication.partition_change import target_replicas

if TYPE_CHECKING:
    from kbroker.metadata.image import PartitionRegistration

# A partition of a topic id.
Key = tuple[bytes, int]


class Reassignments:
    """Remembers the replicas that each partition had when none was in progress, and the last target."""

    def __init__(self) -> None:
        self._before: dict[Key, set[int]] = {}
        self._targets: dict[Key, set[int]] = {}

    def forget(self, key: Key) -> None:
        """Record that a partition was removed."""
        self._before.pop(key, None)
        self._targets.pop(key, None)

    def fault(self, key: Key, new: PartitionRegistration) -> str | None:
        """Record the next state of a partition. Returns what is wrong with it."""
        replicas = set(new.replicas)
        before = self._before.setdefault(key, replicas)
        if new.is_reassigning:
            self._targets[key] = set(target_replicas(new))
            if before <= replicas:
                return None
            return f"the reassignment of {sorted(before)} has lost replicas before its end: {new}"
        self._before[key] = replicas
        target = self._targets.pop(key, replicas)
        added = replicas - before
        if added <= set(new.isr):
            return None
        moves = f"the reassignment of {sorted(before)} to {sorted(target)}"
        return f"{moves} has ended, and {sorted(added)} were added, not in sync: {new}"
