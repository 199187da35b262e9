"""Encodes the records of one target partition as a record batch, from Arrow record batches.

The loop of `encode_batch` takes most of the processor time of a replay. It appends to one list and joins it once.
Arrow's buffers are read as such, because `to_pylist` takes several times as long up to pyarrow 24.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError
from protocol.records.batch import assemble_batch
from protocol.records.compression import CODEC_NAMES, compress
from protocol.records.record import encode_varint

if TYPE_CHECKING:
    import pyarrow as pa


MAX_SEQUENCE = 0x7FFFFFFF
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


def sequence_at(position: int) -> int:
    """Return the sequence number of the record at a position; 0 follows the largest."""
    return position & MAX_SEQUENCE


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


# Headers that a replayed record gets, unless --no-origin-headers is given.
ORIGIN_TOPIC = b"kbroker.origin.topic"
ORIGIN_PARTITION = b"kbroker.origin.partition"
ORIGIN_OFFSET = b"kbroker.origin.offset"
REPLAY = b"kbroker.replay"
ORIGIN_HEADERS = 4

# Formats of memoryview.cast: integers of 32 and of 64 bits.
IntegerFormat = Literal["i", "q"]
_INTEGER_SIZES = {"i": 4, "q": 8}


class RecordColumns(NamedTuple):
    """Rows as lists of equal length. Times are in milliseconds; pacing uses `due`, records keep `timestamps`."""

    targets: list[int]
    due: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[bytes]

    def batch(self, target: TopicPartition, position: int, rows: range | Sequence[int]) -> ReplayBatch:
        """Return some of the rows, which all belong to this target."""
        columns = (self.timestamps, self.keys, self.values, self.headers)
        if isinstance(rows, range):
            return ReplayBatch(target, position, *(column[rows.start : rows.stop] for column in columns))  # type: ignore[arg-type]
        return ReplayBatch(target, position, *([column[row] for row in rows] for column in columns))  # type: ignore[arg-type]

    def max_sizes(self) -> list[int]:
        """Return an upper bound of each record's size before compression, in bytes."""
        rows = zip(self.keys, self.values, self.headers, strict=True)
        return [len(key or b"") + len(value or b"") + len(headers) + RECORD_OVERHEAD for key, value, headers in rows]


def read_columns(rows: "pa.RecordBatch", replay_id: str | None) -> RecordColumns:
    """Read the columns target, due, timestamp, topic, partition, offset, key, value and headers.

    With a `replay_id`, each record gets the origin headers after its own.
    """
    headers = _read_headers(rows.column("headers"))
    if replay_id is None:
        encoded_headers = [varint(count) + encoded for count, encoded in headers]
    else:
        encoded_headers = [
            varint(count + ORIGIN_HEADERS) + encoded + origin
            for (count, encoded), origin in zip(headers, _origin_headers(rows, replay_id), strict=True)
        ]
    return RecordColumns(
        read_integers(rows.column("target"), "i"),
        read_integers(rows.column("due"), "q"),
        read_integers(rows.column("timestamp"), "q"),
        _read_binaries(rows.column("key")),
        _read_binaries(rows.column("value")),
        encoded_headers,
    )


def _origin_headers(rows: "pa.RecordBatch", replay_id: str) -> list[bytes]:
    """Return the encoded origin headers of each row."""
    starts: dict[tuple[bytes | None, int], bytes] = {}  # per source partition, up to the offset
    end = with_length(REPLAY) + with_length(replay_id.encode())
    result = []
    sources = zip(_read_binaries(rows.column("topic")), read_integers(rows.column("partition"), "i"), strict=True)
    for source, offset in zip(sources, read_integers(rows.column("offset"), "q"), strict=True):
        start = starts.get(source)
        if start is None:
            topic, partition = source
            start = with_length(ORIGIN_TOPIC) + with_length(topic)
            start += with_length(ORIGIN_PARTITION) + with_length(b"%d" % partition)
            start += with_length(ORIGIN_OFFSET)
            starts[source] = start
        text = b"%d" % offset
        result.append(start + VARINTS[len(text)] + text + end)
    return result


def _read_headers(column: "pa.Array") -> list[tuple[int, bytes]]:
    """Return the number of each row's headers, and the encoded headers. A null list counts as empty."""
    if column.null_count == len(column):
        return [(0, b"")] * len(column)
    starts = _value_offsets(column)
    first, last = starts[0], starts[-1]
    items = column.values.slice(first, last - first)
    names, values = _read_binaries(items.field(0)), _read_binaries(items.field(1))
    encoded = [with_length(name) + with_length(value) for name, value in zip(names, values, strict=True)]
    is_valid = column.is_valid().to_pylist() if column.null_count else None
    result = []
    for row, (start, end) in enumerate(pairwise(starts)):
        if start == end or (is_valid is not None and not is_valid[row]):
            result.append((0, b""))
        else:
            result.append((end - start, b"".join(encoded[start - first : end - first])))
    return result


def read_integers(column: "pa.Array", integer_format: IntegerFormat) -> list[int]:
    """Return a column of integers that has no nulls."""
    if not len(column):
        return []
    numbers = memoryview(column.buffers()[1]).cast("B").cast(integer_format)
    return numbers[column.offset : column.offset + len(column)].tolist()


def _read_binaries(column: "pa.Array") -> list[bytes | None]:
    """Return a column of a binary or string type as bytes."""
    if not len(column):
        return []
    starts = _value_offsets(column)
    content = column.buffers()[2]
    first = starts[0]
    data = content.slice(first, starts[-1] - first).to_pybytes() if content is not None else b""
    values: list[bytes | None] = [data[start - first : end - first] for start, end in pairwise(starts)]
    if column.null_count:
        for row, is_valid in enumerate(column.is_valid().to_pylist()):
            if not is_valid:
                values[row] = None
    return values


def _value_offsets(column: "pa.Array") -> list[int]:
    """Return the start of each value of a binary, string or list column, and the end of the last one."""
    integer_format: IntegerFormat = "q" if "large" in str(column.type) else "i"
    size = _INTEGER_SIZES[integer_format]
    start = column.offset * size
    buffer = memoryview(column.buffers()[1]).cast("B")
    return buffer[start : start + (len(column) + 1) * size].cast(integer_format).tolist()
