"""Appends producers' batches to a topic with delayed delivery, and marks those with delayed records.

A batch is never split, so the producer's offsets, sequences and transactions are the same as for any other batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING

from kbroker.common import Buffer
from kbroker.config.delay_levels import levels_ms
from kbroker.queues.delay.delay_batches import PRIVATE_BITS, rebuild_ahead, store_delayed
from kbroker.queues.delay.headers import DELAY_HEADERS, Delay, parse_delay
from kbroker.queues.record_headers import check_names, raise_record_errors, walk_headers
from kbroker.replica.partition_extensions import AppendResult
from kbroker.replica.produce.record_validation import (
    MAX_RECORD_ERRORS,
    InspectedBatch,
    RecordErrors,
    invalid_record,
    too_large,
)
from kbroker.replica.produce.record_validator import NeedsRewrite
from kbroker.storage.log.transaction_index import PreparedBatch
from protocol.records.batch import BatchHeader, parse_header
from protocol.records.record import Header

if TYPE_CHECKING:
    from kbroker.config.topic_config import TopicConfig
    from kbroker.queues.delay.delivery import DelayedDelivery
    from kbroker.replica.partition import Partition

# The delays of a batch, by the index of the record.
Delays = dict[int, Delay]


class DelayExtension:
    """The AppendExtension of such a partition. Appends do not depend on the pending records, so they never wait."""

    def __init__(self, delivery: DelayedDelivery, config: TopicConfig) -> None:
        self.config = config
        self._delivery = delivery

    @property
    def is_ready(self) -> bool:
        return True

    async def wait_until_ready(self) -> None:
        """Return at once."""

    def inspect(self, body: Buffer, header: BatchHeader, pause: Callable[[], None]) -> object:
        """Return the delays of the records. Raises KafkaError for invalid headers."""
        if header.attributes & PRIVATE_BITS:
            raise invalid_record("Clients are not allowed to set attributes of delayed records.")
        delays: Delays = {}
        largest = 0
        levels = levels_ms(self.config.kbroker_delay_levels)

        def visit(index: int, headers: Sequence[Header], start: int, end: int) -> None:
            nonlocal largest
            delay = parse_delay(headers, levels)
            if delay is None:
                check_names(headers, DELAY_HEADERS)
            else:
                delays[index] = delay
                largest = max(largest, end - start)

        walk_headers(body, header, visit, pause)
        if largest > self.config.max_message_bytes:
            # Records are delivered uncompressed.
            raise too_large(largest, self.config)
        return delays

    def append(
        self, partition: Partition, batch: InspectedBatch, stored: AppendResult | None, now_ms: int
    ) -> AppendResult:
        """Append the batch, unless it is a duplicate (`stored`)."""
        if stored is not None:
            return stored
        data, header, append_time_ms = batch.validated
        delays = batch.inspection
        assert isinstance(delays, dict)
        arrival_ms = now_ms if batch.rewritten is None else batch.rewritten[0]
        assert isinstance(arrival_ms, int)
        dues = _due_times(delays, arrival_ms, self.config.kbroker_delay_max_ms) if delays else {}
        is_ahead = header.max_timestamp > arrival_ms and not header.is_log_append_time
        if is_ahead and 0 < len(dues) < header.count:
            data = self._rebuild_ahead(batch, dues.keys(), arrival_ms)
            header = parse_header(data)
        elif dues:
            store_delayed(data, header, len(dues) == header.count, now_ms)
            header = parse_header(data)
        prepared: list[PreparedBatch] = [(data, header, None)]
        base_offset = partition.append_batches(prepared, now_ms)
        self._delivery.on_appended(header, base_offset, [(due, base_offset + index) for index, due in dues.items()])
        return base_offset, base_offset + header.last_offset_delta + 1, append_time_ms

    def _rebuild_ahead(self, batch: InspectedBatch, delayed: Set[int], arrival_ms: int) -> bytearray:
        """Raises NeedsRewrite for a large batch, which is then appended with the same arrival."""
        if batch.rewritten is not None:
            return batch.rewritten[1]
        build = partial(rebuild_ahead, header=batch.validated[1], delayed=delayed, arrival_ms=arrival_ms)
        if batch.body is not None:
            return build(batch.body)
        raise NeedsRewrite(batch, self.config, arrival_ms, build)

    def on_markers(self, partition: Partition, batches: Sequence[PreparedBatch], base_offset: int) -> None:
        """Wake the delivery: a committed transaction may have records that are due."""
        self._delivery.wake()


def _due_times(delays: Delays, now_ms: int, max_ms: int) -> dict[int, int]:
    """Return the due times (ms) of the records that must wait. Raises InvalidRecordsError if a delay is too long."""
    dues: dict[int, int] = {}
    errors: RecordErrors = []
    for index, delay in delays.items():
        due_ms = delay.due_ms(now_ms)
        if due_ms - now_ms > max_ms:
            if len(errors) < MAX_RECORD_ERRORS:
                errors.append((index, f"A delay of {due_ms - now_ms} ms exceeds kbroker.delay.max.ms, {max_ms}."))
        elif due_ms > now_ms:
            dues[index] = due_ms
    raise_record_errors(errors)
    return dues
