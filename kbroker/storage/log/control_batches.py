"""What transactions leave in a log: markers, which end them, and the index of those that were aborted."""

from collections.abc import Sequence
from errno import ENOSPC
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.storage.indexes.transaction_index import AbortedTransaction
from kbroker.storage.log import rolling
from kbroker.storage.log.reading import find
from kbroker.storage.log.segment import TAIL, LogSegment, SegmentGone
from kbroker.storage.producers.producer_state import ProducerStateManager
from protocol.errors import ErrorCode
from protocol.records.batch import PREFIX, BatchHeader
from protocol.records.control import EndMarker

if TYPE_CHECKING:
    from kbroker.storage.log.log import Log

# A control batch, its header, and what it says.
MarkerBatch = tuple[bytearray, BatchHeader, EndMarker]


def note_control(
    producers: ProducerStateManager, segment: LogSegment, header: BatchHeader, base: int, marker: EndMarker | None
) -> None:
    """Take note of a control batch that is in `segment` at offset `base`: perhaps it has ended a transaction.

    The marker is None of another kind of control record, and of what compaction has left of a batch without records.
    """
    if marker is None:
        return
    ended = producers.end_transaction(header, base, marker.committed, marker.coordinator_epoch)
    if ended is not None and not marker.committed:
        entry = AbortedTransaction(ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset)
        # After damage a log may be read that ends before what its index had: entries ascend all the same.
        if entry.last_offset > segment.aborted.last_offset:
            segment.aborted.add(entry)


def append_markers(log: "Log", batches: Sequence[MarkerBatch], leader_epoch: int, now_ms: int) -> int:
    """Append control batches of one record each with one write, all of them or none; gives the first one's offset.

    Raises KafkaError as `Log.append`; together they count as one batch for segment.bytes.
    """
    size = sum([len(batch) for batch, _, _ in batches])
    base = log.log_end_offset
    timestamp = max([header[8] for _, header, _ in batches])
    segment = rolling.prepare(log, size, timestamp, base + len(batches) - 1, now_ms)
    file = segment.file
    assert file is not None
    headers = []
    for slot, (batch, header, _) in enumerate(batches):
        PREFIX.pack_into(batch, 0, base + slot, header[1], leader_epoch)
        headers.append(header._replace(base_offset=base + slot, leader_epoch=leader_epoch))
    try:
        written = file.append(b"".join([batch for batch, _, _ in batches]))
    except OSError as error:
        raise log.cut_back(error) from error
    if written != size:
        raise log.cut_back(OSError(ENOSPC, f"{written} of {size} bytes written"))
    if leader_epoch != log.append_epoch:
        log.start_epoch(leader_epoch, base)
    for header, (_, _, marker) in zip(headers, batches, strict=True):
        _note_appended(log, segment, header)
        log.note_control(segment, header, header[0], marker)
    log.log_end_offset = base + len(batches)
    return base


def _note_appended(log: "Log", segment: LogSegment, header: BatchHeader) -> None:
    """As Log.append has it inline; the order is that of segment.py."""
    position = segment.size
    _, offsets, positions = log.tail
    positions.append(position)
    offsets.append(header[0])
    if len(offsets) >= 2 * TAIL:
        log.tail = (segment, offsets[TAIL:], positions[TAIL:])
    segment.size = position + header.size
    if header[8] > segment.max_timestamp:
        segment.max_timestamp = header[8]
        segment.max_timestamp_offset = header[0]
    if segment.unindexed > log.index_interval:
        log.add_entry(segment, header[0], position)
        segment.unindexed = 0
    segment.unindexed += header.size


def aborted_in(log: "Log", offset: int, size: int, wait: bool) -> list[AbortedTransaction]:
    """Those that overlap what was just read: `size` bytes from the batch with `offset` on.

    Their markers come after it, perhaps segments later; nothing is looked at beyond the first one at which all that was
    read was stable. Raises WouldBlock, KafkaError(KAFKA_STORAGE_ERROR) if an index is not what it was.
    """
    while True:
        found: list[AbortedTransaction] = []
        segments = log.segments
        try:
            first, upper = _extent(log, segments, offset, size, wait)
            for segment in segments:
                if segment.base_offset >= first.base_offset and segment.collect_aborted(offset, upper, wait, found):
                    break
        except SegmentGone:
            continue
        except ValueError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return found


def _extent(log: "Log", segments: list[LogSegment], offset: int, size: int, wait: bool) -> tuple[LogSegment, int]:
    """The segment of what was read, and an offset that it is below: that which follows it, if that is remembered."""
    segment, position = find(log, segments, log.hints, offset, wait)
    for following, of, at in list(log.hints):
        if of is segment and at == position + size:
            return segment, following
    return segment, segment.end_offset if segment.end_offset is not None else log.log_end_offset
