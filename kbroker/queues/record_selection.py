"""Removes records from a batch for a consumer, without changing the offsets of the others."""

from __future__ import annotations

from collections.abc import Callable

from kbroker.common import Buffer
from protocol.errors import MalformedError
from protocol.records.batch import CODEC_MASK, BatchHeader, assemble_batch, body_of
from protocol.records.compression import compress, decompress
from protocol.records.record import decode_varint

# Called with the body and the bounds of one record, without its length.
Selects = Callable[[bytes, int, int], bool]


def decompressed_body(batch: memoryview, header: BatchHeader, max_bytes: int) -> bytes:
    """Return the records of a complete batch as bytes. Raises MalformedError."""
    body = body_of(batch, 0, header.size)
    return bytes(decompress(header.codec, body, max_bytes) if header.attributes & CODEC_MASK else body)


def select_records(batch: memoryview, header: BatchHeader, body: bytes, selects: Selects) -> Buffer | None:
    """Return the batch with the selected records only: `batch` itself if these are all, None if there are none.

    Base offset, last offset, producer fields and timestamps of the header do not change. Raises MalformedError.
    """
    slices: list[tuple[int, int]] = []
    kept, pos, end = 0, 0, len(body)
    try:
        for _ in range(header.count):
            size, start = decode_varint(body, pos)
            record_end = start + size
            if size <= 0 or record_end > end:
                raise MalformedError(f"record of {size} bytes in {end - start} bytes")
            if selects(body, start, record_end):
                kept += 1
                if slices and slices[-1][1] == pos:
                    slices[-1] = (slices[-1][0], record_end)
                else:
                    slices.append((pos, record_end))
            pos = record_end
    except IndexError:
        raise MalformedError("a record is cut off") from None
    if not kept:
        return None
    if kept == header.count:
        return batch
    records = b"".join([body[first:last] for first, last in slices])
    return assemble_batch(
        compress(header.codec, records),
        count=kept,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        attributes=header.attributes,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def headers_start(body: bytes, pos: int) -> int:
    """Return where the headers of a record begin (with their count). `pos`: its begin, after the length."""
    _, pos = decode_varint(body, pos + 1, 10)
    _, pos = decode_varint(body, pos)
    size, pos = decode_varint(body, pos)
    size, pos = decode_varint(body, pos + max(size, 0))
    return pos + max(size, 0)
