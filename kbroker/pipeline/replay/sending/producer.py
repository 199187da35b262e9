"""Sends a replay's batches: up to five requests in flight to each broker, each record once after any failure.

A batch's base sequence is its position, so a partition accepts only the batch that follows its last one. After a
failure the producer never retries blindly: it reads the partition's progress and continues from there.
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic, sleep
from typing import NamedTuple

from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import BrokerConnection
from kbroker.client.requests import BrokerError
from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.progress import Progress, TargetStart, read_progress
from kbroker.pipeline.replay.sending.batch_encoder import ProducerSettings, ReplayBatch, encode_batch
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

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
