"""Drops records whose idempotency key is known from produced batches, on topics with kbroker.dedup.window.ms.

A Produce response has one offset for a batch, the base offset, to which clients add the index of each record. So it has
the first record's offset of each key only if these offsets are consecutive; else the base offset is negative.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kbroker.common import UNKNOWN_OFFSET, Buffer
from kbroker.config import TopicConfig
from kbroker.queues.dedup.key_state import KeyState
from kbroker.queues.dedup.key_table import IDEMPOTENCY_KEY, NO_TRANSACTION, KeyTable, key_digest
from kbroker.queues.record_headers import check_names, walk_headers
from kbroker.queues.record_selection import without_records
from kbroker.replica.partition import Partition
from kbroker.replica.partition_extensions import AppendResult
from kbroker.replica.produce.record_rules import InspectedBatch
from kbroker.replica.produce.slow_validation import must_rewrite
from kbroker.runtime.environment import Environment
from kbroker.storage.log.transaction_index import PreparedBatch
from protocol.records.batch import NO_TIMESTAMP, BatchHeader, parse_header
from protocol.records.record import Header


class DedupMetrics:
    """Counters since the start. `duplicates`: dropped records. `evicted`: keys removed before their window ended."""

    __slots__ = ("duplicates", "evicted")

    def __init__(self) -> None:
        self.duplicates = self.evicted = 0


# (index, digest of the key) of the records of a batch that have a key.
Keys = list[tuple[int, bytes]]


class DedupExtension:
    """The AppendExtension of a partition, from this broker's election to the end of its leadership."""

    def __init__(self, environment: Environment, partition: Partition, metrics: DedupMetrics) -> None:
        config = partition.log.config
        self.table = KeyTable(config.kbroker_dedup_window_ms, config.kbroker_dedup_max_keys)
        self.state = KeyState(environment, partition, self.table)
        self._partition = partition
        self._metrics = metrics
        self.state.start()

    def set_config(self, config: TopicConfig) -> None:
        """Apply changed configs. A longer window does not restore keys that have expired."""
        self.table.window_ms = config.kbroker_dedup_window_ms
        self.table.max_keys = config.kbroker_dedup_max_keys

    def close(self) -> None:
        self.state.close()

    @property
    def is_ready(self) -> bool:
        return self.state.is_ready

    async def wait_until_ready(self) -> None:
        await self.state.wait_until_ready()

    def inspect(self, body: Buffer, header: BatchHeader, pause: Callable[[], None]) -> object:
        """Return the keys of the records. Raises InvalidRecordsError if one cannot be a key."""
        keys: Keys = []

        def visit(index: int, headers: Sequence[Header], start: int, end: int) -> None:
            digest = key_digest(headers)
            if digest is None:
                check_names(headers, (IDEMPOTENCY_KEY,))
            else:
                keys.append((index, digest))

        walk_headers(body, header, visit, pause)
        return keys

    def append(self, batch: InspectedBatch, stored: AppendResult | None, now_ms: int) -> AppendResult:
        data, header, append_time_ms = batch.validated
        keys: Keys = batch.inspection  # type: ignore[assignment]
        table = self.table
        producer_id = header.producer_id if header.is_transactional else NO_TRANSACTION
        # (offset, append time in ms) of the first record with the key, by index.
        originals: dict[int, tuple[int, int]] = {}
        dropped: set[int] = set()
        new: dict[bytes, int] = {}
        for index, digest in keys:
            if digest in new:
                dropped.add(index)
                continue
            original = table.find(digest, producer_id, now_ms)
            if original is None:
                new[digest] = index
            else:
                originals[index] = original
                dropped.add(index)
        if stored is not None:
            # The idempotent producer has sent the batch before. Its records without a key were stored.
            base_offset, end_offset, append_time_ms = stored
            offsets = {index: base_offset + index for index in range(header.count)}
            offsets.update({index: originals[index][0] if index in originals else UNKNOWN_OFFSET for index, _ in keys})
            return acknowledged_offset(offsets), end_offset, append_time_ms
        if len(originals) == header.count:
            end_offset = max([offset for offset, _ in originals.values()]) + 1
            if header.producer_id >= 0:
                # An empty batch, so that the sequence of the producer and its transaction continue.
                end_offset = self._append(self._rewrite(batch, dropped), now_ms)[1]
            self._metrics.duplicates += len(dropped)
            first_offset = acknowledged_offset({index: offset for index, (offset, _) in originals.items()})
            return first_offset, end_offset, NO_TIMESTAMP if append_time_ms == NO_TIMESTAMP else originals[0][1]
        if dropped:
            data = self._rewrite(batch, dropped)
        base_offset, end_offset = self._append(data, now_ms)
        evicted = table.evicted
        # Only after the append has succeeded: the producer retries a refused batch.
        for digest, index in new.items():
            table.add(digest, base_offset + index, now_ms, producer_id)
        table.forget_expired(now_ms)
        self._metrics.evicted += table.evicted - evicted
        self._metrics.duplicates += len(dropped)
        self.state.appended(len(data))
        return unknown_offsets(header.count) if dropped else base_offset, end_offset, append_time_ms

    def _rewrite(self, batch: InspectedBatch, dropped: set[int]) -> bytearray:
        """Return the batch without some records. Raises AppendMustWait for a large one."""
        config = self._partition.log.config
        codec = config.compression_type
        levels = {
            "gzip": config.compression_gzip_level,
            "lz4": config.compression_lz4_level,
            "zstd": config.compression_zstd_level,
        }
        build = partial(without_records, header=batch.validated[1], dropped=dropped, level=levels.get(codec))
        if batch.body is not None:
            return build(batch.body)
        if batch.rewritten is not None and batch.rewritten[0] == dropped:
            return batch.rewritten[1]
        raise must_rewrite(batch, config, dropped, build)

    def _append(self, data: bytearray | memoryview, now_ms: int) -> tuple[int, int]:
        header = parse_header(data)
        base_offset = self._partition.append_batches([(data, header, None)], now_ms)
        return base_offset, base_offset + header.last_offset_delta + 1

    def on_markers(self, batches: Sequence[PreparedBatch], base_offset: int) -> None:
        if not self.is_ready:
            # The load continues to the end of the log.
            return
        for _, header, marker in batches:
            if marker is not None:
                self.table.end_transaction(header.producer_id, marker.committed)


def acknowledged_offset(offsets: Mapping[int, int]) -> int:
    """Return the base offset of a response, from which clients compute the offset of each record, by index."""
    first = offsets[0]
    is_known = all(offset == first + index for index, offset in offsets.items())
    return first if is_known and first >= 0 else unknown_offsets(len(offsets))


def unknown_offsets(count: int) -> int:
    """Return a base offset from which every client computes a negative offset for each of `count` records.

    Some (the Java client, franz-go, kafka-python) take -1 as unknown for all records, but librdkafka and aiokafka add
    the index to it, so that the second record would seem to be at offset 0.
    """
    return -count
