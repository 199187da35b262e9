"""The closing partitions on this broker: their read filters, their appends and their forwarders."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.queues.closing.closing_extension import ClosingExtension
from kbroker.queues.closing.forwarded_batches import ClosingFilter
from kbroker.queues.closing.forwarder import Forwarder
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.metadata.image import Forwarding
    from kbroker.queues.closing.forwarding_sender import ForwardingSender
    from kbroker.replica.partition import Partition
    from kbroker.runtime.environment import Environment


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
