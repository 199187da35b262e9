"""Reassignment: the replicas of a partition while it moves to other brokers (KIP-455).

While it runs, the partition has its original replicas and those of the target. It completes when the added ones are in
sync; then the others leave. If the target has fewer replicas than before, all of them must be in sync. Otherwise an
original replica in the target may be out of sync, since the reassignment does not make the ISR smaller (KAFKA-19975).

Another reassignment may replace one that is not complete. The replicas that the first one added remain until the second
is complete, so that no in-sync replica is lost before. Unlike in Kafka 4.3.1 they still count as added: cancelling
always restores the replicas before the first reassignment, and these are a valid target.
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
    """`unclean`: only added replicas are in sync, so an original replica would lead without their records."""

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
    """Return the replicas and ISR of a partition without its reassignment.

    If no replica is in sync, the partition waits for an eligible original one (Kafka 4.3.1 treats this as unclean).
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
