"""Reassignment: the replicas of a partition while it moves to other brokers (KIP-455).

While it runs, the partition has the replicas of before and those of the target. It is complete when the added ones are
in sync; then the others leave. If the target has fewer replicas, all of them must be in sync: with fewer replicas none
may be missing. A replica that is in both sets may otherwise be out of sync, since the number of those in sync does not
decrease because of the reassignment (KAFKA-19975).

A reassignment may be replaced by another one before it is complete. Its added replicas then remain until the new one is
complete, so that none that is in sync is lost before. Unlike in Kafka 4.3.1 they still count as added: cancelling
always restores the replicas of before the first reassignment, and the former replicas are a valid target.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.metadata.image import PartitionRegistration


class Assignment(NamedTuple):
    """The replicas of a partition, those of the target first; see PartitionRegistration for the other fields."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]


class CompletedReassignment(NamedTuple):
    replicas: list[int]
    isr: list[int]


class CancelledReassignment(NamedTuple):
    """`unclean`: only added replicas are in sync, so that the first one of before would lead without their records."""

    replicas: list[int]
    isr: list[int]
    unclean: bool


def begin_reassignment(partition: PartitionRegistration, target: Sequence[int]) -> Assignment:
    """Return the replicas with which a partition moves to `target`."""
    original = original_replicas(partition)
    removing = sorted(set(partition.replicas) - set(target))
    replicas = [*target, *removing]
    return Assignment(replicas, sorted(set(replicas) - set(original)), removing)


def original_replicas(partition: PartitionRegistration) -> list[int]:
    """Return the replicas without those that a reassignment adds."""
    if not partition.adding_replicas:
        return partition.replicas
    return [replica for replica in partition.replicas if replica not in partition.adding_replicas]


def target_replicas(partition: PartitionRegistration) -> list[int]:
    """Return the replicas without those that a reassignment removes."""
    return [replica for replica in partition.replicas if replica not in partition.removing_replicas]


def cancel_reassignment(partition: PartitionRegistration) -> CancelledReassignment:
    """Return what a partition has without its reassignment.

    If nothing is in sync, an eligible replica of before is waited for (Kafka 4.3.1 takes this for unclean, too).
    """
    replicas = original_replicas(partition)
    isr = [replica for replica in partition.isr if replica in replicas]
    awaited = {*partition.elr, *partition.last_known_elr}.intersection(replicas)
    if isr or (not partition.isr and awaited):
        return CancelledReassignment(replicas, isr, False)
    return CancelledReassignment(replicas, replicas[:1], True)


def complete_reassignment(assignment: Assignment, isr: Sequence[int]) -> CompletedReassignment | None:
    """Return the replicas and the ISR at the end of a reassignment; None if it is not complete, or none is running."""
    _, adding, removing = assignment
    if not adding and not removing:
        return None
    target = [replica for replica in assignment.replicas if replica not in removing]
    remaining = [replica for replica in isr if replica in target]
    required = set(adding) - set(removing)
    if len(required) < len(set(removing) - set(adding)):
        required = set(target)
    if not remaining or not required <= set(remaining):
        return None
    return CompletedReassignment(target, remaining)
