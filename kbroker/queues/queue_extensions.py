"""Adds the features of message queues to partitions, as their topics' configs and their roles require."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.queues.closing.closing_topics import ClosingTopics
from kbroker.queues.dedup.dedup_extension import DedupExtension
from kbroker.queues.dedup.dedup_metrics import DedupMetrics
from kbroker.queues.delay.delayed_topics import DelayedTopics
from kbroker.queues.expiry.ttl_validation import TtlValidation
from kbroker.queues.topic_filters import topic_filter
from kbroker.replica.fetch.read_filter import combine

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition
    from kbroker.replica.partition_extensions import AppendExtension
    from kbroker.runtime.environment import Environment


class QueueExtensions:
    """The PartitionExtensions of a broker."""

    def __init__(self, environment: Environment) -> None:
        self.delayed = DelayedTopics(environment)
        self.dedup_metrics = DedupMetrics()
        self.closing = ClosingTopics(environment)
        self._environment = environment
        self._dedup: dict[Partition, DedupExtension] = {}

    def configure(self, partition: Partition) -> None:
        """Set or remove the extension and the read filter of a partition."""
        if partition.is_internal:
            return
        config = partition.log.config
        dedup = self._configure_dedup(partition)
        delay = self.delayed.configure(partition)
        # Topics cannot have both.
        extension: AppendExtension | None = dedup if delay is None else delay
        read_filter = topic_filter(config)
        if partition.forwarding is not None:
            # Topics whose partitions close have neither.
            extension, closing_filter = self.closing.configure(partition, partition.forwarding)
            read_filter = combine(closing_filter, read_filter)
        if config.kbroker_ttl_enable and partition.is_leader and not partition.is_closed:
            extension = TtlValidation(extension)
        partition.append_extension = extension
        partition.read_filter = read_filter

    def _configure_dedup(self, partition: Partition) -> DedupExtension | None:
        """Return the extension that drops records with known idempotency keys; None if the topic has no window.

        A leader that begins another epoch keeps its state, since nothing was removed from its log.
        """
        config = partition.log.config
        wanted = partition.is_leader and not partition.is_closed and config.kbroker_dedup_window_ms > 0
        dedup = self._dedup.get(partition)
        if dedup is not None and wanted:
            dedup.set_config(config)
        elif dedup is not None:
            dedup.close()
            del self._dedup[partition]
            dedup = None
        elif wanted:
            dedup = self._dedup[partition] = DedupExtension(self._environment, partition, self.dedup_metrics)
        return dedup

    def key_counts(self) -> dict[Partition, int]:
        """Return the number of stored idempotency keys of each partition that this broker leads."""
        return {partition: len(dedup.table) for partition, dedup in self._dedup.items()}

    async def stop(self) -> None:
        """Write the snapshots, as tasks of the logs. A log finishes its tasks before it is closed."""
        self.closing.stop()
        await self.delayed.stop()
        for dedup in self._dedup.values():
            dedup.state.write_snapshot()
