"""Reads the partition of an internal topic, for the replay of its records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kbroker.common import NO_PRODUCER_ID, TopicPartition
from kbroker.coordinator.internal_log import InternalLog
from protocol.records.batch import body_of, iter_headers
from protocol.records.compression import decompress
from protocol.records.control import COMMIT, parse_control_type
from protocol.records.record import iter_records

# Coordinators write small batches. This bounds the memory that a corrupt one can use.
MAX_DECOMPRESSED_BYTES = 64 << 20

END_OF_LOG = -1


class LoadedRecord(NamedTuple):
    """`producer_id` is -1 unless the record is transactional."""

    record: Any
    offset: int
    producer_id: int


class LoadedMarker(NamedTuple):
    """The end of a transaction."""

    producer_id: int
    committed: bool


def read_chunk_blocking(
    log: InternalLog,
    tp: TopicPartition,
    offset: int,
    max_bytes: int,
    decode: Callable[[bytes | None, bytes | None], Any | None],
) -> tuple[int, list[LoadedRecord | LoadedMarker]]:
    """Return the next offset (END_OF_LOG at the end) and the content of a chunk of the log.

    Records for which `decode` returns None are omitted. Raises OSError, LookupError, MalformedError.
    """
    chunk = log.read_internal_blocking(tp, offset, max_bytes)
    items: list[LoadedRecord | LoadedMarker] = []
    next_offset = END_OF_LOG
    for pos, header in iter_headers(chunk):
        next_offset = header.next_offset
        body = decompress(header.codec, body_of(chunk, pos, header.size), MAX_DECOMPRESSED_BYTES)
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        for raw in iter_records(body, header.count, header.base_timestamp):
            if header.is_control:
                items.append(LoadedMarker(header.producer_id, parse_control_type(raw.key) == COMMIT))
                continue
            record = decode(raw.key, raw.value)
            if record is not None:
                items.append(LoadedRecord(record, header.base_offset + raw.offset_delta, producer_id))
    return next_offset, items
