"""How many of a replay's records a target partition has, after any failure of its producer or broker.

A record's *position* is its index among the replay's records for its target partition, from 0. A replay uses one
producer id and gives each record the sequence number of its position, so the partition's producer state shows how far
the replay is. Brokers remove that state after producer.id.expiration.ms, measured by the records' own timestamps, so a
replay of old records can lose it at the next check. In that case the progress is read from the replay's batches in the
log. All queries go to the partition's leader, and raise OSError and BrokerError.
"""

from typing import NamedTuple

from kbroker.client.admin import EARLIEST, LATEST, list_offsets_request
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import check
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.k02_list_offsets import ListOffsetsResponse
from protocol.messages.k61_describe_producers import DescribeProducersRequest, DescribeProducersResponse, TopicRequest
from protocol.records.batch import iter_headers

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
    request = list_offsets_request({partition: timestamp})
    response = cluster.leader(*partition).request(request, ListOffsetsResponse).topics[0].partitions[0]
    check(response.error_code, str(partition))
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
    check(described.error_code, str(partition), described.error_message)
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
    check(response.error_code, str(partition))
    fetched = response.responses[0].partitions[0]
    if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
        return b""
    check(fetched.error_code, str(partition))
    return bytes(fetched.records or b"")


MAX_SEQUENCE = 0x7FFFFFFF
SEQUENCES = MAX_SEQUENCE + 1


class Progress(NamedTuple):
    """`position` records of the replay have offsets below `offset` in the target partition."""

    position: int
    offset: int


class TargetStart(NamedTuple):
    """The end offset of a target partition when the replay was planned, and whether the partition was empty."""

    offset: int
    was_empty: bool


def sequence_at(position: int) -> int:
    """Return the sequence number of the record at a position; 0 follows the largest."""
    return position & MAX_SEQUENCE


def position_after_sequence(sequence: int, max_records: int) -> int:
    """Return the position that follows the record with this sequence number.

    Sequence numbers repeat after 2^31 records: the result is the candidate closest to `max_records`, the number of
    offsets since the replay's start.
    """
    position = sequence_at(sequence + 1) or SEQUENCES
    return position + max(0, max_records + SEQUENCES // 2 - position) // SEQUENCES * SEQUENCES


def read_progress(
    cluster: ClusterClient, producer_id: int, target: TopicPartition, start: TargetStart, known: Progress
) -> Progress:
    """Read from the broker how far the replay is in a target partition. `known`: earlier progress.

    Raises OSError and BrokerError, and PipelineError if it can no longer be determined.
    """
    # The end is read first: a batch that is appended in between is then searched the next time.
    end = list_offset(cluster, target, LATEST)
    sequence = last_sequence(cluster, producer_id, target)
    if end < known.offset:
        raise PipelineError(
            f"{target} ends at offset {end}, before it ended at {known.offset}: the broker has lost records, or the "
            f"topic was created again"
        )
    if sequence is not None:
        return Progress(position_after_sequence(sequence, end - start.offset), end)
    log_start = list_offset(cluster, target, EARLIEST)
    batch = find_last_batch(cluster, producer_id, target, max(known.offset, log_start), end)
    if batch is not None:
        last = sequence_at(batch.base_sequence + batch.record_count - 1)
        return Progress(position_after_sequence(last, end - start.offset), end)
    if log_start <= known.offset:
        return Progress(known.position, end)
    if start.was_empty:
        # Records that were deleted from this partition can only be the replay's own.
        return Progress(end - start.offset, end)
    raise PipelineError(
        f"{target}: records from offset {known.offset} on were deleted, so it is unknown how many records of the "
        f"replay were there"
    )
