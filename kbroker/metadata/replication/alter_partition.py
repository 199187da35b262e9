"""AlterPartition: a leader changes the in-sync replicas of its partition (KIP-497, KIP-841, KIP-903).

Its write health counts, too: others take the roles of a broker that cannot write to its disk (full, read-only, no file
descriptors). It reports that itself (replica/isr/write_health_reporter.py), and the controller stores it in its
registration. Then the broker

- leads a partition only if no better replica is in sync or eligible (`elect_leader` in partition_change.py),
- leaves the in-sync replicas where a better one is in sync (`give_up_replica`), and
- does not join them (`may_join`).

So acks=all neither waits for it, nor for replica.lag.time.max.ms. Its log is intact: where fewer replicas than
min.insync.replicas remain in sync, it is an eligible leader replica (KIP-966), as it has all committed records. If all
in-sync replicas fail, nothing changes: they stay in sync, and the leader refuses appends until it can write.

A broker that can write again is on probation for some time, in which it gets roles back only where writes would stop
without it. So space that comes and goes moves no leaders to and fro.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from kbroker.metadata.image import KnownBroker, PartitionRegistration, WriteHealth
from kbroker.metadata.replication.partition_change import TopicRules, change_partition
from protocol.errors import ErrorCode

ANY_EPOCH = -1


@dataclass(slots=True)
class RequestedIsr:
    """The ISR that a leader requests, as (broker id, broker epoch), and the state on which it is based."""

    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]


def alter_partition(
    partition: PartitionRegistration,
    leader: int,
    proposal: RequestedIsr,
    known: Mapping[int, KnownBroker],
    is_acceptable: Callable[[int], bool],
    rules: TopicRules,
) -> PartitionRegistration | ErrorCode:
    """Return the partition with the proposed ISR, or an error code. `leader` is the broker that sent the proposal.

    The checks are in Kafka's order, since the leader acts on the code: after NOT_CONTROLLER it retries elsewhere, after
    FENCED_LEADER_EPOCH and INVALID_UPDATE_VERSION it waits for its image, after INELIGIBLE_REPLICA it drops the
    proposal.
    """
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        # The leader has seen a later state, so this controller is no longer the active one.
        return ErrorCode.NOT_CONTROLLER
    if proposal.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if leader != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if proposal.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    isr = [broker_id for broker_id, _ in proposal.isr]
    if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas) or leader not in isr:
        return ErrorCode.INVALID_REQUEST
    if any(not _is_eligible(known.get(broker_id), epoch) for broker_id, epoch in proposal.isr):
        return ErrorCode.INELIGIBLE_REPLICA

    def write_health(broker_id: int) -> WriteHealth:
        return rules.write_health.get(broker_id, WriteHealth.OK)

    joining = [broker_id for broker_id in isr if broker_id not in partition.isr]
    min_isr = min(rules.min_insync_replicas, len(partition.replicas))
    if not all(may_join(broker_id, partition.isr, write_health, min_isr) for broker_id in joining):
        return ErrorCode.INELIGIBLE_REPLICA
    # A request with the current ISR changes nothing. The leader that repeats it gets the current state.
    return change_partition(partition, is_acceptable, rules, isr=isr) or partition


def _is_eligible(broker: KnownBroker | None, epoch: int) -> bool:
    return (
        broker is not None
        and not broker.fenced
        and not broker.registration.in_controlled_shutdown
        and epoch in (ANY_EPOCH, broker.registration.epoch)
    )


def write_health_by_broker(known: Mapping[int, KnownBroker]) -> dict[int, WriteHealth]:
    """Return the write health of the brokers for which it is not OK."""
    return {
        broker_id: broker.registration.write_health
        for broker_id, broker in known.items()
        if broker.registration.write_health
    }


def may_join(
    broker_id: int,
    isr: Collection[int],
    write_health: Callable[[int], WriteHealth],
    min_insync_replicas: int,
) -> bool:
    """Return whether its write health permits a broker to join the ISR.

    On probation only if fewer than min.insync.replicas of its members are better: then writes have stopped.
    """
    health = write_health(broker_id)
    if health is not WriteHealth.PROBATION:
        return health is WriteHealth.OK
    return sum(write_health(replica) is WriteHealth.OK for replica in isr) < min_insync_replicas


def give_up_replica(
    partition: PartitionRegistration, broker_id: int, is_acceptable: Callable[[int], bool], rules: TopicRules
) -> PartitionRegistration | None:
    """Return the partition without a failing broker in its ISR; None if it is not there, or no better one is."""
    isr = [replica for replica in partition.isr if replica != broker_id]
    if broker_id not in partition.isr:
        return None
    if not any(is_acceptable(replica) and not rules.is_failing(replica) for replica in isr):
        return None
    return change_partition(partition, is_acceptable, rules, isr=isr)
