"""WriteTxnMarkers (key 27), versions 1 and 2: write transaction markers to partitions that this broker leads.

It is sent by the transaction coordinators of other brokers, and by tools that end a transaction which no coordinator
knows (KIP-664).
- Version 2 has the transaction version of the producer (KIP-1228); version 1 means 0.
- The results of all markers of a producer are returned together; a marker without partitions has no result.
- A marker that is not committed within request.timeout.ms gets REQUEST_TIMED_OUT; it may be committed later.
- A negative producer id or epoch gets UNKNOWN_SERVER_ERROR, as in Kafka 4.4.0.
"""

from asyncio import Future
from collections.abc import Mapping, Sequence
from functools import partial

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.runtime.write_event import complete
from kbroker.runtime.turns import paced, yield_if_due
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from protocol.messages.k27_write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

# The producer id, the partition, and the future result.
WrittenMarker = tuple[int, TopicPartition, "Future[ErrorCode]"]


async def handle(
    services: Services, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    written: list[WrittenMarker] = []
    for row in paced(request.markers):
        marker = TransactionMarker(
            row.producer_id, row.producer_epoch, row.transaction_result, row.coordinator_epoch, row.transaction_version
        )
        for topic in paced(row.topics):
            for index in paced(topic.partition_indexes):
                tp = TopicPartition(topic.name, index)
                written.append((row.producer_id, tp, _write(services, tp, marker)))
    timeout_s = services.config.request_timeout_ms / 1000
    timer = services.environment.loop.call_later(timeout_s, _time_out, written)
    results: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for producer_id, tp, future in written:
        results.setdefault(producer_id, {})[tp] = await future
        yield_if_due()
    timer.cancel()
    return _response(results)


def failed_response(
    context: RequestContext, request: WriteTxnMarkersRequest, error: KafkaError
) -> WriteTxnMarkersResponse:
    results: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for marker in paced(request.markers):
        for topic in paced(marker.topics):
            for index in paced(topic.partition_indexes):
                results.setdefault(marker.producer_id, {})[TopicPartition(topic.name, index)] = error.code
    return _response(results)


def _write(services: Services, tp: TopicPartition, marker: TransactionMarker) -> Future[ErrorCode]:
    written: Future[ErrorCode] = services.environment.loop.create_future()
    if services.metadata.partition(tp.topic, tp.partition) is None:
        written.set_result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    elif marker.producer_id < 0 or marker.producer_epoch < 0 or marker.transaction_version < 0:
        written.set_result(ErrorCode.UNKNOWN_SERVER_ERROR)
    else:
        services.marker_writer.write(tp, marker, partial(complete, written))
    return written


def _time_out(written: Sequence[WrittenMarker]) -> None:
    for _, _, result in written:
        complete(result, ErrorCode.REQUEST_TIMED_OUT)


def _response(results: Mapping[int, Mapping[TopicPartition, ErrorCode]]) -> WriteTxnMarkersResponse:
    response = WriteTxnMarkersResponse()
    for producer_id, errors in paced(results.items()):
        topics: dict[str, WritableTxnMarkerTopicResult] = {}
        for tp, error in paced(errors.items()):
            topic = topics.get(tp.topic)
            if topic is None:
                topic = topics[tp.topic] = WritableTxnMarkerTopicResult(name=tp.topic)
            result = WritableTxnMarkerPartitionResult(partition_index=tp.partition, error_code=error)
            topic.partitions.append(result)
        response.markers.append(WritableTxnMarkerResult(producer_id=producer_id, topics=list(topics.values())))
    return response
