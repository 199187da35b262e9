"""Offsets: what leaders and other brokers report for partitions, and the deletion of records below one.

Functions raise BrokerUnreachable, and BrokerError for the first error of a response.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic

from kbroker.client.admin import MAX_PARTITIONS, REQUEST_TIMEOUT_MS, RETRY_FOR_S, MetadataTopic, chunks, describe_topics
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import LEADER_ERRORS, BrokerError, Partition, PartitionKey, partition_text
from kbroker.client.retries import Retries
from kbroker.common import TopicPartition
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

CONSUMER, DEBUGGING_CONSUMER = -1, -2
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL = -1, -2, -3, -4
# The first offset that is not in the topic's archive; with kbroker the row has the record's timestamp.
NOT_ARCHIVED = -6
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
# A topic that was just created is not known to every broker at once.
NEW_TOPIC_FOR_S = 1.0
# A broker that does not respond within this time is probably down.
OFFSETS_TIMEOUT_S, OFFSETS_RETRY_FOR_S = 2.0, 1.0


def list_offsets_request(
    timestamps: Mapping[PartitionKey, int], isolation_level: int = READ_UNCOMMITTED, replica_id: int = CONSUMER
) -> ListOffsetsRequest:
    """Return the request for the offsets of timestamps, by partition."""
    rows: dict[str, list[ListOffsetsPartition]] = {}
    for (topic, index), timestamp in timestamps.items():
        rows.setdefault(topic, []).append(ListOffsetsPartition(partition_index=index, timestamp=timestamp))
    return ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=partitions) for topic, partitions in rows.items()],
        timeout_ms=REQUEST_TIMEOUT_MS,
    )


def list_offsets(
    cluster: ClusterClient, timestamps: Mapping[PartitionKey, int], isolation_level: int = READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    """Return the offset of a timestamp, LATEST or EARLIEST for each partition; -1 if no record is as new.

    Waits for leaders that are being elected.
    """
    offsets: dict[TopicPartition, int] = {}
    by_partition: dict[Partition, int] = dict(timestamps.items())

    def ask(leader: int, partitions: Sequence[Partition], errors: dict[Partition, int]) -> None:
        request = list_offsets_request({at: by_partition[at] for at in partitions}, isolation_level)
        for topic in cluster.request(request, ListOffsetsResponse, leader).topics:
            for row in topic.partitions:
                if row.error_code:
                    errors[topic.name, row.partition_index] = row.error_code
                else:
                    offsets[TopicPartition(topic.name, row.partition_index)] = row.offset

    at_leaders(cluster, timestamps, ask)
    return offsets


def log_start_offsets(cluster: ClusterClient, partitions: Iterable[PartitionKey]) -> dict[TopicPartition, int]:
    """Return where the logs begin. The earliest offset may be lower: that of history elsewhere (KIP-405)."""
    asked = list(partitions)
    try:
        found = list_offsets(cluster, dict.fromkeys(asked, EARLIEST_LOCAL))
    except BrokerError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        found = {}
    # Brokers that do not know EARLIEST_LOCAL have no such history.
    return found | list_offsets(cluster, {at: EARLIEST for at in asked if found.get(TopicPartition(*at), -1) < 0})


def at_leaders(
    cluster: ClusterClient,
    partitions: Iterable[Partition],
    send: Callable[[int, Sequence[Partition], dict[Partition, int]], None],
) -> None:
    """Call `send` with each leader and its partitions. It adds the error codes, and is called again for these.

    Waits for leaders that are being elected. Raises BrokerError for other errors.
    """
    left = list(partitions)
    retries, new_topic_deadline = Retries(cluster.on_wait, RETRY_FOR_S), monotonic() + NEW_TOPIC_FOR_S
    while left:
        errors: dict[Partition, int] = {}
        for leader, led in _by_leader(cluster, left, errors).items():
            for chunk in chunks(led, MAX_PARTITIONS):
                send(leader, chunk, errors)
        failures = [BrokerError(code, partition_text(partition)) for partition, code in errors.items()]
        for failure in failures:
            is_unknown = failure.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if failure.code not in LEADER_ERRORS or (is_unknown and monotonic() > new_topic_deadline):
                raise failure
        if failures and not retries.again(failures[0]):
            raise failures[0]
        left = list(errors)


def _by_leader(
    cluster: ClusterClient, partitions: Collection[Partition], errors: dict[Partition, int]
) -> dict[int, list[Partition]]:
    """Group partitions by leader. Adds those without a leader to `errors`."""
    leaders = {}
    for topic in describe_topics(cluster, sorted({topic for topic, _ in partitions})):
        leaders.update({(topic.name, row.partition_index): row.leader_id for row in topic.partitions})
    grouped: dict[int, list[Partition]] = {}
    for partition in partitions:
        if partition not in leaders:
            errors[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif leaders[partition] < 0:
            errors[partition] = ErrorCode.LEADER_NOT_AVAILABLE
        else:
            grouped.setdefault(leaders[partition], []).append(partition)
    return grouped


def partitions_by_leader(topics: Iterable[MetadataTopic]) -> dict[int, list[Partition]]:
    """Group the partitions that have a leader by it."""
    led: dict[int, list[Partition]] = {}
    for topic in topics:
        for row in topic.partitions:
            if row.leader_id >= 0:
                led.setdefault(row.leader_id, []).append((topic.name, row.partition_index))
    return led


def latest_offsets(cluster: ClusterClient, partitions: Collection[Partition]) -> dict[TopicPartition, int]:
    """Return the latest offsets of the partitions that exist and whose leaders respond."""
    topics = sorted({topic for topic, _ in partitions})
    led = partitions_by_leader(describe_topics(cluster, topics)) if topics else {}
    wanted = {leader: [each for each in of_leader if each in partitions] for leader, of_leader in led.items()}
    found = offsets_at_brokers(cluster, wanted, LATEST)
    return {TopicPartition(*partition): offset for (_, partition), offset in found.items()}


def offsets_at_brokers(
    cluster: ClusterClient, partitions: Mapping[int, Sequence[Partition]], timestamp: int,
    replica_id: int = CONSUMER, isolation_level: int = READ_UNCOMMITTED,
) -> dict[tuple[int, Partition], int]:  # fmt: skip
    """Return the offsets of `rows_at_brokers`."""
    rows = rows_at_brokers(cluster, partitions, timestamp, replica_id, isolation_level)
    return {key: row.offset for key, row in rows.items()}


def rows_at_brokers(
    cluster: ClusterClient, partitions: Mapping[int, Sequence[Partition]], timestamp: int,
    replica_id: int = CONSUMER, isolation_level: int = READ_UNCOMMITTED,
) -> dict[tuple[int, Partition], ListOffsetsPartitionResponse]:  # fmt: skip
    """Return offsets and timestamps that brokers report for their partitions, by broker and partition.

    For commands that look at a cluster in trouble. Partitions without an offset are missing: their broker does not
    respond, or not with an offset.
    """
    rows: dict[tuple[int, Partition], ListOffsetsPartitionResponse] = {}
    retries = Retries(cluster.on_wait, OFFSETS_RETRY_FOR_S)
    while partitions:
        requests = [
            (broker, list_offsets_request(dict.fromkeys(chunk, timestamp), isolation_level, replica_id))
            for broker, named in partitions.items()
            for chunk in chunks(named, MAX_PARTITIONS)
        ]
        again: dict[int, list[Partition]] = {}
        failure = 0
        for broker, response in cluster.request_all(requests, ListOffsetsResponse, OFFSETS_TIMEOUT_S):
            for topic in response.topics:
                for row in topic.partitions:
                    partition = topic.name, row.partition_index
                    if not row.error_code:
                        rows[broker, partition] = row
                    elif row.error_code in LEADER_ERRORS:
                        again.setdefault(broker, []).append(partition)
                        failure = row.error_code
        if again and not retries.again(BrokerError(failure, "ListOffsets")):
            break
        partitions = again
    return rows


def delete_records(cluster: ClusterClient, offsets: Mapping[PartitionKey, int]) -> None:
    """Delete the records below an offset of each partition."""
    by_partition: dict[Partition, int] = dict(offsets.items())

    def delete(leader: int, partitions: Sequence[Partition], errors: dict[Partition, int]) -> None:
        rows: dict[str, list[DeleteRecordsPartition]] = {}
        for topic, index in partitions:
            row = DeleteRecordsPartition(partition_index=index, offset=by_partition[topic, index])
            rows.setdefault(topic, []).append(row)
        topics = [DeleteRecordsTopic(name=topic, partitions=of_topic) for topic, of_topic in rows.items()]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=REQUEST_TIMEOUT_MS)
        for result in cluster.request(request, DeleteRecordsResponse, leader).topics:
            for found in result.partitions:
                if found.error_code:
                    errors[result.name, found.partition_index] = found.error_code

    at_leaders(cluster, offsets, delete)
