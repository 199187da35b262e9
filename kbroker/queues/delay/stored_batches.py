"""Reads pending records from the log, with a cache of decoded batches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.common import Buffer
from kbroker.queues.delay.delay_batches import StoredRecord, decode_records, stored_record
from kbroker.queues.delay.pending_records import Pending
from protocol.records.batch import HEADER_SIZE, BatchHeader, iter_headers
from protocol.records.record import Record

if TYPE_CHECKING:
    from kbroker.runtime.environment import Environment
    from kbroker.storage.log.log import Log

# The limit of the cache of decoded batches: the records of a batch are often due one after the other. A batch counts as
# its stored bytes, and RECORD_BYTES for the Python objects of each record.
MAX_KEPT_BYTES = 8 << 20
RECORD_BYTES = 500
# Larger batches are decoded in a thread.
MAX_LOOP_BYTES = 1 << 14
# The records of one delivery have at most this many bytes, or segment.bytes, unless there is only one.
MAX_DELIVERY_BYTES = 1 << 18
# Upper bounds: the lengths of a delivered record and the headers that the delivery adds, and the lengths of a header.
ADDED_BYTES, HEADER_BYTES = 200, 10

_DecodedBatch = tuple[BatchHeader, list[Record], int]


class StoredBatches:
    """A cache of decoded batches of one log, which drops the least recently used ones."""

    def __init__(self, environment: Environment, log: Log) -> None:
        self._offload = environment.offload
        self._log = log
        self._batches: OrderedDict[int, _DecodedBatch] = OrderedDict()
        self._kept_bytes = 0
        self._last: _DecodedBatch | None = None

    async def read(self, entries: Sequence[Pending]) -> list[StoredRecord]:
        """Return the records of the first entries, at least one, that fit into one batch of the log.

        Raises KafkaError, MalformedError.
        """
        found: list[StoredRecord] = []
        size, max_size = HEADER_SIZE, min(MAX_DELIVERY_BYTES, self._log.config.segment_bytes)
        for entry in entries:
            header, records = await self.batch_at(entry[1])
            record = stored_record(entry, records[entry[1] - header.base_offset], header)
            size += _size(record) + ADDED_BYTES
            if found and size > max_size:
                break
            found.append(record)
        return found

    async def batch_at(self, offset: int) -> tuple[BatchHeader, list[Record]]:
        """Return the batch with the record at `offset`. Raises KafkaError, MalformedError."""
        last = self._last
        if last is not None and 0 <= offset - last[0].base_offset < last[0].count:
            return last[:2]
        for base, decoded in reversed(self._batches.items()):
            if base <= offset <= decoded[0].last_offset:
                self._batches.move_to_end(base)
                self._last = decoded
                return decoded[:2]
        return (await self._load(offset))[:2]

    async def _load(self, offset: int) -> _DecodedBatch:
        log = self._log
        data: Buffer | None = log.read(offset, 1, log.log_end_offset)
        if data is None:
            data = await self._offload(log.read_blocking, offset, 1, log.log_end_offset)
        _, header = next(iter_headers(data))
        if header.codec or header.size > MAX_LOOP_BYTES:
            records = await self._offload(decode_records, data, header)
        else:
            records = decode_records(data, header)
        weight = len(data) + RECORD_BYTES * len(records) + sum([_size(record) for record in records])
        decoded = self._last = (header, records, weight)
        former = self._batches.pop(header.base_offset, None)
        if former is not None:
            # Another task has read the batch meanwhile.
            self._kept_bytes -= former[2]
        self._batches[header.base_offset] = decoded
        self._kept_bytes += weight
        while self._kept_bytes > MAX_KEPT_BYTES and len(self._batches) > 1:
            _, (_, _, dropped) = self._batches.popitem(last=False)
            self._kept_bytes -= dropped
        return decoded

    def clear(self) -> None:
        self._batches.clear()
        self._last = None
        self._kept_bytes = 0


def _size(record: Record | StoredRecord) -> int:
    """Return an upper bound of the bytes of key, value and headers in a batch."""
    headers = sum([len(key) + len(value or b"") + HEADER_BYTES for key, value in record.headers])
    return len(record.key or b"") + len(record.value or b"") + headers
