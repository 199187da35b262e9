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
from kbroker.api.context import PENDING, Body, Pending, RequestContext, Services
from kbroker.api.response_errors import partition_named
from kbroker.api.transactional_produce import Refusal, TransactionAppends, has_transactional
from kbroker.common import KafkaError
from kbroker.replica.produce.batch_validation import NotOneBatchError
from kbroker.replica.produce.record_validation import Unfinished
from kbroker.replica.purgatory import DelayedOperation
from kbroker.replica.replica_manager import AppendResult, ReplicaManager
from protocol.errors import ErrorCode
from protocol.fast.produce import (
    PartitionRecords,
    PartitionResult,
    TopicRecords,
    TopicResult,
    decode_produce_request,
    encode_produce_response,
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
Served = Body | Pending | None


def serve(services: Services, context: RequestContext, frame: memoryview, pos: int) -> Served | Awaitable[Served]:
    transactional_id, acks, timeout_ms, topics = decode_produce_request(frame, pos, context.version)
    if acks not in (-1, 0, 1):
        return _refuse_all(context, acks, topics, ErrorCode.INVALID_REQUIRED_ACKS, {"acks": acks})
    if transactional_id is None:
        # The batch of a single partition is refused by its append.
        if (len(topics) > 1 or (topics and len(topics[0][1]) > 1)) and has_transactional(topics):
            return _refuse_all(context, acks, topics, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, {})
        return produce(services, context, acks, timeout_ms, services.replicas, topics)
    try:
        return transactional_produce.serve(
            services, context, transactional_id, topics, partial(produce, services, context, acks, timeout_ms)
        )
    except KafkaError as error:
        return _refuse_all(context, acks, topics, error.code, {"transactional_id": transactional_id}, error.message)


def _refuse_all(
    context: RequestContext,
    acks: int,
    topics: list[TopicRecords],
    code: ErrorCode,
    subject: dict[str, object],
    message: str | None = None,
) -> Body | None:
    context.refused(code, message, count=sum(len(parts) for _, parts in topics), subject=subject)
    results = [(key, [_refused(index, code, message) for index, _ in parts]) for key, parts in topics]
    return _answer(context, acks, results)


def produce(
    services: Services,
    context: RequestContext,
    acks: int,
    timeout_ms: int,
    appends: Appends,
    topics: list[TopicRecords],
) -> Served | Awaitable[Served]:
    """Append to every partition, in the order of the request, and answer."""
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
                answers.append(_failed(services, context, key, index, error))
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
    if unsettled and acks != 0:
        return _wait(services, context, results, unsettled, timeout_ms)
    return _answer(context, acks, results)


def _wait(
    services: Services, context: RequestContext, results: list[TopicResult], unsettled: Unsettled, timeout_ms: int
) -> Pending:
    wait = DelayedProduce(services, context, results, unsettled, timeout_ms)
    services.replicas.watch(wait)
    wait.start()
    return PENDING


def _answer(context: RequestContext, acks: int, results: list[TopicResult]) -> Body | None:
    if acks != 0:
        return encode_produce_response(context.version, results)
    failed = [ErrorCode(part[1]).name for _, parts in results for part in parts if part[1]]
    if failed:
        # Each has been told already.
        context.answers.close("Produce with acks=0 failed", context, error=",".join(sorted(set(failed))))
    return None


def _appended(index: int, appended: AppendResult) -> PartitionResult:
    return (index, 0, appended.base_offset, appended.append_time_ms, appended.log_start_offset, _NOTHING, None)


def _refused(index: int, code: ErrorCode, message: str | None = None) -> PartitionResult:
    return (index, int(code), -1, -1, -1, _NOTHING, message)


def _failed(
    services: Services, context: RequestContext, key: str | bytes, index: int, error: KafkaError
) -> PartitionResult:
    context.refused(error.code, error.message, subject=partition_named(key, index))
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
        self._context.answers.hold(self._held)
        return self

    async def serve(self) -> Body | Pending | None:
        while self._left:
            key, answers, index, records = self._left.popleft()
            try:
                appended = await self._append(key, index, records)
            except KafkaError as error:
                answers.append(_failed(self._services, self._context, key, index, error))
                continue
            if not appended.settled:
                self._unsettled.append((answers, len(answers), appended))
            answers.append(_appended(index, appended))
        self._context.on_abandoned = None
        self._context.answers.hold(-self._held)
        if self._unsettled and self._acks != 0:
            return _wait(self._services, self._context, self._results, self._unsettled, self._timeout_ms)
        return _answer(self._context, self._acks, self._results)

    async def _append(self, key: str | bytes, index: int, records: memoryview | None) -> AppendResult:
        appends, version = self._appends, self._context.version
        unfinished, self._unfinished = self._unfinished, None
        if unfinished is None:
            try:
                now_ms = self._services.environment.clock.now_ms()
                return appends.append(key, index, records, self._acks, version, now_ms)
            except Unfinished as found:
                unfinished = found
        return await appends.append_later(key, index, unfinished, self._acks, version, self._give_up)

    def _give_up(self, cancel: Callable[[], None]) -> None:
        """How to end the work if the client goes."""
        self._context.on_abandoned = cancel


class DelayedProduce(DelayedOperation):
    """A produce request of which some partitions wait for their high watermark or their sync."""

    __slots__ = ("_context", "_left", "_results", "_services", "_unsettled")

    def __init__(
        self,
        services: Services,
        context: RequestContext,
        results: list[TopicResult],
        unsettled: Unsettled,
        timeout_ms: int,
    ) -> None:
        super().__init__(services.environment.clock.mono_ms() + max(timeout_ms, 0))
        self._services = services
        self._context = context
        self._results = results
        self._unsettled = unsettled
        self._left = set(range(len(unsettled)))

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
        answers, place, appended = self._unsettled[number]
        answers[place] = _refused(answers[place][0], code)
        tp = appended.partition.tp
        self._context.refused(code, subject=partition_named(tp.topic, tp.partition))

    def _respond(self) -> None:
        self._context.respond(encode_produce_response(self._context.version, self._results))
