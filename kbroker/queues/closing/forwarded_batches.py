"""The batches of a closing partition: how they are stored there, and how they are forwarded to another partition.

Each closing partition has a producer id of its own, which no client can have. The position of a forwarded batch is its
base offset in the closing partition; the batch has it as its producer epoch and sequence. So the producer state of the
target partition shows what was forwarded already: a batch whose position is not higher is a duplicate. Every leader of
the closing partition derives the same positions, since it has the same log.

The target partition may lose this producer state: when retention has deleted the batches, a replica that is added later
never sees them. So the closing partition stores its progress in its own log, too: empty batches of the same producer,
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
    """Return the producer id of partition `index`, which has been closing since the leader epoch `first_epoch`."""
    return FIRST_FORWARDER_ID | index << _INDEX_BITS | first_epoch


def position_of(producer_epoch: int, sequence: int) -> int:
    """Return the position of a forwarded batch: its base offset in the closing partition."""
    return producer_epoch << _SEQUENCE_BITS | sequence


def hide(batch: bytearray | memoryview, header: BatchHeader) -> None:
    """Mark a producer's batch as hidden from consumers. It keeps its sequences and stays in its transaction."""
    patch_max_timestamp(batch, 0, header.size, header.attributes | HIDDEN, header.max_timestamp)


def forwarded_copy(batch: Buffer, header: BatchHeader, producer_id: int) -> bytearray:
    """Return the copy for the target partition: the same records, from the producer `producer_id` of the forwarder."""
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
    """Return the batch that records in a closing partition that everything below `position` is forwarded."""
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
    """Return whether to forward a batch, which is below the last stable offset."""
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
    """The read filter of a closing partition: drops what its leaders have hidden since `first_epoch`."""

    def __init__(self, first_epoch: int) -> None:
        self._first_epoch = first_epoch

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        is_hidden = header.attributes & HIDDEN and header.leader_epoch >= self._first_epoch
        return None if is_hidden else batch
