"""Writes transaction markers to the leaders of their partitions: this broker, or others through WriteTxnMarkers.

The markers of one iteration of the event loop share a request to each broker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.peer_requests import RequestQueues
from protocol.errors import ErrorCode, known_error
from protocol.messages.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from kbroker.coordinator.peer_requests import PeerRequests
    from kbroker.metadata.image import MetadataImage
    from kbroker.runtime.environment import Environment
    from kbroker.storage.producers.transactions import TransactionMarker

# The first version with the transaction version, without which a late marker could end a later transaction (KIP-1228).
VERSION = 2
# The number of partitions in one request.
MAX_PARTITIONS = 2_000


class MarkerWriter(Protocol):
    def write(self, tp: TopicPartition, marker: TransactionMarker, on_written: Callable[[ErrorCode], None]) -> None:
        """Write a marker, and call `on_written`, perhaps immediately.

        The argument is NONE when the high watermark has passed the marker, or the error.
        """
        ...


class _QueuedMarker(NamedTuple):
    tp: TopicPartition
    marker: TransactionMarker
    on_written: Callable[[ErrorCode], None]


class TransactionMarkerChannels:
    """A MarkerWriter for the partitions of all brokers (Kafka: TransactionMarkerChannelManager).

    `local` writes to the partitions of this broker. `peers` is None if the cluster has no other broker. Errors are not
    retried here: TransactionMarkerSender retries, with the leader at that time.
    """

    def __init__(
        self,
        environment: Environment,
        node_id: int,
        metadata: MetadataImage,
        request_timeout_ms: Callable[[], int],
        local: MarkerWriter,
        peers: PeerRequests | None = None,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._local = local
        self._peers = peers
        self._queues = RequestQueues(
            environment, VERSION, request_timeout_ms, _next_request, _request, _complete, _fail
        )

    def write(self, tp: TopicPartition, marker: TransactionMarker, on_written: Callable[[ErrorCode], None]) -> None:
        """Write a marker, and call `on_written` as MarkerWriter says.

        The error is NETWORK_EXCEPTION if the leader cannot be reached; the marker may be written nevertheless.
        """
        partition = self._metadata.partition(tp.topic, tp.partition)
        if self._peers is None or partition is None or partition.leader == self._node_id:
            self._local.write(tp, marker, on_written)
        elif partition.leader not in self._metadata.brokers:
            on_written(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._queues.add(self._peers, partition.leader, _QueuedMarker(tp, marker, on_written))


def _next_request(queue: list[_QueuedMarker]) -> tuple[list[_QueuedMarker], list[_QueuedMarker]]:
    """Return the markers of the next request, and the others.

    A response has results by producer, so a request has one marker of each producer, for any partitions.
    """
    request: list[_QueuedMarker] = []
    others: list[_QueuedMarker] = []
    markers: dict[int, TransactionMarker] = {}
    for queued in queue:
        is_full = len(request) == MAX_PARTITIONS
        if not is_full and markers.setdefault(queued.marker.producer_id, queued.marker) == queued.marker:
            request.append(queued)
        else:
            others.append(queued)
    return request, others


def _request(markers: Sequence[_QueuedMarker]) -> WriteTxnMarkersRequest:
    topics: dict[TransactionMarker, dict[str, list[int]]] = {}
    for tp, marker, _ in markers:
        topics.setdefault(marker, {}).setdefault(tp.topic, []).append(tp.partition)
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.committed,
                topics=[
                    WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in partitions.items()
                ],
                coordinator_epoch=marker.coordinator_epoch,
                transaction_version=marker.transaction_version,
            )
            for marker, partitions in topics.items()
        ]
    )


def _complete(markers: Sequence[_QueuedMarker], response: WriteTxnMarkersResponse) -> None:
    errors = _errors(response)
    for queued in markers:
        # A partition without a result is an error of the peer; the marker may be written.
        queued.on_written(errors.get((queued.marker.producer_id, queued.tp), ErrorCode.UNKNOWN_SERVER_ERROR))


def _fail(markers: Sequence[_QueuedMarker], error: KafkaError) -> None:
    for queued in markers:
        queued.on_written(error.code)


def _errors(response: WriteTxnMarkersResponse) -> dict[tuple[int, TopicPartition], ErrorCode]:
    return {
        (marker.producer_id, TopicPartition(topic.name, partition.partition_index)): known_error(partition.error_code)
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }
