"""Appends of transaction markers. The markers of a partition in one iteration of the event loop share a write."""

from collections import deque

from kbroker.common import KafkaError
from kbroker.replica.partition import Partition
from kbroker.replica.partition_high_watermark import OnCommitted
from kbroker.runtime.environment import Environment
from kbroker.storage.log.transaction_index import PreparedBatch
from kbroker.storage.producers.transactions import TransactionMarker
from protocol.errors import ErrorCode
from protocol.records.batch import parse_header
from protocol.records.control import EndTransactionMarker, build_end_marker

MAX_MARKERS_PER_WRITE = 1000
# A marker has 78 bytes.
_MAX_MARKER_BYTES = 128


# Partitions to which an iteration appends. A transaction of 3,000 partitions would keep the event loop busy for 130 ms.
PARTITIONS_AT_ONCE = 32

Markers = list[tuple[TransactionMarker, OnCommitted]]


class MarkerAppends:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._waiting: dict[Partition, Markers] = {}
        # Those of earlier iterations.
        self._due: deque[tuple[Partition, Markers]] = deque()
        self._is_scheduled = False

    def add(self, partition: Partition, marker: TransactionMarker, on_committed: OnCommitted) -> None:
        """Append in the next iteration, or in a later one if markers of many partitions wait.

        `on_committed`: called when the marker is committed, or cannot be appended.
        """
        self._waiting.setdefault(partition, []).append((marker, on_committed))
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._environment.loop.call_soon(self._append_some)

    def _append_some(self) -> None:
        self._is_scheduled = False
        self._due.extend(self._waiting.items())
        self._waiting = {}
        for _ in range(min(PARTITIONS_AT_ONCE, len(self._due))):
            partition, markers = self._due.popleft()
            max_markers = max(1, min(MAX_MARKERS_PER_WRITE, partition.log.config.segment_bytes // _MAX_MARKER_BYTES))
            group: dict[int, tuple[TransactionMarker, OnCommitted]] = {}
            for marker, on_committed in markers:
                # A producer's second marker can be validated only after the first one is appended.
                if marker.producer_id in group or len(group) == max_markers:
                    self._append(partition, group)
                    group = {}
                group[marker.producer_id] = (marker, on_committed)
            self._append(partition, group)
        if self._due:
            self._schedule()

    def _append(self, partition: Partition, group: dict[int, tuple[TransactionMarker, OnCommitted]]) -> None:
        now_ms = self._environment.clock.now_ms()
        batches: list[PreparedBatch] = []
        callbacks = []
        for marker, on_committed in group.values():
            try:
                check_marker(partition, marker)
            except KafkaError as error:
                on_committed(error.code)
                continue
            end = EndTransactionMarker(marker.committed, marker.coordinator_epoch)
            batch = build_end_marker(end, marker.producer_id, marker.producer_epoch, now_ms)
            batches.append((batch, parse_header(batch), end))
            callbacks.append(on_committed)
        if not batches:
            return
        try:
            base_offset = partition.append_markers(batches, now_ms)
        except KafkaError as error:
            for on_committed in callbacks:
                on_committed(error.code)
            return
        for offset, on_committed in enumerate(callbacks, base_offset):
            partition.on_committed(offset + 1, on_committed)


def check_marker(partition: Partition, marker: TransactionMarker) -> None:
    """Raise KafkaError if a marker may not be appended now. The conditions are those of acks=all."""
    if partition.is_closed or not partition.is_leader:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    log = partition.log
    if partition.state.is_under_min_isr:
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    log.producers.check_marker(marker)
