"""Appends producers' batches to a closing partition as hidden batches, which keep their producers' sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kbroker.common import Buffer
from kbroker.queues.closing.forwarded_batches import hide
from kbroker.replica.partition_extensions import AppendResult
from kbroker.replica.produce.record_rules import InspectedBatch
from kbroker.storage.log.transaction_index import PreparedBatch
from protocol.records.batch import BatchHeader, parse_header

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition


class ClosingExtension:
    """The AppendExtension of a closing partition. `on_appended` wakes the forwarder."""

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
