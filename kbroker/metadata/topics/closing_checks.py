"""What closing partitions (kbroker/queues/closing/) mean to other changes of their topic."""

from collections.abc import Mapping
from dataclasses import replace

from kbroker.common import NO_LEADER, KafkaError
from kbroker.metadata.image import Forwarding, PartitionRegistration, TopicImage
from protocol.errors import ErrorCode

# Partitions close only with certain values of these configs, which then cannot be changed any more.
CONFIGS = ("cleanup.policy", "kbroker.delay.enable", "kbroker.dedup.window.ms")


def first_closing(topic: TopicImage) -> int | None:
    """Return the index of the lowest closing or retired partition; None if all are open."""
    for index, row in enumerate(topic.partitions):
        if row.forwarding is not None and row.forwarding.is_active:
            return index
    return None


def check_open(topic: TopicImage) -> None:
    """Raise KafkaError while partitions of a topic are closing. Retired ones count as removed."""
    first = first_closing(topic)
    if first is not None and first < topic.listed_partitions:
        raise is_closing_error(topic, first)


def is_closing_error(topic: TopicImage, first: int) -> KafkaError:
    count = topic.listed_partitions
    return KafkaError(
        ErrorCode.REASSIGNMENT_IN_PROGRESS,
        f"The partitions of {topic.name} from {first} on are closing. Cancel this first: set {count} partitions.",
    )


def check_not_closing(topic: TopicImage) -> None:
    """Raise KafkaError while partitions of a topic are being removed."""
    if any(partition.is_closing for partition in topic.partitions):
        raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, "Partitions of this topic are being removed.")


def check_configs(topic: TopicImage, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise KafkaError if partitions have forwarded records, and a config that forwarding depends on changes."""
    changed = [name for name in CONFIGS if before.get(name) != after.get(name)]
    if changed and any(row.forwarding is not None for row in topic.partitions):
        message = f"{changed[0]} cannot be changed: partitions of {topic.name} are closing, or were."
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)


def without_forwarding(row: PartitionRegistration) -> PartitionRegistration:
    """Return the partition with its closing cancelled, in a new leader epoch. Hidden records are still forwarded."""
    assert row.forwarding is not None
    # Also without a leader: the next one begins this epoch or a later one.
    return in_new_epoch(row, row.forwarding._replace(end_epoch=row.leader_epoch + 1, is_retired=False))


def in_new_epoch(row: PartitionRegistration, forwarding: Forwarding) -> PartitionRegistration:
    return replace(with_closing(row, False), forwarding=forwarding)


def with_closing(partition: PartitionRegistration, is_closing: bool) -> PartitionRegistration:
    """Return the partition with this `is_closing`, in a new leader epoch if it has a leader."""
    return replace(
        partition,
        leader_epoch=partition.leader_epoch + (partition.leader != NO_LEADER),
        partition_epoch=partition.partition_epoch + 1,
        is_closing=is_closing,
    )
