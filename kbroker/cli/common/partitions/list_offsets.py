"""ListOffsets to chosen brokers, also while some do not respond: for commands that look at a cluster in trouble."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.cli.common.client import chunks, send_to_brokers
from protocol.errors import ErrorCode

CONSUMER, DEBUGGING_CONSUMER = -1, -2
LATEST, EARLIEST = -1, -2
MAX_PARTITIONS = 1000  # per request
# A broker that does not respond within this time is probably down.
TIMEOUT_MS = 2_000
# A leader that was just elected, or of a new topic, is asked again for this time.
RETRY_FOR_S, RETRY_EVERY_S = 1.0, 0.1
RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)

Partition = tuple[str, int]
Offsets = dict[tuple[int, Partition], int]


def list_offsets(
    client: Any, partitions: Mapping[int, Sequence[Partition]], timestamp: int, replica_id: int = CONSUMER
) -> Offsets:
    """Return the offsets that brokers report for their partitions, by broker and partition.

    Partitions without an offset are missing: their broker does not respond, or not with an offset.
    """
    offsets: Offsets = {}
    deadline = time.monotonic() + RETRY_FOR_S
    while partitions:
        again: dict[int, list[Partition]] = {}
        for broker, response in _send(client, partitions, timestamp, replica_id):
            for topic in response.topics:
                for row in topic.partitions:
                    partition = (topic.name, row.partition_index)
                    if not row.error_code:
                        offsets[broker, partition] = row.offset
                    elif row.error_code in RETRIABLE:
                        again.setdefault(broker, []).append(partition)
        if time.monotonic() > deadline:
            break
        partitions = again
        if partitions:
            time.sleep(RETRY_EVERY_S)
    return offsets


def _send(
    client: Any, partitions: Mapping[int, Sequence[Partition]], timestamp: int, replica_id: int
) -> list[tuple[int, Any]]:
    """Send a request to each broker, all at once, and return the responses that arrive."""
    requests = [
        (broker, _request(chunk, timestamp, replica_id))
        for broker, named in partitions.items()
        for chunk in chunks(named, MAX_PARTITIONS)
    ]
    return send_to_brokers(client, requests, TIMEOUT_MS)


def _request(partitions: Sequence[Partition], timestamp: int, replica_id: int) -> Any:
    from kafka.protocol.consumer import ListOffsetsRequest

    topic_row = ListOffsetsRequest.ListOffsetsTopic
    by_topic: dict[str, list[Any]] = {}
    for topic, index in partitions:
        row = topic_row.ListOffsetsPartition(partition_index=index, current_leader_epoch=-1, timestamp=timestamp)
        by_topic.setdefault(topic, []).append(row)
    topics = [topic_row(name=name, partitions=rows) for name, rows in by_topic.items()]
    return ListOffsetsRequest(
        replica_id=replica_id, isolation_level=0, topics=topics, timeout_ms=TIMEOUT_MS, min_version=1
    )
