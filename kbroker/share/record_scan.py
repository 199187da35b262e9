"""Reads a partition for share consumers: batches as bytes, and the offsets of the records that consumers see in them.

All other offsets of what was read are holes: filtered, expired, compacted, aborted (for a group that reads committed
records) and control records. Kafka leaves it to consumers to acknowledge them as gaps; here they never take a place in
the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import Buffer
from kbroker.replica.fetch.filter_scan import (
    MAX_LOOP_COMPRESSED_BYTES,
    LookBudget,
    read_filtered,
)
from kbroker.replica.fetch.read_filter import Filtered, HiddenRanges, PositionForm, ReadFilter
from kbroker.replica.produce.slow_validation import MAX_DECOMPRESSED
from kbroker.share.delivery import ScannedBatch
from kbroker.share.in_flight import Span
from kbroker.storage.log.log_reads import find_aborted_transactions, read, read_blocking
from protocol.records.batch import BatchHeader, body_of, iter_headers
from protocol.records.compression import decompress
from protocol.records.control import find_end_marker
from protocol.records.record import decode_varint

if TYPE_CHECKING:
    from kbroker.runtime.environment import Clock
    from kbroker.storage.log.log import Log


class ReadBatch(NamedTuple):
    """A batch with records that consumers see."""

    scanned: ScannedBatch
    data: Buffer


class ShareRead(NamedTuple):
    """Batches, and the offsets that were read: none if `scanned.last` is below `scanned.first`."""

    batches: list[ReadBatch]
    scanned: Span

    def records(self, first: int, last: int) -> bytes:
        """Return the batches that have acquired records, all of which are between two offsets."""
        return b"".join(
            [
                batch.data
                for batch in self.batches
                if batch.scanned.spans[0].first <= last and batch.scanned.spans[-1].last >= first
            ]
        )


class ShareReadRequest(NamedTuple):
    """What to read: from `offset` on, below `end_offset`, at most `max_bytes` but at least one batch."""

    read_filter: ReadFilter | None
    offset: int
    end_offset: int
    max_bytes: int
    read_committed: bool


def scan(log: Log, request: ShareReadRequest, budget: LookBudget, clock: Clock, wait: bool) -> ShareRead | None:
    """Read a partition. Returns None if that would wait for the disk, take long or exceed the budget.

    Then call it with `wait` in a thread. Raises KafkaError as Log.read does, and for a batch that cannot be filtered.
    """
    offset, end_offset, committed = request.offset, request.end_offset, request.read_committed
    aborted: Sequence[tuple[int, int]] = ()
    if request.read_filter is not None:
        filtered = Filtered(request.read_filter, HiddenRanges(log.contents), PositionForm.CONTROL)
        found = read_filtered(log, filtered, offset, request.max_bytes, end_offset, committed, budget, clock, wait)
        if found is None:
            return None
        records, next_offset, aborted = found.records, found.next_offset, found.aborted
    else:
        reader = read_blocking if wait else read
        data = reader(log, offset, request.max_bytes, end_offset)
        if data is None:
            return None
        records, next_offset = data, -1
        if committed:
            transactions = find_aborted_transactions(log, offset, len(records), wait)
            if transactions is None:
                return None
            aborted = [(each.producer_id, each.first_offset) for each in transactions]
    batches = []
    # The buffer of a thread is reused.
    view = memoryview(bytes(records) if wait else records)
    for pos, header, is_aborted in _without_aborted(view, aborted):
        next_offset = max(next_offset, header.next_offset)
        if is_aborted or header.is_control:
            continue
        batch = view[pos : pos + header.size]
        is_sparse = header.count <= header.last_offset_delta
        if is_sparse and header.codec and header.size > MAX_LOOP_COMPRESSED_BYTES and not wait:
            return None
        spans = [span._replace(first=max(span.first, offset)) for span in _spans(batch, header) if span.last >= offset]
        if spans:
            batches.append(ReadBatch(ScannedBatch(spans), batch))
    return ShareRead(batches, Span(offset, next_offset - 1))


def _spans(batch: memoryview, header: BatchHeader) -> list[Span]:
    """Return the offsets of the records of a batch. Its records are decoded only if some are missing."""
    if header.count > header.last_offset_delta:
        return [Span(header.base_offset, header.last_offset)]
    body = decompress(header.codec, body_of(batch, 0, header.size), MAX_DECOMPRESSED)
    spans: list[Span] = []
    for delta in _offset_deltas(body, header.count):
        offset = header.base_offset + delta
        if spans and spans[-1].last + 1 == offset:
            spans[-1] = Span(spans[-1].first, offset)
        else:
            spans.append(Span(offset, offset))
    return spans


def _offset_deltas(body: bytes | bytearray | memoryview, count: int) -> Iterator[int]:
    pos = 0
    for _ in range(count):
        size, start = decode_varint(body, pos)
        _, delta_pos = decode_varint(body, start + 1, 10)
        yield decode_varint(body, delta_pos)[0]
        pos = start + size


def _without_aborted(view: memoryview, aborted: Sequence[tuple[int, int]]) -> Iterator[tuple[int, BatchHeader, bool]]:
    """Iterate over (position, header, whether its transaction was aborted), as a consumer of committed records does."""
    waiting = sorted(aborted, key=lambda each: each[1], reverse=True)
    producers: set[int] = set()
    for pos, header in iter_headers(view):
        while waiting and waiting[-1][1] <= header.last_offset:
            producers.add(waiting.pop()[0])
        if header.is_control:
            marker = find_end_marker(view[pos : pos + header.size])
            if marker is not None and not marker.committed:
                producers.discard(header.producer_id)
        yield pos, header, header.is_transactional and header.producer_id in producers
