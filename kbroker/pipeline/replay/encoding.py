"""Rows of an archive as record batches: columns of Arrow in, bytes of a Produce request out.

The loop of `encoded` is what sending costs in Python, so it works on whole columns and joins once.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from protocol.records.batch import assemble_batch
from protocol.records.compression import compress
from protocol.records.record import encode_varint

if TYPE_CHECKING:
    import pyarrow as pa

MAX_SEQUENCE = 0x7FFFFFFF
ORIGIN_TOPIC = b"kbroker.origin.topic"
ORIGIN_PARTITION = b"kbroker.origin.partition"
ORIGIN_OFFSET = b"kbroker.origin.offset"
REPLAY = b"kbroker.replay"
ORIGIN_HEADERS = 4

# Of integers in Arrow's buffers: 32 and 64 bits, and their bytes.
Code = Literal["i", "q"]
_SIZES = {"i": 4, "q": 8}

_NULL = encode_varint(-1)
# Lengths and deltas of most records, as varints.
_VARINTS = tuple(encode_varint(number) for number in range(1 << 14))
_LIMIT = len(_VARINTS)
# Length, attributes, deltas, lengths and header count of a record at most; a batch's header is 61 bytes.
RECORD_OVERHEAD = 40
BATCH_OVERHEAD = 128


class Target(NamedTuple):
    """A partition that records are sent to."""

    topic: str
    partition: int


class Writer(NamedTuple):
    """The producer whose sequences make each record count once."""

    producer_id: int
    epoch: int
    codec: int  # of protocol.records.compression


class Batch(NamedTuple):
    """Consecutive records of one target, the first of which is the `position`-th of the replay there, from 0 on.

    Lists of equal length; `headers` are encoded, their count first. `timestamps` are in ms.
    """

    target: Target
    position: int
    timestamps: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[bytes]

    @property
    def end(self) -> int:
        """The position after its last record."""
        return self.position + len(self.timestamps)

    def part(self, start: int, end: int) -> "Batch":
        """The records at the positions [start, end), which are among its own."""
        at = slice(start - self.position, end - self.position)
        return Batch(self.target, start, self.timestamps[at], self.keys[at], self.values[at], self.headers[at])


def sequence_of(position: int) -> int:
    """The sequence number of the record at a position; after the largest they begin at 0 again."""
    return position & MAX_SEQUENCE


def varint(number: int) -> bytes:
    return _VARINTS[number] if 0 <= number < _LIMIT else encode_varint(number)


def sized(content: bytes | None) -> bytes:
    return _NULL if content is None else varint(len(content)) + content


def encoded(batch: Batch, writer: Writer) -> bytearray:
    """The batch as Produce carries it."""
    table, limit, null = _VARINTS, _LIMIT, _NULL
    timestamps = batch.timestamps
    base = timestamps[0]
    parts: list[bytes] = []
    append = parts.append
    rows = zip(timestamps, batch.keys, batch.values, batch.headers, strict=True)
    for delta, (timestamp, key, value, headers) in enumerate(rows):
        late = timestamp - base
        start = b"\0" + (table[late] if 0 <= late < limit else encode_varint(late))
        start += table[delta] if delta < limit else encode_varint(delta)
        if key is None:
            start += null
        else:
            size = len(key)
            start += (table[size] if size < limit else encode_varint(size)) + key
        if value is None:
            rest = null
            size = len(start) + 1 + len(headers)
        else:
            size = len(value)
            rest = table[size] if size < limit else encode_varint(size)
            size += len(start) + len(rest) + len(headers)
        append(table[size] if size < limit else encode_varint(size))
        append(start)
        append(rest)
        if value:
            append(value)
        append(headers)
    count = len(timestamps)
    return assemble_batch(
        compress(writer.codec, b"".join(parts)),
        count=count,
        last_offset_delta=count - 1,
        base_timestamp=base,
        max_timestamp=max(timestamps),
        attributes=writer.codec,
        producer_id=writer.producer_id,
        producer_epoch=writer.epoch,
        base_sequence=sequence_of(batch.position),
    )


class Columns(NamedTuple):
    """Some rows as Python lists. `due`: ms; by it rows are paced."""

    targets: list[int]
    dues: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[bytes]

    def batch(self, target: Target, position: int, rows: range | Sequence[int]) -> Batch:
        """Some of the rows, which are all of this target."""
        columns = (self.timestamps, self.keys, self.values, self.headers)
        if isinstance(rows, range):
            return Batch(target, position, *(column[rows.start : rows.stop] for column in columns))  # type: ignore[arg-type]
        return Batch(target, position, *([column[row] for row in rows] for column in columns))  # type: ignore[arg-type]

    def sizes(self) -> list[int]:
        """Bytes of each record before compression, at most."""
        rows = zip(self.keys, self.values, self.headers, strict=True)
        return [len(key or b"") + len(value or b"") + len(headers) + RECORD_OVERHEAD for key, value, headers in rows]


def columns(rows: "pa.RecordBatch", replay: str | None) -> Columns:
    """Rows with the columns target, due, timestamp (ms), topic, partition, offset, key, value and headers.

    With `replay`, the id of a replay, each record is given the headers that say where it comes from.
    """
    own = header_columns(rows.column("headers"))
    if replay is None:
        headers = [varint(count) + content for count, content in own]
    else:
        origins = _origins(rows, replay)
        headers = [varint(count + ORIGIN_HEADERS) + content + origin
                   for (count, content), origin in zip(own, origins, strict=True)]  # fmt: skip
    return Columns(
        integers(rows.column("target"), "i"),
        integers(rows.column("due"), "q"),
        integers(rows.column("timestamp"), "q"),
        binaries(rows.column("key")),
        binaries(rows.column("value")),
        headers,
    )


def _origins(rows: "pa.RecordBatch", replay: str) -> list[bytes]:
    made: dict[tuple[bytes | None, int], bytes] = {}
    end = sized(REPLAY) + sized(replay.encode())
    result = []
    topics, partitions = binaries(rows.column("topic")), integers(rows.column("partition"), "i")
    for source, offset in zip(zip(topics, partitions, strict=True), integers(rows.column("offset"), "q"), strict=True):
        start = made.get(source)
        if start is None:
            start = sized(ORIGIN_TOPIC) + sized(source[0]) + sized(ORIGIN_PARTITION) + sized(b"%d" % source[1])
            start = made[source] = start + sized(ORIGIN_OFFSET)
        text = b"%d" % offset
        result.append(start + _VARINTS[len(text)] + text + end)
    return result


def header_columns(column: "pa.Array") -> list[tuple[int, bytes]]:
    """Of each row how many headers it has, and these encoded one after the other."""
    if column.null_count == len(column):
        return [(0, b"")] * len(column)
    starts = _offsets(column, "q" if "large" in str(column.type) else "i")
    first, last = starts[0], starts[-1]
    items = column.values.slice(first, last - first)
    names, contents = binaries(items.field(0)), binaries(items.field(1))
    each = [sized(name) + sized(content) for name, content in zip(names, contents, strict=True)]
    valid = column.is_valid().to_pylist() if column.null_count else None
    result = []
    for row, (start, end) in enumerate(pairwise(starts)):
        if start == end or (valid is not None and not valid[row]):
            result.append((0, b""))
        else:
            result.append((end - start, b"".join(each[start - first : end - first])))
    return result


def integers(column: "pa.Array", code: Code) -> list[int]:
    """A column of integers without nulls; `code` is "i" for 32 bits, "q" for 64."""
    if not len(column):
        return []
    numbers = memoryview(column.buffers()[1]).cast("B").cast(code)
    return numbers[column.offset : column.offset + len(column)].tolist()


def binaries(column: "pa.Array") -> list[bytes | None]:
    """A column of binary or string as bytes."""
    if not len(column):
        return []
    starts = _offsets(column, "q" if "large" in str(column.type) else "i")
    content = column.buffers()[2]
    first = starts[0]
    data = content.slice(first, starts[-1] - first).to_pybytes() if content is not None else b""
    found: list[bytes | None] = [data[start - first : end - first] for start, end in pairwise(starts)]
    if column.null_count:
        for row, valid in enumerate(column.is_valid().to_pylist()):
            if not valid:
                found[row] = None
    return found


def _offsets(column: "pa.Array", code: Code) -> list[int]:
    buffer = memoryview(column.buffers()[1]).cast("B")
    size = _SIZES[code]
    start = column.offset * size
    return buffer[start : start + (len(column) + 1) * size].cast(code).tolist()
