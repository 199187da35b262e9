"""Queries to a partition's leader: its first and last offsets, and the batches of one producer.

All functions raise OSError and BrokerError.
"""

from typing import NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.replay.client.cluster import ClusterClient
from kbroker.pipeline.replay.client.connection import BrokerError
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k61_describe_producers import DescribeProducersRequest, DescribeProducersResponse, TopicRequest
from protocol.records.batch import iter_headers

LATEST, EARLIEST = -1, -2  # timestamps of ListOffsets
FETCH_BYTES = 4 << 20
FETCH_MAX_WAIT_MS = 500
# The search for a producer's last batch starts with this many offsets before the end.
FIRST_SEARCH_OFFSETS = 100_000


class BatchSpan(NamedTuple):
    """Offsets and sequence numbers of a batch in a log."""

    base_offset: int
    base_sequence: int
    record_count: int


def list_offset(cluster: ClusterClient, partition: TopicPartition, timestamp: int) -> int:
    """Return a partition's high watermark (LATEST) or log start offset (EARLIEST)."""
    query = ListOffsetsPartition(partition_index=partition.partition, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=partition.topic, partitions=[query])])
    response = cluster.leader(*partition).request(request, ListOffsetsResponse).topics[0].partitions[0]
    if response.error_code:
        raise BrokerError(response.error_code, str(partition))
    return response.offset


def last_sequence(cluster: ClusterClient, producer_id: int, partition: TopicPartition) -> int | None:
    """Return a producer's last sequence number in a partition.

    None if the broker has no state of this producer, or no DescribeProducers (KIP-664).
    """
    leader = cluster.leader(*partition)
    if not leader.supports(ApiKey.DESCRIBE_PRODUCERS):
        return None
    query = TopicRequest(name=partition.topic, partition_indexes=[partition.partition])
    response = leader.request(DescribeProducersRequest(topics=[query]), DescribeProducersResponse)
    described = response.topics[0].partitions[0]
    if described.error_code:
        raise BrokerError(described.error_code, str(partition), described.error_message)
    sequences = [state.last_sequence for state in described.active_producers if state.producer_id == producer_id]
    return sequences[0] if sequences and sequences[0] >= 0 else None


def find_last_batch(
    cluster: ClusterClient, producer_id: int, partition: TopicPartition, start: int, end: int
) -> BatchSpan | None:
    """Return the producer's last batch with a base offset in [start, end), searching backwards from the end."""
    search_offsets = FIRST_SEARCH_OFFSETS
    while start < end:
        low = max(start, end - search_offsets)
        batches = producer_batches(cluster, producer_id, partition, low, end)
        if batches:
            return batches[-1]
        end, search_offsets = low, search_offsets * 4
    return None


def producer_batches(
    cluster: ClusterClient, producer_id: int, partition: TopicPartition, start: int, end: int
) -> list[BatchSpan]:
    """Return the producer's batches with a base offset in [start, end), in offset order."""
    batches = []
    while start < end:
        next_offset = start
        for _, header in iter_headers(_fetch(cluster, partition, start)):
            next_offset = header.next_offset
            if header.producer_id == producer_id and header.base_sequence >= 0 and header.base_offset < end:
                batches.append(BatchSpan(header.base_offset, header.base_sequence, header.last_offset_delta + 1))
        if next_offset <= start:
            break
        start = next_offset
    return batches


def _fetch(cluster: ClusterClient, partition: TopicPartition, offset: int) -> bytes:
    query = FetchPartition(partition=partition.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    request = FetchRequest(
        max_wait_ms=FETCH_MAX_WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        topics=[FetchTopic(topic=partition.topic, partitions=[query])],
    )
    response = cluster.leader(*partition).request(request, FetchResponse)
    if response.error_code:
        raise BrokerError(response.error_code, str(partition))
    fetched = response.responses[0].partitions[0]
    if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return b""
    if fetched.error_code:
        raise BrokerError(fetched.error_code, str(partition))
    return bytes(fetched.records or b"")
