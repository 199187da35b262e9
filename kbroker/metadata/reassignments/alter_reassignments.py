"""AlterPartitionReassignments: a partition moves to other brokers, or its reassignment is cancelled (KIP-455).

Error codes, messages and the order of the checks are those of Apache Kafka 4.3.1.
"""

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.replication.partition_change import (
    Assignment,
    Election,
    TopicRules,
    begin_reassignment,
    cancel_reassignment,
    change_partition,
    target_replicas,
)
from kbroker.metadata.topics.replica_placement import Racks, invalid_assignment, validate_replicas
from protocol.errors import ErrorCode


class RequestedReassignment(NamedTuple):
    """A partition in a request. `replicas`: the target, preferred leader first; None cancels the reassignment."""

    topic: str
    partition: int
    replicas: Sequence[int] | None


def alter_reassignment(
    name: str,
    partition: PartitionRegistration,
    target: Sequence[int] | None,
    racks: Racks,
    is_acceptable: Callable[[int], bool],
    rules: TopicRules,
    *,
    may_change_factor: bool,
) -> PartitionRegistration | None:
    """Return the partition with a new or no reassignment; None if nothing changes. Raises KafkaError.

    `name` is that of the partition in messages, topic:index. `racks` has all registered brokers. The reassignment is
    complete at once if the ISR already permits it.
    """
    if target is None:
        return _cancel(name, partition, is_acceptable, rules)
    validate_replicas(target, racks, None)
    if not may_change_factor:
        _check_factor(partition, len(target))
    assignment = begin_reassignment(partition, target)
    return change_partition(partition, is_acceptable, rules._replace(election=Election.ONLINE), assignment=assignment)


def _cancel(
    name: str, partition: PartitionRegistration, is_acceptable: Callable[[int], bool], rules: TopicRules
) -> PartitionRegistration | None:
    if not partition.is_reassigning:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    cancelled = cancel_reassignment(partition)
    if cancelled.unclean and rules.election is not Election.UNCLEAN:
        raise invalid_assignment(
            f"Unable to revert partition assignment for {name} because it would require an unclean leader election."
        )
    assignment = Assignment(cancelled.replicas, [], [])
    return change_partition(partition, is_acceptable, rules, isr=cancelled.isr, assignment=assignment)


def _check_factor(partition: PartitionRegistration, factor: int) -> None:
    """Raise KafkaError if a target changes the replication factor, which a reassignment in progress may have set."""
    current = len(target_replicas(partition))
    if factor != current:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"The replication factor is changed from {current} to {factor}"
        )


def missing_partition(topics: Container[str], topic: str, index: int) -> KafkaError:
    """Return the error for a partition that does not exist, of one of the existing `topics` or of another one."""
    missing = f"partition {topic}:{index}." if topic in topics else f"a topic named {topic}."
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find {missing}")
