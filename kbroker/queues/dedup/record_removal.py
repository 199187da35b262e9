"""Removes records from a produced batch before it is appended."""

from collections.abc import Container

from kbroker.common import Buffer
from protocol.records.batch import CODEC_MASK, NO_TIMESTAMP, BatchHeader, rebuild_batch
from protocol.records.compression import compress
from protocol.records.record import decode_varint


def without_records(body: Buffer, header: BatchHeader, dropped: Container[int], level: int | None) -> bytearray:
    """Return a validated batch without the records at the indexes `dropped`, as compaction would leave it.

    Offsets, sequences and codec stay the same. If no record is left, the batch is empty.
    """
    slices, max_delta = _kept_slices(body, header.count, dropped)
    kept = b"".join([body[start:end] for start, end in slices])
    count = header.count - sum(1 for index in range(header.count) if index in dropped)
    attributes, max_timestamp = header.attributes, header.max_timestamp
    if not count:
        attributes &= ~CODEC_MASK
    elif not header.is_log_append_time:
        max_timestamp = header.base_timestamp + max_delta
    return rebuild_batch(
        header,
        compress(attributes & CODEC_MASK, kept, level),
        count=count,
        base_timestamp=header.base_timestamp,
        max_timestamp=max_timestamp,
        attributes=attributes,
    )


def _kept_slices(body: Buffer, count: int, dropped: Container[int]) -> tuple[list[tuple[int, int]], int]:
    """Return the (start, end) of runs of records that are not dropped, and their largest timestamp delta, or 0."""
    slices: list[tuple[int, int]] = []
    pos, max_delta = 0, NO_TIMESTAMP
    for index in range(count):
        size, start = decode_varint(body, pos)
        begin, pos = pos, start + size
        if index in dropped:
            continue
        delta, _ = decode_varint(body, start + 1, 10)
        max_delta = delta if not slices else max(delta, max_delta)
        if slices and slices[-1][1] == begin:
            slices[-1] = (slices[-1][0], pos)
        else:
            slices.append((begin, pos))
    return slices, max_delta if slices else 0
