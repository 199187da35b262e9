"""CreatePartitions: the replicas of new partitions, or the reason why they cannot be added.

Error codes, messages and the order of the checks are those of Apache Kafka 4.3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kbroker.common import KafkaError
from kbroker.metadata.topics.planning_context import MAX_PARTITIONS_PER_REQUEST, PlanningContext
from kbroker.metadata.topics.replica_assignment import check_leader, invalid_assignment, validate_replicas
from kbroker.metadata.topics.replica_placement import NO_BROKER
from protocol.errors import ErrorCode


@dataclass(slots=True)
class NewPartitions:
    """A topic and its requested partition count.

    `assignments` are the replicas of each partition to add; if it is None, the controller places the replicas.
    """

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


def plan_partitions(
    new: NewPartitions, context: PlanningContext, max_new_partitions: int = MAX_PARTITIONS_PER_REQUEST
) -> list[list[int]]:
    """Return the replicas of each partition to add. Raises KafkaError.

    Retired partitions come first: they are opened again, and keep their replicas.

    `max_new_partitions` is the number of partitions that the request may still add. Beyond it the error is
    POLICY_VIOLATION, as for CreateTopics; Kafka 4.3.1 returns UNKNOWN_SERVER_ERROR.
    """
    topic = context.topics.get(new.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    current = topic.listed_partitions
    if new.count == current:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if new.count < current:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {new.name} currently has {current} partition(s); {new.count} would not be an increase.",
        )
    added = new.count - current
    if added > max_new_partitions:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    replication_factor = len(topic.partitions[0].replicas)
    if current < len(topic.partitions):
        if new.assignments is not None:
            raise invalid_assignment(
                f"Partitions {current} to {len(topic.partitions) - 1} still exist, because producers may send to them. "
                "They keep their replicas: add them without assignments."
            )
        added = max(new.count - len(topic.partitions), 0)
    if new.assignments is None:
        if not context.uncordoned_racks:
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, NO_BROKER)
        return context.place(added, replication_factor)
    if len(new.assignments) != added:
        raise invalid_assignment(
            f"Attempted to add {added} additional partition(s), "
            f"but only {len(new.assignments)} assignment(s) were specified."
        )
    for index, replicas in enumerate(new.assignments, current):
        validate_replicas(replicas, context.racks, replication_factor)
        check_leader(index, replicas, context)
    return [list(replicas) for replicas in new.assignments]
