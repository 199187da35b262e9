"""Checks the batches that a leader has sent before they are appended. Nothing that is damaged reaches the log."""

from __future__ import annotations

from protocol.errors import MalformedError
from protocol.records.batch import MAGIC, BatchHeader, crc_of, iter_headers


class CorruptBatchesError(Exception):
    """The leader's response for a partition contains bytes that are not the batches to append."""


def check_batches(records: memoryview, fetch_offset: int, leader_epoch: int) -> list[BatchHeader]:
    """Return the headers of the complete batches in a leader's response, in order.

    `fetch_offset`: the offset that was fetched. `leader_epoch`: the leader's epoch; no batch may be of a later one, and
    none of an earlier epoch than the batch before it. Gaps between offsets are valid: the log may be compacted. An
    incomplete batch at the end is ignored. Raises CorruptBatchesError.
    """
    headers: list[BatchHeader] = []
    next_offset, epoch = fetch_offset, -1
    try:
        for position, header in iter_headers(records):
            if header.magic != MAGIC:
                raise CorruptBatchesError(f"a batch at offset {next_offset} has the format {header.magic}")
            if header.crc != crc_of(records, position, header.size):
                raise CorruptBatchesError(f"a batch at offset {next_offset} has a wrong CRC")
            if header.base_offset < next_offset or header.last_offset_delta < 0:
                raise CorruptBatchesError(f"a batch at offset {header.base_offset} instead of {next_offset}")
            if not epoch <= header.leader_epoch <= leader_epoch:
                raise CorruptBatchesError(f"a batch of epoch {header.leader_epoch} at offset {next_offset}")
            next_offset, epoch = header.next_offset, header.leader_epoch
            headers.append(header)
    except MalformedError as error:
        raise CorruptBatchesError(str(error)) from error
    if records and not headers:
        raise CorruptBatchesError(f"an incomplete batch of {len(records)} bytes at offset {fetch_offset}")
    return headers
