"""The record batches in a Produce request or Fetch response, as the items of `kbroker log dump`."""

from collections.abc import Iterator

from kbroker.cli.log.items import DumpItem, damage_item
from kbroker.cli.log.segments import batch_fields, control_item, record_fields
from kbroker.storage.inspect.batches import BatchAt, Damage, find_header_fault
from protocol.errors import MalformedError
from protocol.records.batch import CRC_START, HEADER_SIZE, MAGIC, MAGIC_POS, iter_batch_records, parse_header
from protocol.records.checksum import crc32c
from protocol.records.compression import TooLargeError


def record_items(data: bytes, position: int, *, may_be_cut: bool) -> Iterator[DumpItem]:
    """Yield batches with their records, and damage. `position`: where the data begins in the capture.

    `may_be_cut`: the last batch may be incomplete, as in Fetch responses of Apache Kafka.
    """
    pos = 0
    while pos < len(data):
        remaining = len(data) - pos
        reason = _find_fault(data, pos)
        if reason is not None:
            if may_be_cut and pos:
                yield DumpItem("incomplete", {"position": position + pos, "size": remaining})
            else:
                yield damage_item(Damage(position + pos, remaining, None, reason))
            return
        header = parse_header(data, pos)
        content = data[pos : pos + header.size]
        fault = None if crc32c(memoryview(content)[CRC_START:]) == header.crc else "its CRC is wrong"
        fault = fault or find_header_fault(header)
        batch = BatchAt(position + pos, header, fault)
        yield DumpItem("batch", batch_fields(batch))
        if fault is not None:
            yield damage_item(Damage(batch.position, header.size, None, fault))
        else:
            yield from _batch_records(content, batch)
        pos += header.size


def _find_fault(data: bytes, pos: int) -> str | None:
    """Return why there is no complete batch at a position."""
    remaining = len(data) - pos
    if remaining > MAGIC_POS and data[pos + MAGIC_POS] != MAGIC:
        return f"a batch of format {data[pos + MAGIC_POS]}"
    if remaining < HEADER_SIZE:
        return f"{remaining} bytes are less than a batch header"
    size = parse_header(data, pos).size
    return None if HEADER_SIZE <= size <= remaining else f"a batch of {size} bytes where {remaining} remain"


def _batch_records(content: bytes, batch: BatchAt) -> Iterator[DumpItem]:
    header = batch.header
    try:
        for record in iter_batch_records(content, header):
            if header.is_log_append_time:
                record = record._replace(timestamp=header.max_timestamp)
            offset = header.base_offset + record.offset_delta
            yield DumpItem("record", {"offset": offset, **record_fields(record, True)})
            if header.is_control:
                yield control_item(record, batch)
    except (MalformedError, TooLargeError) as error:
        yield damage_item(Damage(batch.position, header.size, None, str(error)))
