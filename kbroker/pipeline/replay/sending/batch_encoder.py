"""Encodes the records of one target partition as a record batch.

The loop of `encode_batch` takes most of the processor time of a replay. It appends to one list and joins it once.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.sending.progress import sequence_at
from protocol.records.batch import assemble_batch
from protocol.records.compression import CODEC_NAMES, compress
from protocol.records.record import encode_varint

# An upper bound of a record's length, attributes, deltas, field lengths and header count, in bytes.
RECORD_OVERHEAD = 40
# An upper bound of the batch header, which has 61 bytes.
BATCH_OVERHEAD = 128

# Lengths and deltas of most records, encoded in advance.
VARINTS = tuple(encode_varint(number) for number in range(1 << 14))
_VARINT_COUNT = len(VARINTS)
_NULL = encode_varint(-1)


class ProducerSettings(NamedTuple):
    """The idempotent producer of a replay. All tasks share its producer id."""

    producer_id: int
    epoch: int
    codec: int  # a number of protocol.records.compression


class ReplayBatch(NamedTuple):
    """Consecutive records of one target partition; `position`: the position of the first.

    The sequences have equal length. Timestamps are in milliseconds; headers are encoded and begin with their count.
    """

    target: TopicPartition
    position: int
    timestamps: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[bytes]

    @property
    def end(self) -> int:
        """The position after the last record."""
        return self.position + len(self.timestamps)

    def part(self, start: int, end: int) -> "ReplayBatch":
        """Return the records at the positions [start, end), all of which are in this batch."""
        part = slice(start - self.position, end - self.position)
        return ReplayBatch(
            self.target, start, self.timestamps[part], self.keys[part], self.values[part], self.headers[part]
        )


def parse_codec(name: str) -> int:
    """Return the number of a compression codec, 0 for "none". Raises PipelineError."""
    if name == "none":
        return 0
    if name not in CODEC_NAMES:
        raise PipelineError(f"--compression must be one of none, {', '.join(CODEC_NAMES[1:])}, not {name!r}")
    return CODEC_NAMES.index(name)


def varint(number: int) -> bytes:
    return VARINTS[number] if 0 <= number < _VARINT_COUNT else encode_varint(number)


def with_length(content: bytes | None) -> bytes:
    """Return bytes with their length as a varint before them; None has the length -1."""
    return _NULL if content is None else varint(len(content)) + content


def encode_batch(batch: ReplayBatch, producer: ProducerSettings) -> bytearray:
    """Return the record batch for a Produce request."""
    varints, varint_count, null = VARINTS, _VARINT_COUNT, _NULL
    timestamps = batch.timestamps
    base_timestamp = timestamps[0]
    parts: list[bytes] = []
    append = parts.append
    rows = zip(timestamps, batch.keys, batch.values, batch.headers, strict=True)
    for offset_delta, (timestamp, key, value, headers) in enumerate(rows):
        delta = timestamp - base_timestamp
        start = b"\0" + (varints[delta] if 0 <= delta < varint_count else encode_varint(delta))
        start += varints[offset_delta] if offset_delta < varint_count else encode_varint(offset_delta)
        if key is None:
            start += null
        else:
            size = len(key)
            start += (varints[size] if size < varint_count else encode_varint(size)) + key
        if value is None:
            value_length = null
            size = len(start) + 1 + len(headers)
        else:
            size = len(value)
            value_length = varints[size] if size < varint_count else encode_varint(size)
            size += len(start) + len(value_length) + len(headers)
        append(varints[size] if size < varint_count else encode_varint(size))
        append(start)
        append(value_length)
        if value:
            append(value)
        append(headers)
    count = len(timestamps)
    return assemble_batch(
        compress(producer.codec, b"".join(parts)),
        count=count,
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max(timestamps),
        attributes=producer.codec,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence_at(batch.position),
    )
