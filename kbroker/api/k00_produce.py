"""Produce (key 0), versions 3 to 13. Versions 0 to 2 are only advertised.

Records are never decoded on an ordinary topic: a slice of the received frame goes to the log.
- acks 0: no answer; what goes wrong closes the connection, which is how the client learns of it.
- acks 1: answered after the append (after its sync, under flush.before.ack).
- acks all (-1): answered when the high watermark has passed the batch.
- A batch whose records have to be looked into and that takes long is worked off beside other requests; the rest of its
  request, and of its connection, waits.
- From version 13 on topics are named by id (KIP-516).
- With a transactional id, see transactional_produce.py. A request without one that has a transactional batch is refused
  whole, as Kafka does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Self

from kbroker.api import transactional_produce
from kbroker.api.context import RequestContext, Services
from kbroker.api.transactional_produce import Refusal, TransactionAppends, has_transactional
from kbroker.common import KafkaError
from kbroker.replica.produce.batch_validation import NotOneBatchError
from kbroker.replica.produce.record_validation import Unfinished
from kbroker.replica.purgatory import DelayedOperation
from kbroker.replica.replica_manager import AppendResult, ReplicaManager
from kbroker.runtime.delayed_response import DelayedResponse
from protocol.errors import ErrorCode
from protocol.fast.produce import (
    PartitionRecords,
    PartitionResult,
    ProduceRequest,
    TopicRecords,
    TopicResult,
)

REFUSED_BY_LOG = {
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
    ErrorCode.INVALID_TXN_STATE,
}

_NOTHING: tuple[tuple[int, str | None], ...] = ()


Unsettled = list[tuple[list[PartitionResult], int, AppendResult]]
Appends = ReplicaManager | TransactionAppends
Response = list[TopicResult]


def handle(
    services: Services, context: RequestContext, request: ProduceRequest
) -> Response | Awaitable[Response | None] | None:
    transactional_id, acks, timeout_ms, topics = request
    if acks not in (-1, 0, 1):
        return _respond(context, acks, _refuse_all(request, ErrorCode.INVALID_REQUIRED_ACKS))
    if transactional_id is None:
        # The batch of a single partition is refused by its append.
        if (len(topics) > 1 or (topics and len(topics[0][1]) > 1)) and has_transactional(topics):
            refused = _refuse_all(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            return _respond(context, acks, refused)
        return produce(services, context, acks, timeout_ms, services.replicas, topics)
    try:
        return transactional_produce.handle(
            services, context, transactional_id, topics, partial(produce, services, context, acks, timeout_ms)
        )
    except KafkaError as error:
        return _respond(context, acks, _refuse_all(request, error.code, error.message))


def _refuse_all(request: ProduceRequest, code: ErrorCode, message: str | None = None) -> Response:
    return [(key, [_refused(index, code, message) for index, _ in parts]) for key, parts in request.topics]


def produce(
    services: Services,
    context: RequestContext,
    acks: int,
    timeout_ms: int,
    appends: Appends,
    topics: list[TopicRecords],
) -> Response | Awaitable[Response | None] | None:
    """Append to every partition, in the order of the request."""
    version = context.version
    append = appends.append
    now_ms = services.environment.clock.now_ms()
    results: list[TopicResult] = []
    unsettled: Unsettled = []
    for key, partitions in topics:
        answers: list[PartitionResult] = []
        for index, records in partitions:
            try:
                appended = append(key, index, records, acks, version, now_ms)
            except KafkaError as error:
                answers.append(_failed(services, key, index, error))
                continue
            except Unfinished as unfinished:
                rest = Rest(services, context, acks, timeout_ms, appends, results, unsettled, unfinished)
                return rest.take(topics, partitions, answers).serve()
            if not appended.settled:
                unsettled.append((answers, len(answers), appended))
            answers.append(
                (index, 0, appended.base_offset, appended.append_time_ms, appended.log_start_offset, _NOTHING, None)
            )
        if answers:
            results.append((key, answers))
    if acks == 0:
        return _respond(context, acks, results)
    return _wait(services, results, unsettled, timeout_ms) if unsettled else results


def _wait(services: Services, results: list[TopicResult], unsettled: Unsettled, timeout_ms: int) -> Awaitable[Response]:
    wait = DelayedProduce(services, results, unsettled, timeout_ms)
    services.replicas.watch(wait)
    wait.start()
    return wait.response


def _respond(context: RequestContext, acks: int, results: Response) -> Response | None:
    """With acks=0 there is no response: a client learns of errors by its connection being closed."""
    if acks != 0:
        return results
    context.handler.report_errors(context, None, results)
    errors = {ErrorCode(row[1]).name for _, rows in results for row in rows if row[1]}
    if errors:
        context.connection.close("Produce with acks=0 failed", context, error=",".join(sorted(errors)))
    return None


def _appended(index: int, appended: AppendResult) -> PartitionResult:
    return (index, 0, appended.base_offset, appended.append_time_ms, appended.log_start_offset, _NOTHING, None)


def _refused(index: int, code: ErrorCode, message: str | None = None) -> PartitionResult:
    return (index, int(code), -1, -1, -1, _NOTHING, message)


def _failed(services: Services, key: str | bytes, index: int, error: KafkaError) -> PartitionResult:
    log_start = _log_start(services, key, index, error)
    record_errors = tuple(getattr(error, "record_errors", _NOTHING))
    return (index, int(error.code), -1, -1, log_start, record_errors, error.message)


def _log_start(services: Services, key: str | bytes, index: int, error: KafkaError) -> int:
    """Where the log begins, told beside a refusal for what the log or the records hold, as Kafka does."""
    if error.code not in REFUSED_BY_LOG or isinstance(error, NotOneBatchError | Refusal):
        return -1
    partition = services.replicas.find(key, index)
    return -1 if partition is None else partition.log.log_start_offset


class Rest:
    """What is left of a request from the first batch on whose records take long to look into. The connection serves
    nothing more until it is through, so its batches keep their order; those of other connections go before."""

    __slots__ = (
        "_acks",
        "_appends",
        "_context",
        "_held",
        "_left",
        "_results",
        "_services",
        "_timeout_ms",
        "_unfinished",
        "_unsettled",
    )

    def __init__(
        self,
        services: Services,
        context: RequestContext,
        acks: int,
        timeout_ms: int,
        appends: Appends,
        results: list[TopicResult],
        unsettled: Unsettled,
        unfinished: Unfinished,
    ) -> None:
        self._services = services
        self._context = context
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._appends = appends
        self._results = results
        self._unsettled = unsettled
        # Why the first of them is not appended yet.
        # Without its frames, which would keep the request's buffer.
        self._unfinished: Unfinished | None = unfinished.with_traceback(None)
        self._held = 0
        # (topic, its answers, partition, records)
        self._left: deque[tuple[str | bytes, list[PartitionResult], int, memoryview | None]] = deque()

    def take(self, topics: list[TopicRecords], current: list[PartitionRecords], answers: list[PartitionResult]) -> Self:
        """`answers`: of those of the `current` topic's partitions that have theirs already."""
        unfinished_size = len(current[len(answers)][1] or b"")
        place = next(place for place, (_, partitions) in enumerate(topics) if partitions is current)
        for key, partitions in topics[place:]:
            if partitions:
                self._results.append((key, answers))
            for index, records in partitions[len(answers) :]:
                # The frame's buffer is somebody else's when the handler returns. The first has been copied.
                kept = memoryview(bytearray(records)) if self._left and records is not None else None
                self._left.append((key, answers, index, kept))
            answers = []
        self._held = unfinished_size + sum(len(records) for _, _, _, records in self._left if records is not None)
        self._context.connection.hold(self._held)
        return self

    async def serve(self) -> Response | None:
        while self._left:
            key, answers, index, records = self._left.popleft()
            try:
                appended = await self._append(key, index, records)
            except KafkaError as error:
                answers.append(_failed(self._services, key, index, error))
                continue
            if not appended.settled:
                self._unsettled.append((answers, len(answers), appended))
            answers.append(_appended(index, appended))
        self._context.connection.hold(-self._held)
        if self._unsettled and self._acks != 0:
            return await _wait(self._services, self._results, self._unsettled, self._timeout_ms)
        return _respond(self._context, self._acks, self._results)

    async def _append(self, key: str | bytes, index: int, records: memoryview | None) -> AppendResult:
        appends, version = self._appends, self._context.version
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is None:
            try:
                now_ms = self._services.environment.clock.now_ms()
                return appends.append(key, index, records, self._acks, version, now_ms)
            except Unfinished as found:
                unfinished = found
        return await appends.append_later(key, index, unfinished, self._acks, version)


