"""Closing partitions: the highest partitions of a topic on their way to removal, while producers still send to them.

*Closing* begins in a new leader epoch. From then on the leaders hide the records that producers send, and forward them
to the partitions that remain, partition `index` to partition `index % first`. Closing can be cancelled until retention
has deleted all records that consumers see. The partitions then keep new records again, in another leader epoch, and the
hidden ones are still forwarded.

*Retired* partitions have no records that consumers see. Metadata no longer lists them, and consumers get the errors of
removed partitions. Producers that already use them are served as before, since most clients cannot lose a partition to
which they send: batches of the Java client and kafka-python would fail after delivery.timeout.ms, and librdkafka
ignores that a topic has fewer partitions. CreatePartitions reopens retired partitions.

When producers have sent nothing for kbroker.retired.partition.idle.ms, the partitions are removed in the same way as
empty ones.

*Removal* (RemovePartitions, which Apache Kafka does not have). A topic loses its highest partitions, so that their
indexes remain dense. Only empty partitions are removed. Three steps ensure that no record arrives between the check of
a log and the removal of its partition:

1. The controller sets `is_closing`, in a new leader epoch: a leader of that epoch, or a later one, refuses records.
2. The leaders report, for that epoch, that their logs are empty.
3. The controller removes the partitions if they are still in that epoch. Otherwise it reopens them in another one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kbroker.common import NO_LEADER, KafkaError
from kbroker.config.topic_config import TopicConfig
from kbroker.metadata.image import Forwarding, PartitionRegistration, TopicImage
from kbroker.metadata.topics.closing_checks import check_not_closing, in_new_epoch
from kbroker.metadata.topics.topic_requests import check_not_view
from protocol.errors import ErrorCode


def check_forwarding(topic: TopicImage, first: int, config: TopicConfig) -> None:
    """Raise KafkaError if the partitions of a topic from `first` on cannot forward records to the others."""
    if config.is_compacted:
        raise _refused(topic, "cleanup.policy=compact")
    if config.kbroker_delay_enable:
        raise _refused(topic, "kbroker.delay.enable")
    if config.kbroker_dedup_window_ms:
        raise _refused(topic, "kbroker.dedup.window.ms")
    for index, row in enumerate(topic.partitions[first:], first):
        if row.forwarding is not None and row.forwarding.target >= first:
            target = row.forwarding.target
            message = f"Partition {index} has forwarded records to {target}, so at least {target + 1} must remain."
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)


def _refused(topic: TopicImage, config: str) -> KafkaError:
    message = f"Only empty partitions of {topic.name} can be removed, because it has {config}."
    return KafkaError(ErrorCode.INVALID_CONFIG, message)


def with_forwarding(row: PartitionRegistration, index: int, first: int) -> PartitionRegistration:
    """Return the partition, which must have a leader, with forwarding of new records, in a new leader epoch.

    If it forwarded records before, it continues with the same producer id, so with the same positions.
    """
    epoch = row.leader_epoch + 1
    former = row.forwarding
    if former is None:
        forwarding = Forwarding(epoch, index % first)
    else:
        forwarding = former._replace(end_epoch=-1, again_epoch=epoch)
    return in_new_epoch(row, forwarding)


def with_retirement(row: PartitionRegistration) -> PartitionRegistration:
    """Return the partition as retired: only producers that know it still use it, and it forwards their records."""
    assert row.forwarding is not None
    return replace(row, partition_epoch=row.partition_epoch + 1, forwarding=row.forwarding._replace(is_retired=True))


class ClosingPartitions(NamedTuple):
    """Closing partitions of a topic: those from `first` on. `leaders`: leader and leader epoch by partition."""

    name: str
    topic_id: bytes
    first: int
    leaders: Mapping[int, tuple[int, int]]


def check_removal(name: str, count: int, topic: TopicImage | None, is_plan_running: bool) -> None:
    """Raise KafkaError unless all partitions of a topic from `count` on can be closed."""
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic.internal:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot remove partitions of internal topic {name}.")
    check_not_view(topic, "remove partitions of")
    current = len(topic.partitions)
    if count < 1:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "A topic keeps at least one partition.")
    if count >= current:
        raise too_many_partitions(topic)
    check_not_closing(topic)
    if is_plan_running:
        raise KafkaError(
            ErrorCode.REASSIGNMENT_IN_PROGRESS, "A plan of reassignments is running, and may move these partitions."
        )
    for index in range(count, current):
        partition = topic.partitions[index]
        if partition.is_reassigning:
            raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"Partition {index} is being reassigned.")
        if partition.leader == NO_LEADER:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"Partition {index} has no leader.")


def too_many_partitions(topic: TopicImage) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {topic.listed_partitions} partition(s).")


def check_still_closing(closing: ClosingPartitions, topic: TopicImage | None) -> None:
    """Raise KafkaError unless the partitions are still in the leader epochs for which their leaders have reported."""
    partitions: Sequence[PartitionRegistration] = () if topic is None else topic.partitions[closing.first :]
    if len(partitions) != len(closing.leaders) or not all(
        partition.is_closing and not partition.is_reassigning and partition.leader_epoch == leader_epoch
        for partition, (_, leader_epoch) in zip(partitions, closing.leaders.values(), strict=True)
    ):
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "A leader has changed meanwhile. Try again.")
