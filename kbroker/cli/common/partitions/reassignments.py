"""The reassignments in progress: which replicas partitions gain and lose (KIP-455)."""

import time
from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from kbroker.cli.common.client import REQUEST_TIMEOUT_MS, error_code_text, send_request
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.output import print_note
from kbroker.cli.common.partitions.list_offsets import Partition
from protocol.errors import ErrorCode

# A controller may have to be elected, after the session of the last one has expired.
RETRY_FOR_S, RETRY_EVERY_S = 60.0, 0.2
# What can do without it does not wait for longer.
SOON_MS = 5_000
UNAVAILABLE = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT})


class ReplicaChanges(NamedTuple):
    """Broker ids."""

    adding: list[int]
    removing: list[int]


NO_REASSIGNMENT = ReplicaChanges([], [])


def reassignments(client: Any) -> Mapping[Partition, ReplicaChanges]:
    """Return the partitions of the cluster that are being reassigned. Tries again while there is no controller.

    Raises CliError, KafkaError.
    """
    from kafka.errors import KafkaError

    deadline = time.monotonic() + RETRY_FOR_S
    while True:
        try:
            response = _list_reassignments(client, None)
            if response.error_code not in UNAVAILABLE or time.monotonic() > deadline:
                return _replica_changes(response)
        except KafkaError:
            if time.monotonic() > deadline:
                raise
        time.sleep(RETRY_EVERY_S)


def reassignments_if_known(client: Any) -> Mapping[Partition, ReplicaChanges]:
    """Return the partitions that are being reassigned; none, and print a note, if no controller says so soon."""
    from kafka.errors import KafkaError

    try:
        return _replica_changes(_list_reassignments(client, SOON_MS))
    except (KafkaError, CliError):
        print_note("no controller responds: it is not known which replicas are being added or removed")
        return {}


def cancel_reassignments(client: Any, partitions: Iterable[Partition]) -> list[str]:
    """Cancel reassignments, and return the errors. It is no error if a reassignment has ended in the meantime."""
    from kafka.protocol.admin import AlterPartitionReassignmentsRequest

    topic_type = AlterPartitionReassignmentsRequest.ReassignableTopic
    topics = [
        topic_type(name=topic, partitions=[topic_type.ReassignablePartition(partition_index=row) for _, row in rows])
        for topic, rows in groupby(sorted(partitions), itemgetter(0))
    ]
    response = send_request(client, AlterPartitionReassignmentsRequest(timeout_ms=REQUEST_TIMEOUT_MS, topics=topics))
    if response.error_code:
        raise CliError(error_code_text(response.error_code, response.error_message))
    return [
        f"{topic.name}-{row.partition_index}: {error_code_text(row.error_code, row.error_message)}"
        for topic in response.responses
        for row in topic.partitions
        if row.error_code not in (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    ]


def _list_reassignments(client: Any, timeout_ms: int | None) -> Any:
    """Send the request to any broker, which forwards it: kafka-python's own method stays with a dead controller."""
    from kafka.protocol.admin import ListPartitionReassignmentsRequest

    return send_request(client, ListPartitionReassignmentsRequest(topics=None), timeout_ms=timeout_ms)


def _replica_changes(response: Any) -> dict[Partition, ReplicaChanges]:
    if response.error_code:
        raise CliError(error_code_text(response.error_code, response.error_message))
    return {
        (topic.name, row.partition_index): ReplicaChanges(list(row.adding_replicas), list(row.removing_replicas))
        for topic in response.topics
        for row in topic.partitions
    }
