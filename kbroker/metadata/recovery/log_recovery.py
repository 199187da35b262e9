"""Decisions if a broker has seen newer metadata than the coordination service has: its data is an older copy then.

*Whether it is one* (`diverges`). The number of the last change does not suffice: after the restore, new changes get the
numbers of those that are lost. So a broker compares also who wrote the change: each elected controller has a name that
is never used again, and the change log lists the last controllers with the numbers of their first changes, as a log
lists leader epochs.

*The recovery of a partition* by the logs of its replicas (KIP-966: unclean recovery). The metadata are older than the
logs, so the ISR that they have may lack committed records, and records may have been appended in later leader epochs
than they know. Nobody is elected until the logs have been compared: the log with the highest last leader epoch, and of
these the longest one, has all records that the others have acknowledged together.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kbroker.common import NO_LEADER
from kbroker.metadata.image import (
    UNKNOWN_REPLICA,
    BrokerRegistration,
    MetadataDelta,
    PartitionRegistration,
    SeenMetadata,
)
from kbroker.metadata.store.change_log import ChangeLog

# How far numbers are advanced beyond what brokers report: others, which are down, may have seen more.
MAX_UNSEEN_CHANGES = 100_000_000
MAX_UNSEEN_EPOCHS = 10_000
MAX_UNSEEN_PRODUCER_IDS = MAX_UNSEEN_CHANGES


def diverges(seen: SeenMetadata, log: ChangeLog) -> bool:
    """Return whether a broker has seen a change that is not among those of the change log.

    Of changes before the oldest writer that the log has, only the number counts.
    """
    if seen.number > log.number:
        return True
    writers = log.writers
    if not writers or seen.number <= writers[0].after:
        return False
    for index, writer in enumerate(writers):
        if (writer.epoch, writer.name) == (seen.writer_epoch, seen.writer):
            return index + 1 < len(writers) and seen.number > writers[index + 1].after
    return True


def needs_recovery(seen: SeenMetadata, log: ChangeLog) -> bool:
    """Return whether the metadata lack changes that a broker has seen, and no recovery has begun because of them."""
    return diverges(seen, log) and not any(
        writer.first > writer.after + 1 and seen.number < writer.first for writer in log.writers
    )


def unseen_producer_id(seen: Iterable[SeenMetadata], next_id: int = 0) -> int:
    """Return a producer id that was not given away, though the counter was restored. `next_id`: what it has now.

    A broker knows only the ids that it has reserved itself. It also knows the number of the last change, which each
    recovery advances by as much: so it is above all ids that were given away since the last but one.
    """
    return max([next_id, *(max(each.producer_ids_end, each.number) for each in seen)]) + MAX_UNSEEN_PRODUCER_IDS


def advanced(seen: SeenMetadata, log: ChangeLog, delta: MetadataDelta, producer_ids_end: int) -> SeenMetadata:
    """Return what a broker has seen after a change of its image."""
    brokers: Iterable[Mapping[int, BrokerRegistration | None]] = (delta.brokers, delta.fenced_brokers)
    broker_epochs = [broker.epoch for changes in brokers for broker in changes.values() if broker is not None]
    leader_epochs = [change.new.leader_epoch for change in delta.partitions if change.new is not None]
    writer = log.writers[-1] if log.writers else None
    return SeenMetadata(
        log.number,
        0 if writer is None else writer.epoch,
        "" if writer is None else writer.name,
        max(seen.broker_epoch, *broker_epochs, 0),
        max(seen.leader_epoch, *leader_epochs, -1),
        max(seen.producer_ids_end, producer_ids_end),
    )


class ReplicaLog(NamedTuple):
    """The log of a replica. The fields are compared in this order; the last leader epoch is -1 if there is none."""

    leader_epoch: int
    end_offset: int
    start_offset: int


class ReadLogs(NamedTuple):
    """What brokers have reported of a partition. `logs`: by broker, None if it has no log. `registered`: all brokers.

    `is_complete`: no further broker is waited for, if those that have responded suffice. `is_forced`: they suffice.
    """

    logs: Mapping[int, ReplicaLog | None]
    registered: Collection[int]
    is_complete: bool = False
    is_forced: bool = False


def begin_recovery(partition: PartitionRegistration, seen: Iterable[SeenMetadata]) -> PartitionRegistration:
    """Return the partition without leader and ISR, in epochs that no broker has seen.

    `seen`: what the brokers have seen that have reported. Others may have seen later epochs, hence the margin.
    """
    leader_epoch = max([partition.leader_epoch, *(each.leader_epoch for each in seen)])
    return replace(
        partition,
        leader=NO_LEADER,
        leader_epoch=leader_epoch + MAX_UNSEEN_EPOCHS,
        partition_epoch=partition.partition_epoch + MAX_UNSEEN_EPOCHS,
        isr=[],
        elr=[],
        last_known_elr=list(UNKNOWN_REPLICA),
    )


def recover(
    partition: PartitionRegistration, read: ReadLogs, acceptable: Collection[int], min_isr: int
) -> PartitionRegistration | None:
    """Return the partition with the broker as its leader that has the best log; None if others are waited for.

    `acceptable`: the brokers that may lead. A broker that is no replica becomes one: the partition was moved to it.
    """
    if not _suffices(partition.replicas, read, min_isr):
        return None
    leader = _best(partition, read.logs, acceptable)
    if leader is None:
        return None
    replicas = partition.replicas if leader in partition.replicas else [*partition.replicas, leader]
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
        replicas=replicas,
        isr=[leader],
        last_known_elr=[],
    )


def _suffices(replicas: Sequence[int], read: ReadLogs, min_isr: int) -> bool:
    """Return whether one of the logs must have each committed record.

    A committed record is on as many replicas as min.insync.replicas says. A replica without a log shows that the
    partition was moved, so its replicas are unknown.
    """
    if set(read.registered) <= read.logs.keys() or read.is_forced:
        return True
    if not read.is_complete:
        return False
    count = sum(read.logs.get(replica) is not None for replica in replicas)
    return count > len(replicas) - min(min_isr, len(replicas))


def _best(
    partition: PartitionRegistration, logs: Mapping[int, ReplicaLog | None], acceptable: Collection[int]
) -> int | None:
    """Return the broker with the best log, the first replica of equal ones; None if no broker can lead."""
    candidates = [broker for broker in (*partition.replicas, *sorted(logs)) if broker in acceptable]
    best = None
    for broker in candidates:
        log = logs.get(broker)
        if log is not None and (best is None or log > best[0]):
            best = log, broker
    if best is not None:
        return best[1]
    # There is no log at all: the partition has no records.
    return next((broker for broker in candidates if broker in partition.replicas and broker in logs), None)
