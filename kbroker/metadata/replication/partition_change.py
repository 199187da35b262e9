"""The next state of a partition: its leader, in-sync replicas and eligible leader replicas (KIP-966).

While fewer replicas are in sync than min.insync.replicas, the high watermark does not advance. So a replica that leaves
the ISR then still has all committed records: it is in the ELR, and can be elected, until its broker stops uncleanly.
The ISR may become empty. If the ELR becomes empty, too, the last known leader is elected when it returns: its log is
the best guess. If its disk was replaced, it is another replica that was eligible until it stopped uncleanly (Kafka only
remembers the leader, and would elect it without records). In Kafka this is the PartitionChangeBuilder.

Every change also completes a reassignment if the ISR permits it: no state is stored that another write would have to
continue. While a reassignment (KIP-455) runs, the partition has its original replicas and those of the target. It
completes when the added ones are in sync; then the others leave. If the target has fewer replicas than before, all of
them must be in sync. Otherwise an original replica in the target may be out of sync, since the reassignment does not
make the ISR smaller (KAFKA-19975).

Another reassignment may replace one that is not complete. The replicas that the first one added remain until the second
is complete, so that no in-sync replica is lost before. Unlike in Kafka 4.3.1 they still count as added: cancelling
always restores the replicas before the first reassignment, and these are a valid target.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import NamedTuple

from kbroker.common import NO_LEADER
from kbroker.metadata.image import PartitionRegistration, WriteHealth


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


class Election(Enum):
    """Which replicas may be elected.

    ONLINE: in-sync and eligible ones; the current leader stays if it can. PREFERRED: the same, but the first replica
    comes before the current leader if it is in sync. UNCLEAN: also others if there is no leader otherwise, which loses
    committed records.
    """

    ONLINE = auto()
    PREFERRED = auto()
    UNCLEAN = auto()


class TopicRules(NamedTuple):
    """What affects elections: the configs unclean.leader.election.enable and min.insync.replicas of the topic.

    `write_health`: that of the brokers for which it is not OK.
    """

    election: Election = Election.ONLINE
    min_insync_replicas: int = 1
    write_health: Mapping[int, WriteHealth] = {}

    def is_failing(self, broker_id: int) -> bool:
        return self.write_health.get(broker_id) is WriteHealth.FAILING


class ElectionResult(NamedTuple):
    """`leader` is NO_LEADER if no replica can be elected. `unclean`: it may lack committed records."""

    leader: int
    unclean: bool = False


def elect_leader(
    partition: PartitionRegistration, rules: TopicRules, is_acceptable: Callable[[int], bool]
) -> ElectionResult:
    """Elect a leader. `is_acceptable` returns whether a broker may lead: unfenced, and not shutting down.

    Of those in sync, and then of those that are eligible, one that can write comes before one that cannot.
    """
    election = rules.election
    preferred = partition.replicas[0] if election is Election.PREFERRED else partition.leader
    # A former leader may have left the replicas.
    candidates = [replica for replica in (preferred, partition.leader) if replica in partition.replicas]
    candidates += partition.replicas
    if rules.write_health:
        candidates.sort(key=lambda replica: _write_rank(replica, partition, rules))
    for eligible in (partition.isr, partition.elr):
        for replica in candidates:
            if replica in eligible and is_acceptable(replica):
                return ElectionResult(replica)
    if not partition.isr and not partition.elr:
        # Only the first: the others are the next best guess, if its disk is lost.
        for replica in partition.last_known_elr[:1]:
            if is_acceptable(replica):
                return ElectionResult(replica, unclean=True)
    if election is Election.UNCLEAN:
        for replica in candidates:
            if is_acceptable(replica):
                return ElectionResult(replica, unclean=True)
    return ElectionResult(NO_LEADER)


def _write_rank(replica: int, partition: PartitionRegistration, rules: TopicRules) -> WriteHealth:
    """Return the write health that counts in an election: on probation the current leader stays."""
    health = rules.write_health.get(replica, WriteHealth.OK)
    is_leader_on_probation = replica == partition.leader and health is WriteHealth.PROBATION
    return WriteHealth.OK if is_leader_on_probation else health


def waits_for(partition: PartitionRegistration, broker_id: int) -> bool:
    """Return whether a partition has no leader, and of its replicas only this broker's can become it.

    A partition with one replica does not count: no other broker would have its records.
    """
    candidates = partition.elr or partition.last_known_elr[:1]
    return partition.leader == NO_LEADER and candidates == [broker_id] and len(partition.replicas) > 1


def change_partition(
    partition: PartitionRegistration,
    is_acceptable: Callable[[int], bool],
    rules: TopicRules,
    *,
    isr: Sequence[int] | None = None,
    assignment: Assignment | None = None,
    restarted: Collection[int] = (),
    unclean: Collection[int] = (),
    replaced_disks: Collection[int] = (),
) -> PartitionRegistration | None:
    """Return the partition with another ISR or assignment and a leader for it; None if nothing changes.

    By default ISR and assignment stay the same, but a reassignment completes if its replicas are in sync. Brokers that
    stopped uncleanly (`unclean`) leave the ELR. The leader epoch is incremented if the leader changes, or is one of the
    `restarted` brokers, since its log may have lost its end. It is also incremented when replicas leave, so that their
    former claims do not count if they are added again. Every change increments the partition epoch.

    A partition that is being recovered gets no leader here, since its ISR is unknown (metadata/recovery).
    """
    changed = replace(partition, isr=partition.isr if isr is None or partition.is_recovering else list(isr))
    _assign(changed, assignment)
    if partition.is_recovering:
        return _next_state(partition, changed, restarted)
    if _has_min_isr(changed, rules):
        changed.elr, changed.last_known_elr = [], []
    else:
        left = [replica for replica in dict.fromkeys((*partition.elr, *partition.isr)) if replica in changed.replicas]
        changed.elr = [replica for replica in left if replica not in changed.isr and replica not in unclean]
        changed.last_known_elr = _last_known(partition, changed, replaced_disks)
    _elect(changed, rules, is_acceptable)
    return _next_state(partition, changed, restarted)


def _next_state(
    partition: PartitionRegistration, changed: PartitionRegistration, restarted: Collection[int]
) -> PartitionRegistration | None:
    """Return the changed partition in its next epochs; None if nothing changes."""
    begins_epoch = changed.leader != partition.leader or changed.leader in restarted
    begins_epoch |= not set(partition.replicas) <= set(changed.replicas)
    if not begins_epoch and changed == partition:
        return None
    changed.leader_epoch += begins_epoch
    changed.partition_epoch += 1
    return changed


def _assign(changed: PartitionRegistration, assignment: Assignment | None) -> None:
    """Set the replicas: those of an assignment, or of the target if a reassignment is complete."""
    if assignment is None:
        if not changed.is_reassigning:
            return
        assignment = Assignment(changed.replicas, changed.adding_replicas, changed.removing_replicas)
    changed.replicas, changed.adding_replicas, changed.removing_replicas = assignment
    completion = complete_reassignment(assignment, changed.isr)
    if completion is not None:
        changed.replicas, changed.isr = completion
        changed.adding_replicas, changed.removing_replicas = [], []


def _last_known(
    partition: PartitionRegistration, changed: PartitionRegistration, replaced_disks: Collection[int]
) -> list[int]:
    """Return the replicas that had all committed records before they stopped uncleanly, the best guess first.

    That is the leader, if the ISR has become empty.
    """
    known: list[int] = []
    if not changed.isr and partition.isr:
        known = [partition.isr[0] if partition.leader == NO_LEADER else partition.leader]
    eligible = (*changed.isr, *changed.elr)
    dropped = (replica for replica in (*partition.isr, *partition.elr) if replica not in eligible)
    known = list(dict.fromkeys((*known, *partition.last_known_elr, *dropped)))
    # No other replica can have the records of an only replica whose disk was replaced: it leads, as in Kafka.
    kept = changed.replicas if len(changed.replicas) == 1 else set(changed.replicas).difference(replaced_disks)
    return [replica for replica in known if replica in kept]


def remove_failed_replica(
    partition: PartitionRegistration, broker_id: int, is_acceptable: Callable[[int], bool], rules: TopicRules
) -> PartitionRegistration | None:
    """Return the partition without a replica whose log has failed; None if no other replica in sync could lead.

    A new leader epoch begins, so that the replica's former claims do not let it join the ISR again at once.
    """
    isr = [replica for replica in partition.isr if replica != broker_id]
    if broker_id not in partition.isr or not any(map(is_acceptable, isr)):
        return None
    return change_partition(
        partition, is_acceptable, rules, isr=isr, restarted=partition.replicas, unclean=(broker_id,)
    )


def _elect(changed: PartitionRegistration, rules: TopicRules, is_acceptable: Callable[[int], bool]) -> None:
    """Set the elected leader. It is alone in sync if it was not in sync before."""
    result = elect_leader(changed, rules, is_acceptable)
    changed.leader = result.leader
    if result.leader == NO_LEADER or result.leader in changed.isr:
        return
    changed.isr = [result.leader]
    changed.elr = [] if result.unclean else [replica for replica in changed.elr if replica != result.leader]
    if result.unclean or _has_min_isr(changed, rules):
        changed.elr, changed.last_known_elr = [], []


def _has_min_isr(partition: PartitionRegistration, rules: TopicRules) -> bool:
    return len(partition.isr) >= min(rules.min_insync_replicas, len(partition.replicas))


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
