"""Sends the markers that end a transaction (TransactionMarkerChannelManager in Kafka).

PrepareX committed -> a marker to each partition, repeated until it is written -> CompleteX

The leader of a partition is this broker, or another one through WriteTxnMarkers: the markers of one iteration of the
event loop share a request to each broker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kbroker.common import KafkaError, TopicPartition
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.internal_log import InternalLog
from kbroker.coordinator.peer_requests import RequestQueues
from kbroker.coordinator.transaction.transaction_metadata import TransactionMetadata
from kbroker.coordinator.transaction.transitions import transaction_marker
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode, known_error
from protocol.messages.k27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from kbroker.interbroker.peers import Peers

log = EventLogger("kbroker.transactions")

# The delay before a retry doubles each time.
FIRST_RETRY_DELAY_S, MAX_RETRY_DELAY_S = 0.1, 2.0
# From this delay on, retries are logged. Earlier retries are normal while partitions are loading after a start.
LOGGED_RETRY_DELAY_S = 0.8

# With these errors the partition cannot contain records of the transaction.
_NEVER_WRITTEN = frozenset({ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION})

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


class TransactionMarkerWriter:
    """Writes transaction markers to the partitions of this broker."""

    def __init__(self, log: InternalLog, groups: GroupCoordinator) -> None:
        self._log = log
        self._groups = groups

    def write(self, tp: TopicPartition, marker: TransactionMarker, on_written: Callable[[ErrorCode], None]) -> None:
        """Write a marker, and call `on_written`, perhaps immediately.

        The argument is NONE when the high watermark has passed the marker, or the error. By then the transaction's
        offsets in __consumer_offsets have taken effect.
        """
        if tp.topic == GROUP_METADATA_TOPIC:
            self._groups.runtime.complete_transaction(tp, marker, on_written)
        else:
            self._log.append_marker(tp, marker, on_written)


class PendingMarkers:
    """The markers of one prepared transaction. The `remaining` partitions have no marker yet."""

    __slots__ = ("delayed_partition", "marker", "metadata", "on_all_written", "remaining", "retries", "retry_delay_s")

    def __init__(
        self, metadata: TransactionMetadata, marker: TransactionMarker, on_all_written: Callable[[], None]
    ) -> None:
        self.metadata = metadata
        self.marker = marker
        self.on_all_written = on_all_written
        self.remaining = set(metadata.partitions)
        # Partitions that failed, for the next retry.
        self.retries: list[TopicPartition] = []
        self.retry_delay_s = FIRST_RETRY_DELAY_S
        # Whether the failure of a partition has been logged.
        self.delayed_partition: TopicPartition | None = None

    def log_fields(self, tp: TopicPartition) -> dict[str, object]:
        return {
            "transactional_id": self.metadata.transactional_id,
            "partition": tp,
            "producer_id": self.metadata.producer_id,
            "epoch": self.metadata.producer_epoch,
        }


class TransactionMarkerSender:
    """Sends the markers of the transactions of one partition of __transaction_state."""

    def __init__(self, environment: Environment, metadata: MetadataImage, writer: MarkerWriter) -> None:
        self._environment = environment
        self._metadata = metadata
        self._writer = writer
        self._pending: dict[str, PendingMarkers] = {}

    def send_markers(
        self, metadata: TransactionMetadata, coordinator_epoch: int, on_all_written: Callable[[], None]
    ) -> None:
        """Send the markers of a prepared transaction, whose record is committed."""
        markers = PendingMarkers(metadata, transaction_marker(metadata, coordinator_epoch), on_all_written)
        self._pending[metadata.transactional_id] = markers
        if not markers.remaining:
            on_all_written()
        # Sorted, so that a simulation is repeatable.
        for tp in sorted(markers.remaining):
            self._send(markers, tp)

    def remaining_partitions(self, transactional_id: str) -> frozenset[TopicPartition] | None:
        """Return the partitions without a marker; None if no markers of the transactional id are pending."""
        markers = self._pending.get(transactional_id)
        return None if markers is None else frozenset(markers.remaining)

    def retry_later(self, transactional_id: str, action: Callable[[], None]) -> None:
        """Call the action after the retry delay, if the markers are still pending then."""
        markers = self._pending.get(transactional_id)
        if markers is not None:
            self._environment.loop.call_later(markers.retry_delay_s, self._retry, markers, action)
            markers.retry_delay_s = min(2 * markers.retry_delay_s, MAX_RETRY_DELAY_S)

    def remove(self, transactional_id: str) -> None:
        """Stop sending markers: the transaction is completed, or another coordinator completes it."""
        self._pending.pop(transactional_id, None)

    def clear(self) -> None:
        """Stop sending markers, because the partition has moved to another broker, which sends them."""
        self._pending.clear()

    def on_leaders_changed(self, partitions: Collection[TopicPartition]) -> None:
        """Send the markers that wait for a retry and whose partitions have a new leader."""
        for markers in list(self._pending.values()):
            if any(tp in partitions for tp in markers.retries):
                self._resend(markers)

    def _is_pending(self, markers: PendingMarkers) -> bool:
        return self._pending.get(markers.metadata.transactional_id) is markers

    def _send(self, markers: PendingMarkers, tp: TopicPartition) -> None:
        if self._metadata.partition(tp.topic, tp.partition) is None:
            # The topic is deleted.
            self._on_written(markers, tp)
        else:
            self._writer.write(tp, markers.marker, partial(self._on_result, markers, tp))

    def _on_result(self, markers: PendingMarkers, tp: TopicPartition, error: ErrorCode) -> None:
        """Handle the result of one marker. Errors are handled as in Kafka, except INVALID_PRODUCER_EPOCH."""
        if tp not in markers.remaining or not self._is_pending(markers):
            return
        if error is ErrorCode.NONE or error in _NEVER_WRITTEN:
            self._on_written(markers, tp)
        elif error is ErrorCode.INVALID_PRODUCER_EPOCH:
            # The partition has a later epoch of the producer, so this transaction is over there, and a marker would
            # change nothing. Kafka leaves the transaction prepared, forever if no other coordinator has it.
            log.warning(
                "a partition has a later epoch than a transaction's marker", **markers.log_fields(tp), reason=error.name
            )
            self._on_written(markers, tp)
        elif error is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            log.warning(
                "another coordinator writes a transaction's markers", **markers.log_fields(tp), reason=error.name
            )
            self.remove(markers.metadata.transactional_id)
        else:
            self._retry_marker(markers, tp, error)

    def _on_written(self, markers: PendingMarkers, tp: TopicPartition) -> None:
        markers.remaining.discard(tp)
        if not markers.remaining:
            if markers.delayed_partition is not None:
                log.info("a transaction's markers are written", **markers.log_fields(markers.delayed_partition))
            markers.on_all_written()

    def _retry_marker(self, markers: PendingMarkers, tp: TopicPartition, error: ErrorCode) -> None:
        """Schedule a retry: all markers that fail within the delay are sent again at its end."""
        if not markers.retries:
            if markers.delayed_partition is None and markers.retry_delay_s >= LOGGED_RETRY_DELAY_S:
                markers.delayed_partition = tp
                log.warning("a transaction's marker cannot be written yet", **markers.log_fields(tp), reason=error.name)
            self.retry_later(markers.metadata.transactional_id, lambda: self._resend(markers))
        markers.retries.append(tp)

    def _resend(self, markers: PendingMarkers) -> None:
        retries, markers.retries = markers.retries, []
        for tp in retries:
            self._send(markers, tp)

    def _retry(self, markers: PendingMarkers, action: Callable[[], None]) -> None:
        if self._is_pending(markers):
            action()


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
        peers: Peers | None = None,
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
