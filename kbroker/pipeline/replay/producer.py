"""Sending a replay's batches: up to five requests in flight to each broker, each record once whatever fails.

A batch's sequence is its position, so a partition takes only what follows what it has. After a failure nothing is
sent again blindly: the partition is asked how far it is, and goes on from there. Times are in seconds.
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from time import monotonic, sleep
from typing import NamedTuple

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.connection import Brokers, Connection, RefusedError
from kbroker.pipeline.replay.encoding import Batch, Target, Writer, encoded
from kbroker.pipeline.replay.positions import Known, Start, position
from protocol.errors import ErrorCode
from protocol.messages.k00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

MAX_IN_FLIGHT = 5
ALL_REPLICAS = -1
PRODUCE_TIMEOUT_MS = 20_000
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0

# The partition has something else than was thought: it is asked.
_ASK = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class _Sent(NamedTuple):
    connection: Connection | None
    batch: Batch


class Sender:
    """Sends the batches of several targets, those of one target in order of their positions.

    `starts`: of every target, where its log ended when the replay was planned. `patience_s`: how long it is tried
    without any progress before PipelineError.
    """

    def __init__(
        self,
        brokers: Brokers,
        writer: Writer,
        starts: Mapping[Target, Start],
        *,
        patience_s: float,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._brokers = brokers
        self._writer = writer
        self._starts = starts
        self._patience_s = patience_s
        self._clock = clock
        self._pause = pause
        self._in_flight: deque[_Sent] = deque()
        self._known: dict[Target, Known] = {}

    def position(self, target: Target) -> int:
        """How many records of the replay the target has. What is in flight is settled before it is asked."""
        self.flush()
        return self._patiently(target, partial(self._ask, target)).position

    def send(self, batch: Batch) -> None:
        """Hands a batch over; returns while it is in flight."""
        data = encoded(batch, self._writer)
        unanswered = list(self._in_flight)
        try:
            connection = self._brokers.leader(*batch.target)
            self._in_flight.append(_Sent(connection, batch))
            connection.post(_request(batch.target, data))
        except (OSError, RefusedError) as error:
            left = [*unanswered, _Sent(None, batch)]
            self._recover(error, left, unanswered)
        while len(self._in_flight) >= MAX_IN_FLIGHT:
            self._settle()

    def flush(self) -> None:
        """Returns when everything handed over is acknowledged."""
        while self._in_flight:
            self._settle()

    def _settle(self) -> None:
        """Takes the oldest answer; what fails is put right before this returns."""
        sent = self._in_flight[0]
        try:
            self._take(sent)
        except (OSError, RefusedError) as error:
            left = list(self._in_flight)
            self._recover(error, left, left[1:])
        else:
            self._in_flight.popleft()

    def _take(self, sent: _Sent) -> Known:
        assert sent.connection is not None
        answer = sent.connection.take(ProduceResponse).responses[0].partition_responses[0]
        target, batch = sent.batch.target, sent.batch
        if answer.error_code:
            raise RefusedError(answer.error_code, f"{target.topic}-{target.partition}", answer.error_message)
        known = self._known[target] = Known(batch.end, answer.base_offset + len(batch.timestamps))
        return known

    def _recover(self, error: OSError | RefusedError, left: list[_Sent], unanswered: list[_Sent]) -> None:
        """Nothing is certain of what was in flight, but its order: each target goes on after what it has."""
        self._in_flight.clear()
        if isinstance(error, RefusedError):
            _check_passes(error)
            # What was sent after it is answered too, and done with once it is.
            for sent in unanswered:
                _drain(sent.connection)
        self._brokers.forget()
        batches: dict[Target, deque[Batch]] = {}
        for sent in left:
            batches.setdefault(sent.batch.target, deque()).append(sent.batch)
        for target, waiting in batches.items():
            self._patiently(target, partial(self._resend, target, waiting))

    def _resend(self, target: Target, waiting: deque[Batch]) -> Known:
        """Sends what a target has not got yet, one request at a time, and removes from `waiting` what it has."""
        known = self._ask(target)
        while waiting:
            batch = waiting[0]
            if batch.position > known.position:
                raise PipelineError(
                    f"{target.topic}-{target.partition} has {known.position} records of the replay, but had "
                    f"acknowledged {batch.position}: the broker has lost records; resume the replay"
                )
            if batch.end > known.position:
                known = self._one(batch.part(known.position, batch.end))
            waiting.popleft()
        return known

    def _one(self, batch: Batch) -> Known:
        """Sends a batch and waits; one that is too large in two halves."""
        connection = self._brokers.leader(*batch.target)
        connection.post(_request(batch.target, encoded(batch, self._writer)))
        try:
            return self._take(_Sent(connection, batch))
        except RefusedError as error:
            if error.code not in _TOO_LARGE:
                raise
            if len(batch.timestamps) == 1:
                raise PipelineError(
                    f"record {batch.position} of the replay into {batch.target.topic}-{batch.target.partition} is "
                    f"larger than the topic allows (max.message.bytes)"
                ) from None
            middle = batch.position + len(batch.timestamps) // 2
            self._one(batch.part(batch.position, middle))
            return self._one(batch.part(middle, batch.end))

    def _ask(self, target: Target) -> Known:
        start = self._starts[target]
        known = self._known.get(target, Known(0, start.offset))
        found = self._known[target] = position(self._brokers, self._writer.producer_id, target, start, known)
        return found

    def _patiently(self, target: Target, attempt: Callable[[], Known]) -> Known:
        """Until it succeeds, or nothing has moved for too long."""
        pause, moved = FIRST_PAUSE_S, self._known.get(target)
        deadline = self._clock() + self._patience_s
        while True:
            try:
                return attempt()
            except (OSError, RefusedError) as error:
                if isinstance(error, RefusedError):
                    _check_passes(error)
                self._brokers.forget()
                if self._known.get(target) != moved:
                    moved, pause = self._known.get(target), FIRST_PAUSE_S
                    deadline = self._clock() + self._patience_s
                if self._clock() >= deadline:
                    raise PipelineError(
                        f"{target.topic}-{target.partition}: nothing could be sent for {self._patience_s:g} s: {error}"
                    ) from None
            self._pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)


def _check_passes(error: RefusedError) -> None:
    """Raises PipelineError for what will not pass by itself."""
    if not (error.code.retriable or error.code in _ASK or error.code in _TOO_LARGE):
        raise PipelineError(f"the broker refuses the records: {error}") from None


def _drain(connection: Connection | None) -> None:
    if connection is not None:
        with suppress(OSError):
            connection.take(ProduceResponse)


def _request(target: Target, data: bytearray) -> ProduceRequest:
    partition = PartitionProduceData(index=target.partition, records=data)
    topic = TopicProduceData(name=target.topic, partition_data=[partition])
    return ProduceRequest(acks=ALL_REPLICAS, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=[topic])
