"""Other brokers take the roles of one that cannot write to its disk (full, read-only, no file descriptors).

It reports that itself (replica/logs/disk_reports.py), and the controller stores it in its registration. Then
the broker

- leads a partition only if no better replica is in sync or eligible (`elect_leader` in partition_change.py),
- leaves the in-sync replicas where a better one is in sync (`give_up_replica`), and
- does not join them (`may_join`).

So acks=all neither waits for it, nor for replica.lag.time.max.ms. Its log is intact: where fewer replicas than
min.insync.replicas remain in sync, it is an eligible leader replica (KIP-966), as it has all committed records. If all
in-sync replicas fail, nothing changes: they stay in sync, and the leader refuses appends until it can write.

A broker that can write again is on probation for some time, in which it gets roles back only where writes would stop
without it. So space that comes and goes moves no leaders to and fro.
"""

from collections.abc import Callable, Collection, Mapping

from kbroker.metadata.image import KnownBroker, PartitionRegistration, WriteHealth
from kbroker.metadata.replication.partition_change import TopicRules, change_partition


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
