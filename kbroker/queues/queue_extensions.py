"""Adds the features of message queues to partitions, as their topics' configs and their roles require."""

from collections.abc import Callable, Sequence

from kbroker.common import Buffer
from kbroker.queues.closing.closing_topics import ClosingTopics
from kbroker.queues.dedup.dedup_extension import DedupExtension, DedupMetrics
from kbroker.queues.delay.delay_extension import DelayedTopics
from kbroker.queues.expiry import TTL_MS, parse_ttl
from kbroker.queues.record_headers import InvalidHeaderError, check_names, walk_headers
from kbroker.queues.topic_filters import topic_filter
from kbroker.replica.fetch.read_filter import combine
from kbroker.replica.partition import Partition
from kbroker.replica.partition_extensions import AppendExtension, AppendResult
from kbroker.replica.produce.record_rules import InspectedBatch
from kbroker.runtime.environment import Environment
from kbroker.storage.log.transaction_index import PreparedBatch
from protocol.records.batch import BatchHeader
from protocol.records.record import Header


class TtlValidation:
    """An AppendExtension. It passes valid batches to `inner`, the extension of another feature of the topic, if any."""

    def __init__(self, partition: Partition, inner: AppendExtension | None) -> None:
        self._partition = partition
        self._inner = inner

    @property
    def is_ready(self) -> bool:
        return self._inner is None or self._inner.is_ready

    async def wait_until_ready(self) -> None:
        if self._inner is not None:
            await self._inner.wait_until_ready()

    def inspect(self, body: Buffer, header: BatchHeader, pause: Callable[[], None]) -> object:
        """Check the headers. Raises InvalidRecordsError with the index of each record with a malformed header."""

        def visit(index: int, headers: Sequence[Header], start: int, end: int) -> None:
            try:
                if parse_ttl(headers) is None:
                    check_names(headers, (TTL_MS,))
            except InvalidHeaderError as error:
                raise InvalidHeaderError(f"Record {index} is invalid: {error}.") from None

        walk_headers(body, header, visit, pause)
        return None if self._inner is None else self._inner.inspect(body, header, pause)

    def append(self, batch: InspectedBatch, stored: AppendResult | None, now_ms: int) -> AppendResult:
        if self._inner is not None:
            return self._inner.append(batch, stored, now_ms)
        if stored is not None:
            return stored
        data, header, append_time_ms = batch.validated
        base_offset = self._partition.append_batches([(data, header, None)], now_ms)
        return base_offset, base_offset + header.last_offset_delta + 1, append_time_ms

    def on_markers(self, batches: Sequence[PreparedBatch], base_offset: int) -> None:
        if self._inner is not None:
            self._inner.on_markers(batches, base_offset)


class QueueExtensions:
    """The append extensions and read filters of all partitions. `configure` is the Configure of their Partitions."""

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
            extension = TtlValidation(partition, extension)
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
