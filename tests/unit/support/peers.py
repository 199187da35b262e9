"""The connections to other brokers, whose responses a test sends."""

import asyncio
from collections.abc import Mapping
from typing import Any

from kbroker.common import TopicPartition
from protocol.messages.k22_transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from protocol.messages.k27_write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message

Errors = Mapping[TopicPartition, int]


class FakePeers:
    """`requests` has all requests so far, as (broker id, request). Each is encoded and decoded in its version."""

    def __init__(self) -> None:
        self.requests: list[tuple[int, Any]] = []
        self._waiting: list[tuple[int, Any, asyncio.Future[Any]]] = []

    async def request(self, broker_id: int, request: Message, version: int, *, timeout_ms: int) -> Any:
        assert timeout_ms > 0
        received = decode(type(request), encode(request, version), version)
        self.requests.append((broker_id, received))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((broker_id, received, future))
        return await future

    def respond(self, broker_id: int, errors: Errors | None = None, without: set[TopicPartition] | None = None) -> None:
        """Respond to the broker's oldest request: these errors, none for the partitions `without`, else NONE."""
        request, future = self._oldest(broker_id)
        result = _Results(errors or {}, without or set())
        if isinstance(request, WriteTxnMarkersRequest):
            future.set_result(result.of_markers(request))
        else:
            future.set_result(result.of_transactions(request))

    def fail(self, broker_id: int, error: Exception) -> None:
        """Fail the broker's oldest request."""
        self._oldest(broker_id)[1].set_exception(error)

    def _oldest(self, broker_id: int) -> tuple[Any, "asyncio.Future[Any]"]:
        entry = next(entry for entry in self._waiting if entry[0] == broker_id)
        self._waiting.remove(entry)
        return entry[1], entry[2]


class _Results:
    def __init__(self, errors: Errors, without: set[TopicPartition]) -> None:
        self._errors = errors
        self._without = without

    def _partitions(self, name: str, indexes: list[int]) -> list[tuple[int, int]]:
        partitions = [TopicPartition(name, index) for index in indexes]
        return [(tp.partition, self._errors.get(tp, 0)) for tp in partitions if tp not in self._without]

    def of_markers(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        markers = []
        for marker in request.markers:
            topics = []
            for topic in marker.topics:
                results = [
                    WritableTxnMarkerPartitionResult(partition_index=index, error_code=error)
                    for index, error in self._partitions(topic.name, topic.partition_indexes)
                ]
                topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=results))
            markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
        return WriteTxnMarkersResponse(markers=markers)

    def of_transactions(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        transactions = []
        for transaction in request.transactions:
            topics = []
            for topic in transaction.topics:
                results = [
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
                    for index, error in self._partitions(topic.name, topic.partitions)
                ]
                topics.append(AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=results))
            transactions.append(
                AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=topics)
            )
        return AddPartitionsToTxnResponse(results_by_transaction=transactions)
