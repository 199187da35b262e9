"""Whether a broker has seen newer metadata than the coordination service has: its data is an older copy then.

The number of the last change does not suffice: after the restore, new changes get the numbers of those that are lost.
So a broker compares also who wrote the change: each elected controller has a name that is never used again, and the
change log lists the last controllers with the numbers of their first changes, as a log lists leader epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.metadata.image import SeenMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kbroker.metadata.image import BrokerRegistration, MetadataDelta
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
