"""Removes records from batches. The others keep their offsets."""

from collections.abc import Callable, Container
from mmap import mmap

from kbroker.common import Buffer
from protocol.errors import MalformedError
from protocol.records.batch import CODEC_MASK, NO_TIMESTAMP, BatchHeader, body_of, rebuild_batch
from protocol.records.compression import NONE, compress, decompress_searchable
from protocol.records.record import decode_varint

Body = bytearray | mmap
# Called with the body and the bounds of one record, without its length.
Selects = Callable[[Body, int, int], bool]
# Returns the first position, at or after the given one, where the bytes that `Selects` looks for begin; the end of the
# body if there are none.
NextCandidate = Callable[[int], int]
# Selected records are compressed again only if they exceed a quarter of the batch. It takes as long as the search.
_UNCOMPRESSED_SHARE = 4


def decompressed_body(batch: memoryview, header: BatchHeader, max_bytes: int) -> Body:
    """Return the records of a complete batch, which can be searched and changed. Raises MalformedError."""
    body = body_of(batch, 0, header.size)
    codec = header.attributes & CODEC_MASK
    return decompress_searchable(codec, body, max_bytes) if codec else bytearray(body)


def select_records(
    batch: memoryview,
    header: BatchHeader,
    body: Body,
    selects: Selects,
    next_candidate: NextCandidate | None = None,
    keeps_others: bool = False,
) -> Buffer | None:
    """Return the batch with the selected records only: `batch` itself if all are selected, None if none are.

    Moves the selected records to the beginning of `body`.

    With `next_candidate`, only records that contain a candidate are passed to `selects`; the others are kept if
    `keeps_others`. The records after the last candidate are not parsed.

    Base offset, last offset, producer fields and timestamps of the header do not change. If little is left of a
    compressed batch, it is returned uncompressed. Raises MalformedError.
    """
    # The selected records are in `records[:selected]`, and the last run of them is still at `run`, up to `run_end`.
    records, selected, run, run_end = memoryview(body), 0, 0, 0
    index, kept, pos, end, count = 0, 0, 0, len(body), header.count
    candidate = 0 if next_candidate is None else next_candidate(0)
    try:
        while index < count and candidate < end:
            # This is decode_varint for lengths of one and two bytes, which takes a third of the time of the loop.
            size, start = body[pos], pos + 1
            if size >= 0x80 and body[start] < 0x80:
                size, start = size & 0x7F | body[start] << 7, start + 1
            elif size >= 0x80:
                size, start = decode_varint(body, pos)
                size *= 2
            record_end = start + (size >> 1)
            if size <= 0 or size & 1 or record_end > end:
                raise MalformedError(f"record of {size / 2:g} bytes in {end - start} bytes")
            index += 1
            if candidate >= record_end:
                is_kept = keeps_others
            else:
                is_kept = selects(body, start, record_end)
                if next_candidate is not None:
                    candidate = next_candidate(record_end)
            if is_kept:
                kept += 1
                if run_end != pos:
                    records[selected : selected + run_end - run] = records[run:run_end]
                    selected, run = selected + run_end - run, pos
                run_end = record_end
            pos = record_end
    except IndexError:
        raise MalformedError("a record is cut off") from None
    if keeps_others and index < count:
        kept += count - index
        if run_end != pos:
            records[selected : selected + run_end - run] = records[run:run_end]
            selected, run = selected + run_end - run, pos
        run_end = end
    if not kept:
        return None
    if kept == header.count:
        return batch
    records[selected : selected + run_end - run] = records[run:run_end]
    records = records[: selected + run_end - run]
    codec = header.codec if _UNCOMPRESSED_SHARE * len(records) > header.size else NONE
    return rebuild_batch(
        header,
        compress(codec, records),
        count=kept,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        attributes=header.attributes & ~CODEC_MASK | codec,
    )


def headers_start(body: Body, pos: int) -> int:
    """Return the position of a record's header count. `pos`: the position after the record's length."""
    _, pos = decode_varint(body, pos + 1, 10)
    _, pos = decode_varint(body, pos)
    size, pos = decode_varint(body, pos)
    size, pos = decode_varint(body, pos + max(size, 0))
    return pos + max(size, 0)


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
