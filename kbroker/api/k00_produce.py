"""Produce (key 0), versions 3 to 13. Versions 0 to 2 are only advertised.

Records are never decoded on an ordinary topic: a slice of the received frame is written to the log.
- acks=0: no response. An error closes the connection, so that the client notices it.
- acks=1: the response is sent after the append (after the sync, with flush.before.ack).
- acks=all (-1): the response is sent once the high watermark has reached the end of the batch.
- From version 13 on topics are named by id (KIP-516).
- With a transactional id: see transactional_produce.py. Without one, a transactional batch is refused together with all
  other batches of the request, as in Kafka.
- Records that take a long time to validate are validated while other connections are served. The following batches of
  the request, and the following requests of the connection, wait.
- A request with many batches is handled in turns (runtime/turns.py).
- Batches for topics that the client may not write to are refused before anything else is done with them.
"""

from collections.abc import Awaitable, Coroutine, Iterator
from functools import partial
from typing import Any

from kbroker.api.authorization import Request, after
from kbroker.api.context import Handle, Overlap, RequestContext, Services
from kbroker.api.dispatch import Codec
from kbroker.api.response_errors import Description, partition_subject, report_errors
from kbroker.api.transactional_produce import append_transactional, has_transactional_batch
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.common import KafkaError
from kbroker.queues.closing.retired_partitions import note_producer
from kbroker.replica.produce.produce_response import DelayedProduce, error_result
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.fast.produce import (
    PartitionResult,
    ProduceDecoder,
    ProduceRequest,
    TopicRecords,
    TopicResult,
    append_produce_response,
    encode_produce_response,
)

OVERLAP = Overlap.ANY
# A request of one batch is not handled in turns.
IS_LARGE_BY_SIZE = False

Response = list[TopicResult]


def codec(version: int) -> Codec:
    return Codec(ProduceDecoder(version).decode, encode_produce_response, append_produce_response, list, report)


def handle(
    services: Services, context: RequestContext, request: ProduceRequest
) -> Response | Awaitable[Response | None] | None:
    connection = context.connection
    if connection.producer_since is None or services.metadata.retired_versions:
        uptime_ms = services.environment.clock.now_ms() - services.started_ms
        note_producer(services.metadata, connection, request.topics, uptime_ms)
    transactional_id, acks, timeout_ms, topics = request
    if acks not in (-1, 0, 1):
        return _refuse(request, ErrorCode.INVALID_REQUIRED_ACKS)
    response: Response | DelayedProduce | Coroutine[Any, Any, Response | DelayedProduce]
    if transactional_id is None:
        # For a request with only one batch, the append itself checks this.
        if (len(topics) > 1 or (topics and len(topics[0][1]) > 1)) and has_transactional_batch(topics):
            response = _refuse(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        else:
            response = services.replicas.append_records(
                topics, acks, timeout_ms, context.version, connection.identity.listener, in_turn=context.in_turns
            )
    else:
        try:
            response = append_transactional(services, context, request)
        except KafkaError as error:
            response = _refuse(request, error.code, error.message)
    if isinstance(response, list):
        return response if acks != 0 else _acknowledge(context, acks, response)
    if isinstance(response, DelayedProduce):
        return response
    return _await(context, acks, _size_of(topics), response)


def authorize(checked: Request, handle: Handle) -> Any:
    services, context, access, request = checked
    transactional_id, acks, _, topics = request
    if (
        transactional_id is not None
        and not access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        and has_transactional_batch(topics)
    ):
        return _acknowledge(context, acks, _refuse(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    writable = access.writable_topics
    allowed: list[TopicRecords] = []
    refused: list[TopicRecords] = []
    for topic in paced(topics) if context.in_turns else topics:
        name = services.metadata.topic_name(topic[0])
        may_write = name is None or name in writable or access.allows(Operation.WRITE, ResourceType.TOPIC, name)
        (allowed if may_write else refused).append(topic)
    if not refused:
        return handle(services, context, request)
    errors = _refuse(request._replace(topics=refused), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    response = handle(services, context, request._replace(topics=allowed)) if allowed else []
    return after(response, lambda results: _acknowledge(context, acks, [*(results or ()), *errors]))


async def _await(
    context: RequestContext, acks: int, size: int, response: Coroutine[Any, Any, Response | DelayedProduce]
) -> Response | None:
    """Wait for the response, and count `size` bytes of copied records as request memory until then."""
    context.connection.hold(size)
    try:
        results = await response
        if isinstance(results, DelayedProduce):
            results = await results
    finally:
        context.connection.hold(-size)
    return _acknowledge(context, acks, results)


def _size_of(topics: list[TopicRecords]) -> int:
    return sum(len(records) for _, partitions in topics for _, records in partitions if records is not None)


def _refuse(request: ProduceRequest, code: ErrorCode, message: str | None = None) -> Response:
    """Respond with an error for every partition."""
    return [
        (key, [error_result(index, code, message) for index, _ in paced(partitions)])
        for key, partitions in request.topics
    ]


def _acknowledge(context: RequestContext, acks: int, results: Response) -> Response | None:
    """Return the response; None for acks=0, for which it is not sent: an error in it closes the connection."""
    if acks != 0:
        return results
    context.handler.report_errors(context, None, results)
    codes = {row[1] for _, rows in results for row in paced(rows)} - {0}
    if codes:
        names = sorted(ErrorCode(code).name for code in codes)
        context.connection.close("Produce with acks=0 failed", context, error=",".join(names))
    return None


# The report of errors.


def report(context: RequestContext, request: ProduceRequest | None, topics: Response) -> None:
    for _, results in topics:
        for result in paced(results) if context.in_turns else results:
            if result[1]:
                report_errors(context, _errors(topics), partial(_describe, request))
                return


def _errors(topics: Response) -> Iterator[tuple[int, tuple[str | bytes, PartitionResult]]]:
    for key, rows in topics:
        for row in paced(rows):
            if row[1]:
                yield row[1], (key, row)


def _describe(request: ProduceRequest | None, error: tuple[str | bytes, PartitionResult]) -> Description:
    key, (index, code, _, _, _, _, message) = error
    subject = partition_subject(key, index)
    if request is not None:
        subject["transactional_id"] = request.transactional_id
        if code == ErrorCode.INVALID_REQUIRED_ACKS:
            subject["acks"] = request.acks
    return message if isinstance(message, str) else None, subject
