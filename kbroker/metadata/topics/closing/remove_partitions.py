"""RemovePartitions: checks and state changes of a removal. Apache Kafka has no such operation.

A topic loses its highest partitions, so that their indexes remain dense. Only empty partitions are removed. Three steps
ensure that no record arrives between the check of a log and the removal of its partition:

1. The controller sets `is_closing`, in a new leader epoch: a leader of that epoch, or a later one, refuses records.
2. The leaders report, for that epoch, that their logs are empty.
3. The controller removes the partitions if they are still in that epoch. Otherwise it reopens them in another one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from kbroker.common import NO_LEADER, KafkaError
from kbroker.metadata.image import PartitionRegistration, TopicImage
from kbroker.metadata.topics.views import check_not_view
from protocol.errors import ErrorCode


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


def check_not_closing(topic: TopicImage) -> None:
    """Raise KafkaError while partitions of a topic are being removed."""
    if any(partition.is_closing for partition in topic.partitions):
        raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, "Partitions of this topic are being removed.")


def check_still_closing(closing: ClosingPartitions, topic: TopicImage | None) -> None:
    """Raise KafkaError unless the partitions are still in the leader epochs for which their leaders have reported."""
    partitions: Sequence[PartitionRegistration] = () if topic is None else topic.partitions[closing.first :]
    if len(partitions) != len(closing.leaders) or not all(
        partition.is_closing and not partition.is_reassigning and partition.leader_epoch == leader_epoch
        for partition, (_, leader_epoch) in zip(partitions, closing.leaders.values(), strict=True)
    ):
        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "A leader has changed meanwhile. Try again.")


def with_closing(partition: PartitionRegistration, is_closing: bool) -> PartitionRegistration:
    """Return the partition with this `is_closing`, in a new leader epoch if it has a leader."""
    return replace(
        partition,
        leader_epoch=partition.leader_epoch + (partition.leader != NO_LEADER),
        partition_epoch=partition.partition_epoch + 1,
        is_closing=is_closing,
    )
