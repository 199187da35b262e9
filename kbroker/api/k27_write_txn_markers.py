"""WriteTxnMarkers (key 27), versions 1 and 2: the end of transactions, for partitions that this broker leads.

Coordinators of other brokers send it, and administrators to end a transaction that no coordinator knows (KIP-664).
- Version 2 says of which version of transactions the producer is (KIP-1228); version 1 means 0.
- Markers of one producer are answered together; one without partitions is left out.
- What no producer has, an id or an epoch below 0, is UNKNOWN_SERVER_ERROR, as in Kafka 4.3.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.context import RequestContext, Services
from kbroker.common import TopicPartition
from kbroker.coordinator.internal_log import TransactionMarker
from protocol.errors import ErrorCode
from protocol.messages.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from asyncio import Future

Outcomes = dict[int, dict[TopicPartition, ErrorCode]]


async def handle(
    services: Services, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    outcomes: Outcomes = {}
    waiting: list[Future[None]] = []
    for row in request.markers:
        for topic in row.topics:
            for index in topic.partition_indexes:
                waiting.append(_write(services, row, TopicPartition(topic.name, index), outcomes))
    for written in waiting:
        await written
    return WriteTxnMarkersResponse(markers=[_result(producer, told) for producer, told in outcomes.items()])


def _write(services: Services, row: WritableTxnMarker, tp: TopicPartition, outcomes: Outcomes) -> Future[None]:
    written: Future[None] = services.environment.loop.create_future()

    def done(code: ErrorCode) -> None:
        outcomes.setdefault(row.producer_id, {})[tp] = code
        # Who asked may be gone: a closed connection cancels its request.
        if not written.done():
            written.set_result(None)

    marker = TransactionMarker(
        row.producer_id, row.producer_epoch, row.transaction_result, row.coordinator_epoch, row.transaction_version
    )
    if services.metadata.partition(tp.topic, tp.partition) is None:
        done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    elif marker.producer_id < 0 or marker.producer_epoch < 0 or marker.transaction_version < 0:
        done(ErrorCode.UNKNOWN_SERVER_ERROR)
    else:
        services.markers.write_marker(tp, marker, done)
    return written


def _result(producer_id: int, told: dict[TopicPartition, ErrorCode]) -> WritableTxnMarkerResult:
    topics: dict[str, list[WritableTxnMarkerPartitionResult]] = {}
    for tp, code in told.items():
        row = WritableTxnMarkerPartitionResult(partition_index=tp.partition, error_code=code)
        topics.setdefault(tp.topic, []).append(row)
    return WritableTxnMarkerResult(
        producer_id=producer_id,
        topics=[WritableTxnMarkerTopicResult(name=name, partitions=rows) for name, rows in topics.items()],
    )
