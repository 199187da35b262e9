"""The batches of a closing partition: how they are stored there, and how they are forwarded to another partition.

Each closing partition has a producer id of its own, which no client can have. Epoch and sequence of a forwarded batch
are the base offset that it has in the closing partition, so what was forwarded already follows from the state of this
producer in the other partition: whatever has no higher position is a duplicate. Whoever leads the closing partition
derives the same positions from the same log.

The other partition may forget this producer: when retention has deleted its batches, a replica that is added later
never sees them. So the closing partition has its progress in its own log, too: empty batches of the same producer,
whose epoch and sequence are the offset below which everything is forwarded. Its next leader begins there.
"""

from typing import NamedTuple

from kbroker.storage.log.leader_epoch_cache import LeaderEpochCache
from kbroker.storage.producers.producer_state_manager import FIRST_FORWARDER_ID
from protocol.records.batch import (
    CONTROL,
    CRC_POS,
    HEADER,
    HIDDEN,
    NO_LEADER_EPOCH,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    assemble_batch,
    crc_of,
    patch_crc,
    patch_max_timestamp,
)

_INDEX_BITS = 32
_SEQUENCE_BITS = 31


class AbortedRange(NamedTuple):
    """The offsets of an aborted transaction in a log, both inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int


def forwarder_id(index: int, first_epoch: int) -> int:
    """Return the producer id of a closing partition, which is closing since a leader epoch."""
    return FIRST_FORWARDER_ID | index << _INDEX_BITS | first_epoch


def position_of(producer_epoch: int, sequence: int) -> int:
    """Return the base offset in the closing partition, which the epoch and sequence of a forwarded batch stand for."""
    return producer_epoch << _SEQUENCE_BITS | sequence


def hide(batch: bytearray | memoryview, header: BatchHeader) -> None:
    """Mark a producer's batch, so that consumers do not see it. Its sequences and its transaction remain."""
    patch_max_timestamp(batch, 0, header.size, header.attributes | HIDDEN, header.max_timestamp)


def to_forward(batch: Buffer, header: BatchHeader, producer_id: int) -> bytearray:
    """Return the copy for the other partition: the same records, perhaps compressed, of another producer."""
    epoch, sequence = divmod(header.base_offset, 1 << _SEQUENCE_BITS)
    out = bytearray(batch)
    HEADER.pack_into(
        out, 0, *header._replace(
            base_offset=0,
            leader_epoch=NO_LEADER_EPOCH,
            attributes=header.attributes & ~(HIDDEN | TRANSACTIONAL),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )  # fmt: skip
    patch_crc(out, CRC_POS, crc_of(out, 0, len(out)))
    return out


def progress_batch(position: int, producer_id: int, now_ms: int) -> bytearray:
    """Return the batch for a closing partition itself: everything below `position` is forwarded."""
    epoch, sequence = divmod(position, 1 << _SEQUENCE_BITS)
    return assemble_batch(
        b"",
        count=0,
        last_offset_delta=0,
        base_timestamp=-1,
        max_timestamp=now_ms,
        attributes=HIDDEN,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def must_forward(header: BatchHeader, first_epoch: int, aborted: list[AbortedRange]) -> bool:
    """Return whether a batch below the last stable offset is to be forwarded."""
    is_of_producer = header.attributes & HIDDEN and not header.attributes & CONTROL and header.count > 0
    if not is_of_producer or header.leader_epoch < first_epoch:
        return False
    if not header.attributes & TRANSACTIONAL:
        return True
    return not any(
        row.producer_id == header.producer_id and row.first_offset <= header.base_offset <= row.last_offset
        for row in aborted
    )


def start_of_epoch(epochs: LeaderEpochCache, epoch: int, log_start_offset: int, log_end_offset: int) -> int:
    """Return the first offset of a leader epoch, or of the next one that is known; at least the log start offset."""
    _, offset = epochs.end_offset_for(epoch - 1, log_end_offset)
    if epochs.latest < epoch:
        return log_end_offset
    return max(offset, log_start_offset)


class ClosingFilter:
    """The read filter of a closing partition: what its leaders have hidden since `first_epoch`."""

    def __init__(self, first_epoch: int) -> None:
        self._first_epoch = first_epoch

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        is_hidden = header.attributes & HIDDEN and header.leader_epoch >= self._first_epoch
        return None if is_hidden else batch
