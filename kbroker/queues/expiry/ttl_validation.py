"""Refuses batches with a malformed header TTL_MS, on topics with kbroker.ttl.enable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kbroker.common import Buffer
from kbroker.queues.expiry.ttl_header import TTL_MS, parse_ttl
from kbroker.queues.record_headers import InvalidHeaderError, check_names, walk_headers
from kbroker.replica.partition_extensions import AppendExtension, AppendResult
from kbroker.replica.produce.record_validation import InspectedBatch
from kbroker.storage.log.transaction_index import PreparedBatch
from protocol.records.batch import BatchHeader
from protocol.records.record import Header

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition


class TtlValidation:
    """An AppendExtension. It passes valid batches to `inner`, the extension of another feature of the topic, if any."""

    def __init__(self, inner: AppendExtension | None) -> None:
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

    def append(
        self, partition: Partition, batch: InspectedBatch, stored: AppendResult | None, now_ms: int
    ) -> AppendResult:
        if self._inner is not None:
            return self._inner.append(partition, batch, stored, now_ms)
        if stored is not None:
            return stored
        data, header, append_time_ms = batch.validated
        base_offset = partition.append_batches([(data, header, None)], now_ms)
        return base_offset, base_offset + header.last_offset_delta + 1, append_time_ms

    def on_markers(self, partition: Partition, batches: Sequence[PreparedBatch], base_offset: int) -> None:
        if self._inner is not None:
            self._inner.on_markers(partition, batches, base_offset)