class DelayedProduce(DelayedOperation):
    """A produce request of which some partitions wait for their high watermark or their sync."""

    __slots__ = ("_left", "_results", "_services", "_unsettled", "response")

    def __init__(
        self,
        services: Services,
        results: list[TopicResult],
        unsettled: Unsettled,
        timeout_ms: int,
    ) -> None:
        super().__init__(services.environment.clock.mono_ms() + max(timeout_ms, 0))
        self._services = services
        self._results = results
        self._unsettled = unsettled
        self._left = set(range(len(unsettled)))
        self.response: DelayedResponse[Response] = DelayedResponse()

    def start(self) -> None:
        for number, (_, _, appended) in enumerate(self._unsettled):
            appended.partition.on_committed(appended.end_offset, self._settle(number))

    def _settle(self, number: int) -> Callable[[ErrorCode], None]:
        def settled(code: ErrorCode) -> None:
            if self.done or number not in self._left:
                return
            self._left.discard(number)
            if code:
                self._fail(number, code)
            if not self._left and self.finish():
                self._services.replicas.purgatory.completed()
                self._respond()

        return settled

    def expire(self) -> None:
        if self.finish():
            for number in self._left:
                self._fail(number, ErrorCode.REQUEST_TIMED_OUT)
            self._respond()

    def _fail(self, number: int, code: ErrorCode) -> None:
        answers, place, _ = self._unsettled[number]
        answers[place] = _refused(answers[place][0], code)

    def _respond(self) -> None:
        self.response.complete(self._results)
