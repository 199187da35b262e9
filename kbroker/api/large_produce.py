"""Produce requests with many batches, up to 100,000: appended in slices, between which other clients are served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kbroker.api.transactional_produce import append_transactional_in_slices, has_transactional_batch
from kbroker.common import KafkaError
from kbroker.replica.produce.delayed_produce import error_result
from kbroker.runtime.slices import each
from protocol.errors import ErrorCode
from protocol.fast.produce import ProduceRequest, TopicRecords, TopicResult

if TYPE_CHECKING:
    from kbroker.api.context import RequestContext, Services
    from kbroker.runtime.slices import Slices, Steps

# The most batches that one step checks.
_AT_ONCE = 64


async def produce_in_slices(
    services: Services, context: RequestContext, request: ProduceRequest, slices: Slices
) -> list[TopicResult] | None:
    """Handle a Produce request as k00_produce.py does. The buffers of its records do not change meanwhile."""
    transactional_id, acks, timeout_ms, topics = request
    if acks not in (-1, 0, 1):
        return await slices.run(refuse(request, ErrorCode.INVALID_REQUIRED_ACKS))
    try:
        if transactional_id is not None:
            response = await append_transactional_in_slices(services, context, request, slices)
        elif await slices.run(_has_transactional_batch(topics)):
            response = await slices.run(refuse(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
        else:
            response = await services.replicas.append_in_slices(topics, acks, timeout_ms, context.version, slices)
    except KafkaError as error:
        response = await slices.run(refuse(request, error.code, error.message))
    if acks != 0:
        return response
    assert context.handler.in_steps is not None
    assert context.handler.in_steps.report_errors is not None
    await slices.run(context.handler.in_steps.report_errors(context, None, response))
    close_if_failed(context, await slices.run(_errors(response)))
    return None


def in_parts(topics: list[TopicRecords]) -> Iterator[list[TopicRecords]]:
    """Divide the batches of a request into lists of at most _AT_ONCE batches of one topic."""
    for key, partitions in topics:
        for start in range(0, len(partitions), _AT_ONCE):
            yield [(key, partitions[start : start + _AT_ONCE])]


def _has_transactional_batch(topics: list[TopicRecords]) -> Steps[bool]:
    for part in in_parts(topics):
        if has_transactional_batch(part):
            return True
        yield
    return False


def _errors(response: list[TopicResult]) -> Steps[set[int]]:
    codes = set()
    for _, results in response:
        for result in results:
            codes.add(result[1])
            yield
    return codes - {0}


def refuse(request: ProduceRequest, code: ErrorCode, message: str | None = None) -> Steps[list[TopicResult]]:
    """Respond with an error for every partition."""
    response: list[TopicResult] = []
    for key, partitions in request.topics:
        response.append((key, (yield from each(lambda row: error_result(row[0], code, message), partitions))))
        yield
    return response


def close_if_failed(context: RequestContext, codes: set[int]) -> None:
    """Close the connection if a response to acks=0, which is not sent, has errors with these codes."""
    if codes:
        names = sorted(ErrorCode(code).name for code in codes)
        context.connection.close("Produce with acks=0 failed", context, error=",".join(names))
