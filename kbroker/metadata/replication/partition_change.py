"""The next state of a partition: its leader and in-sync replicas (Kafka: PartitionChangeBuilder).

The last in-sync replica stays in the ISR when its broker is fenced: it alone has all committed records. The partition
has no leader then, until the broker returns or an unclean election is allowed.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import NamedTuple

from kbroker.common import NO_LEADER
from kbroker.metadata.image import PartitionRegistration


class Election(Enum):
    """Which replicas may be elected.

    ONLINE: in-sync ones; the current leader stays if it can. PREFERRED: the same, but the first replica comes before
    the current leader. UNCLEAN: also others if there is no leader otherwise, which loses committed records.
    """

    ONLINE = auto()
    PREFERRED = auto()
    UNCLEAN = auto()


class ElectionResult(NamedTuple):
    """`leader` is NO_LEADER if no replica can be elected. `unclean`: it was not in sync."""

    leader: int
    unclean: bool = False


def elect_leader(
    partition: PartitionRegistration, isr: Collection[int], election: Election, is_acceptable: Callable[[int], bool]
) -> ElectionResult:
    """Elect a leader. `is_acceptable` returns whether a broker may lead: unfenced, and not shutting down."""
    first = partition.replicas[0] if election is Election.PREFERRED else partition.leader
    for replica in (first, partition.leader, *partition.replicas):
        if replica in isr and is_acceptable(replica):
            return ElectionResult(replica)
    if election is Election.UNCLEAN:
        for replica in (partition.leader, *partition.replicas):
            if is_acceptable(replica):
                return ElectionResult(replica, unclean=True)
    return ElectionResult(NO_LEADER)


def change_partition(
    partition: PartitionRegistration,
    is_acceptable: Callable[[int], bool],
    *,
    isr: Sequence[int] | None = None,
    election: Election = Election.ONLINE,
    restarted: Collection[int] = (),
) -> PartitionRegistration | None:
    """Return the partition with another ISR (by default the same) and a leader for it; None if nothing changes.

    An empty `isr` leaves the ISR unchanged. The leader epoch is incremented if the leader changes, or is one of the
    `restarted` brokers: its log may have lost its end. The partition epoch is incremented by every change.
    """
    new_isr = list(isr) if isr else partition.isr
    result = elect_leader(partition, new_isr, election, is_acceptable)
    if result.unclean:
        new_isr = [result.leader]
    begins_epoch = result.leader != partition.leader or result.leader in restarted
    if not begins_epoch and new_isr == partition.isr:
        return None
    return replace(
        partition,
        leader=result.leader,
        leader_epoch=partition.leader_epoch + begins_epoch,
        isr=new_isr,
        partition_epoch=partition.partition_epoch + 1,
    )
