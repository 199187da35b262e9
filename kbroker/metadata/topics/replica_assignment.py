"""Validation of replica assignments in requests."""

from collections.abc import Sequence

from kbroker.common import KafkaError
from kbroker.metadata.topics.planning_context import PlanningContext
from kbroker.metadata.topics.replica_placement import Racks
from protocol.errors import ErrorCode


def validate_replicas(replicas: Sequence[int], racks: Racks, replication_factor: int | None) -> None:
    """Validate the replicas of one partition; `replication_factor` is their required number, None for any.

    Raises KafkaError (INVALID_REPLICA_ASSIGNMENT).
    """
    if not replicas:
        raise invalid_assignment("The manual partition assignment includes an empty replica list.")
    previous = None
    for broker in sorted(replicas):
        if broker not in racks:
            raise invalid_assignment(
                f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            )
        if broker == previous:
            raise invalid_assignment(f"The manual partition assignment includes the broker {broker} more than once.")
        previous = broker
    if replication_factor is not None and len(replicas) != replication_factor:
        raise invalid_assignment(
            f"The manual partition assignment includes a partition with {len(replicas)} replica(s), "
            f"but this is not consistent with previous partitions, which have {replication_factor} replica(s)."
        )


def check_leader(partition: int, replicas: Sequence[int], context: PlanningContext) -> None:
    """Raise KafkaError (INVALID_REPLICA_ASSIGNMENT) if no broker of a new partition can lead it."""
    if all(broker in context.fenced_brokers or broker in context.stopping_brokers for broker in replicas):
        raise invalid_assignment(
            f"All brokers specified in the manual partition assignment for partition {partition} are fenced or in "
            "controlled shutdown."
        )


def invalid_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
