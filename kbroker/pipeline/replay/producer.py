"""Sends a replay's batches, each record once after any failure, and reads from the broker how far the replay is.

A record's *position* is its index among the replay's records for its target partition, from 0. A replay uses one
producer id and gives each record the sequence number of its position. So a partition accepts only the batch that
follows its last one, and its producer state shows how far the replay is. Brokers remove that state after
producer.id.expiration.ms, measured by the records' own timestamps, so a replay of old records can lose it at the next
check. In that case the progress is read from the replay's batches in the log.

After a failure the producer never retries blindly: it reads the partition's progress and continues from there. All
queries go to the partition's leader, and raise OSError and BrokerError.
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic, sleep
from typing import NamedTuple

from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import BrokerConnection
from kbroker.client.offsets import EARLIEST, LATEST, list_offsets_request
from kbroker.client.requests import BrokerError, check
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.batch_encoder import MAX_SEQUENCE, ProducerSettings, ReplayBatch, encode_batch, sequence_at
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
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


SEQUENCES = MAX_SEQUENCE + 1


class Progress(NamedTuple):
    """`position` records of the replay have offsets below `offset` in the target partition."""

    position: int
    offset: int


class TargetStart(NamedTuple):
    """The end offset of a target partition when the replay was planned, and whether the partition was empty."""

    offset: int
    was_empty: bool


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


MAX_IN_FLIGHT = 5
ACKS_ALL = -1
PRODUCE_TIMEOUT_MS = 20_000
FIRST_BACKOFF_S = 0.05
MAX_BACKOFF_S = 2.0

# With these errors the partition's state is not as expected, so its progress is read again.
_PROGRESS_UNKNOWN = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class _InFlightBatch(NamedTuple):
    connection: BrokerConnection
    batch: ReplayBatch


class ReplayProducer:
    """Sends the batches of several target partitions, those of one partition in order of their positions."""

    def __init__(
        self,
        cluster: ClusterClient,
        settings: ProducerSettings,
        starts: Mapping[TopicPartition, TargetStart],
        *,
        patience_s: float,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], None] = sleep,
    ) -> None:
        """`starts` has every target partition; `patience_s` limits how long failures without progress are retried."""
        self._cluster = cluster
        self._settings = settings
        self._starts = starts
        self._patience_s = patience_s
        self._clock = clock
        self._sleep = sleep
        self._in_flight: deque[_InFlightBatch] = deque()
        self._progress: dict[TopicPartition, Progress] = {}

    def position(self, target: TopicPartition) -> int:
        """Return how many records of the replay the target has, after all batches in flight are acknowledged."""
        self.flush()
        return self._retry(target, partial(self._read_progress, target)).position

    def send(self, batch: ReplayBatch) -> None:
        """Send a batch without waiting for its response."""
        data = encode_batch(batch, self._settings)
        earlier = list(self._in_flight)
        try:
            connection = self._cluster.leader(*batch.target)
            self._in_flight.append(_InFlightBatch(connection, batch))
            connection.send(_produce_request(batch.target, data))
        except (OSError, BrokerError) as error:
            self._recover(error, [*(sent.batch for sent in earlier), batch], earlier)
        while len(self._in_flight) >= MAX_IN_FLIGHT:
            self._complete_oldest()

    def flush(self) -> None:
        """Wait until all batches are acknowledged."""
        while self._in_flight:
            self._complete_oldest()

    def _complete_oldest(self) -> None:
        """Receive the oldest response in flight; recover if it is an error."""
        sent = self._in_flight[0]
        try:
            self._receive(sent)
        except (OSError, BrokerError) as error:
            unacknowledged = list(self._in_flight)
            self._recover(error, [sent.batch for sent in unacknowledged], unacknowledged[1:])
        else:
            self._in_flight.popleft()

    def _receive(self, sent: _InFlightBatch) -> Progress:
        response = sent.connection.receive(ProduceResponse).responses[0].partition_responses[0]
        batch = sent.batch
        if response.error_code:
            raise BrokerError(response.error_code, str(batch.target), response.error_message)
        progress = Progress(batch.end, response.base_offset + len(batch.timestamps))
        self._progress[batch.target] = progress
        return progress

    def _recover(
        self, error: OSError | BrokerError, unacknowledged: list[ReplayBatch], awaited: list[_InFlightBatch]
    ) -> None:
        """Resend the batches that the targets do not have. `awaited`: batches without a received response."""
        self._in_flight.clear()
        if isinstance(error, BrokerError):
            _require_retriable(error)
            # Once their responses have arrived, the broker is done with these requests.
            for sent in awaited:
                with suppress(OSError):
                    sent.connection.receive(ProduceResponse)
        self._cluster.reset()
        by_target: dict[TopicPartition, deque[ReplayBatch]] = {}
        for batch in unacknowledged:
            by_target.setdefault(batch.target, deque()).append(batch)
        for target, batches in by_target.items():
            self._retry(target, partial(self._resend, target, batches))

    def _resend(self, target: TopicPartition, batches: deque[ReplayBatch]) -> Progress:
        """Send the batches that a target does not have, one request at a time. Removes stored ones from `batches`."""
        progress = self._read_progress(target)
        while batches:
            batch = batches[0]
            if batch.position > progress.position:
                raise PipelineError(
                    f"{target} has {progress.position} records of the replay, but had acknowledged {batch.position}: "
                    f"the broker has lost records; resume the replay"
                )
            if batch.end > progress.position:
                progress = self._send_and_wait(batch.part(progress.position, batch.end))
            batches.popleft()
        return progress

    def _send_and_wait(self, batch: ReplayBatch) -> Progress:
        """Send a batch and wait for its response; split it if it is too large."""
        connection = self._cluster.leader(*batch.target)
        connection.send(_produce_request(batch.target, encode_batch(batch, self._settings)))
        try:
            return self._receive(_InFlightBatch(connection, batch))
        except BrokerError as error:
            if error.code not in _TOO_LARGE:
                raise
            if len(batch.timestamps) == 1:
                raise PipelineError(
                    f"record {batch.position} of the replay into {batch.target} is larger than the topic's "
                    f"max.message.bytes"
                ) from None
            middle = batch.position + len(batch.timestamps) // 2
            self._send_and_wait(batch.part(batch.position, middle))
            return self._send_and_wait(batch.part(middle, batch.end))

    def _read_progress(self, target: TopicPartition) -> Progress:
        start = self._starts[target]
        known = self._progress.get(target, Progress(0, start.offset))
        progress = read_progress(self._cluster, self._settings.producer_id, target, start, known)
        self._progress[target] = progress
        return progress

    def _retry(self, target: TopicPartition, attempt: Callable[[], Progress]) -> Progress:
        """Repeat an attempt until it succeeds. Raises PipelineError after `patience_s` without progress."""
        backoff_s, last_progress = FIRST_BACKOFF_S, self._progress.get(target)
        deadline = self._clock() + self._patience_s
        while True:
            try:
                return attempt()
            except (OSError, BrokerError) as error:
                if isinstance(error, BrokerError):
                    _require_retriable(error)
                self._cluster.reset()
                if self._progress.get(target) != last_progress:
                    last_progress, backoff_s = self._progress.get(target), FIRST_BACKOFF_S
                    deadline = self._clock() + self._patience_s
                if self._clock() >= deadline:
                    raise PipelineError(
                        f"{target}: nothing could be sent for {self._patience_s:g} s: {error}"
                    ) from None
            self._sleep(backoff_s)
            backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)


def _require_retriable(error: BrokerError) -> None:
    """Raise PipelineError for an error that retries cannot solve."""
    if not (error.code.retriable or error.code in _PROGRESS_UNKNOWN or error.code in _TOO_LARGE):
        raise PipelineError(f"the broker rejected the records: {error}") from None


def _produce_request(target: TopicPartition, data: bytearray) -> ProduceRequest:
    partition = PartitionProduceData(index=target.partition, records=data)
    topic = TopicProduceData(name=target.topic, partition_data=[partition])
    return ProduceRequest(acks=ACKS_ALL, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=[topic])
