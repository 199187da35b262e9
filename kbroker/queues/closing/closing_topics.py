"""The closing partitions on this broker: their read filters, their appends and their forwarders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from kbroker.common import Buffer, KafkaError
from kbroker.metadata.image import Forwarding
from kbroker.queues.closing.forwarded_batches import ClosingFilter, hide
from kbroker.queues.closing.forwarder import Forwarder
from kbroker.queues.closing.forwarding import ForwardingSender
from kbroker.replica.partition import Partition
from kbroker.replica.partition_extensions import AppendResult
from kbroker.replica.produce.record_rules import InspectedBatch
from kbroker.runtime.environment import Environment
from kbroker.storage.log.transaction_index import PreparedBatch
from protocol.errors import ErrorCode
from protocol.records.batch import BatchHeader, parse_header


class ClosingTopics:
    """`sender` is set before this broker leads partitions."""

    def __init__(self, environment: Environment) -> None:
        self.sender: ForwardingSender | None = None
        self._environment = environment
        self._forwarders: dict[Partition, Forwarder] = {}

    def configure(self, partition: Partition, forwarding: Forwarding) -> tuple[ClosingExtension | None, ClosingFilter]:
        """Apply the closing state and the role of a partition. Returns its append extension, if any, and filter."""
        forwarder = self._forwarders.get(partition)
        is_leading = partition.is_leader and not partition.is_closed
        if forwarder is not None and not (is_leading and forwarder.forwarding == forwarding):
            forwarder.stop()
            del self._forwarders[partition]
            forwarder = None
        partition.retention_limit = partial(self._retention_limit, partition)
        if is_leading and forwarder is None:
            if partition.state.leader_epoch == forwarding.closed_epoch and partition.log.active.size:
                # Retention deletes whole segments: hidden records must not keep those that consumers see.
                # If the disk is full, the segment rolls later.
                with suppress(KafkaError):
                    partition.log.roll(self._environment.clock.now_ms())
            forwarder = self._forwarders[partition] = Forwarder(self._environment, partition, forwarding, self._send)
            forwarder.start()
        is_hiding = forwarder is not None and forwarding.is_active
        extension = ClosingExtension(partition, forwarder.wake) if forwarder is not None and is_hiding else None
        return extension, ClosingFilter(forwarding.first_epoch)

    async def _send(self, topic_id: bytes, index: int, records: bytes) -> int:
        if self.sender is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        return await self.sender.send(topic_id, index, records)

    def _retention_limit(self, partition: Partition, now_ms: int) -> int:
        """Return the offset below which retention may delete. A follower deletes only what its leader has deleted."""
        forwarder = self._forwarders.get(partition)
        return partition.log.log_start_offset if forwarder is None else forwarder.deletion_limit

    def stop(self) -> None:
        forwarders, self._forwarders = list(self._forwarders.values()), {}
        for forwarder in forwarders:
            forwarder.stop()


class ClosingExtension:
    """The AppendExtension of a closing partition: appends batches as hidden ones, which keep their sequences.

    `on_appended` wakes the forwarder.
    """

    def __init__(self, partition: Partition, on_appended: Callable[[], None]) -> None:
        self._partition = partition
        self._on_appended = on_appended

    @property
    def is_ready(self) -> bool:
        return True

    async def wait_until_ready(self) -> None:
        """Return at once."""

    def inspect(self, body: Buffer, header: BatchHeader, pause: Callable[[], None]) -> object:
        """Return None: the records are stored as they are."""
        return None

    def append(self, batch: InspectedBatch, stored: AppendResult | None, now_ms: int) -> AppendResult:
        """Append the batch unless it is a duplicate (`stored`). The client gets its offset in the closing partition."""
        if stored is not None:
            return stored
        data, header, append_time_ms = batch.validated
        hide(data, header)
        prepared: list[PreparedBatch] = [(data, parse_header(data), None)]
        base_offset = self._partition.append_batches(prepared, now_ms)
        self._on_appended()
        return base_offset, base_offset + header.last_offset_delta + 1, append_time_ms

    def on_markers(self, batches: Sequence[PreparedBatch], base_offset: int) -> None:
        """Wake the forwarder, since it forwards the batches of committed transactions."""
        self._on_appended()
