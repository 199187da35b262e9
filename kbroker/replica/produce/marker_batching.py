"""Markers on their way into partitions: those that come in one turn of the loop for a partition share one append."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.replica.partition import Partition
from kbroker.storage.log.control_batches import MarkerBatch
from kbroker.storage.producers.transaction_marker import TransactionMarker
from protocol.errors import ErrorCode
from protocol.records.batch import parse_header
from protocol.records.control import EndTransactionMarker, build_end_marker

if TYPE_CHECKING:
    from kbroker.runtime.environment import Environment

Done = Callable[[ErrorCode], None]
# Appends markers that have been checked; gives the offset of the first. Raises KafkaError.
Append = Callable[[Partition, list[MarkerBatch], int], int]

# A marker has 78 bytes; no more of them than this go into one write.
MOST_TOGETHER = 1000
_MARKER_BYTES = 128


class MarkerBatcher:
    """What has been asked for in this turn of the loop."""

    def __init__(self, environment: Environment, append: Append) -> None:
        self._environment = environment
        self._append = append
        self._waiting: dict[Partition, list[tuple[TransactionMarker, Done]]] = {}

    def write(self, partition: Partition, marker: TransactionMarker, done: Done) -> None:
        """`done` is called when the high watermark has passed the marker, or with why it cannot be written."""
        if not self._waiting:
            self._environment.loop.call_soon(self._write_all)
        self._waiting.setdefault(partition, []).append((marker, done))

    def _write_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for partition, markers in waiting.items():
            most = max(1, min(MOST_TOGETHER, partition.log.config.segment_bytes // _MARKER_BYTES))
            group: dict[int, tuple[TransactionMarker, Done]] = {}
            for marker, done in markers:
                # Whether a producer's second one may be written depends on what its first one does.
                if marker.producer_id in group or len(group) == most:
                    self._write(partition, group)
                    group = {}
                group[marker.producer_id] = (marker, done)
            self._write(partition, group)

    def _write(self, partition: Partition, group: dict[int, tuple[TransactionMarker, Done]]) -> None:
        now_ms = self._environment.clock.now_ms()
        batches: list[MarkerBatch] = []
        waiting = []
        for marker, done in group.values():
            try:
                check(partition, marker)
            except KafkaError as error:
                done(error.code)
                continue
            end = EndTransactionMarker(marker.committed, marker.coordinator_epoch)
            batch = build_end_marker(end, marker.producer_id, marker.producer_epoch, now_ms)
            batches.append((batch, parse_header(batch), end))
            waiting.append(done)
        if not batches:
            return
        try:
            offset = self._append(partition, batches, now_ms)
        except KafkaError as error:
            for done in waiting:
                done(error.code)
            return
        for slot, done in enumerate(waiting):
            partition.on_committed(offset + slot + 1, done)


def check(partition: Partition, marker: TransactionMarker) -> None:
    """Whether a marker may be appended now; raises KafkaError. As what is produced with acks=all."""
    if partition.closed or not partition.is_leader:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    log = partition.log
    if not partition.state.enough_in_sync(log.config.min_insync_replicas):
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    log.producers.check_marker(marker)
