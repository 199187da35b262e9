"""Records that hold unique integer values: how they are built into batches and read back."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from kbroker.simulation.checker.history import TopicPartition
from kbroker.simulation.checker.index import key_of
from protocol.errors import MalformedError
from protocol.records.batch import BatchHeader, Buffer, NewRecord, body_of, crc_of, iter_headers
from protocol.records.compression import decompress
from protocol.records.control import ABORT, parse_control_type
from protocol.records.record import Record, iter_records

# The bound on one decompressed batch, in bytes.
MAX_DECOMPRESSED = 64 * 1024 * 1024
PADDING = b"."


class CorruptRecordError(Exception):
    """A fetched batch is not one that a client sent.

    `offset` is the batch's base offset and `next_offset` the next batch's offset according to the header.
    """

    tp: TopicPartition

    def __init__(self, offset: int, next_offset: int, reason: str) -> None:
        super().__init__(f"batch at offset {offset}: {reason}")
        self.offset = offset
        self.next_offset = next_offset


class ValueSource:
    """A sequence of integers, each of which is used once in a run."""

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def allocate(self, count: int) -> tuple[int, ...]:
        self._next += count
        return tuple(range(self._next - count, self._next))


@dataclass(slots=True)
class RecordShape:
    """The shape of records: up to `max_padding` bytes of padding, `keys` distinct keys (0: no key), one of `codecs`."""

    max_padding: int = 64
    keys: int = 0
    codecs: Sequence[int] = (0,)


def build_records(values: Sequence[int], at_ms: int, shape: RecordShape, random: Random) -> list[NewRecord]:
    """Build one record for each value, with random padding."""
    built: list[NewRecord] = []
    for value in values:
        key = b"key-%d" % key_of(value, shape.keys) if shape.keys else None
        built.append((at_ms, key, b"%d" % value + PADDING * int(random.random() ** 3 * shape.max_padding), ()))
    return built


def value_of(content: bytes | None) -> int:
    """Return the value in a record's content. Raises ValueError if no client sent it."""
    if not content:
        raise ValueError("a record without a value")
    return int(content.rstrip(PADDING))


@dataclass(slots=True)
class FetchedRecords:
    """The records read from one partition's fetch response.

    `reads` are (offset, value) in offset order, `next_offset` is the position to fetch next, and `epoch` the leader
    epoch of the last batch, -1 without a batch.
    """

    reads: list[tuple[int, int]]
    next_offset: int
    epoch: int = -1


def read_batches(data: Buffer, position: int, aborted: Sequence[tuple[int, int]], limit: int) -> FetchedRecords:
    """Read at most `limit` records from `position` on.

    Skips control batches, and the batches of aborted transactions; `aborted` holds (producer id, first offset). Returns
    the records before a corrupt batch; raises CorruptRecordError if the first batch is corrupt.
    """
    fetched = FetchedRecords([], position)
    try:
        _read_into(fetched, data, position, aborted, limit)
    except CorruptRecordError:
        if fetched.next_offset == position:
            raise
    return fetched


def _read_into(
    fetched: FetchedRecords, data: Buffer, position: int, aborted: Sequence[tuple[int, int]], limit: int
) -> None:
    open_aborts: dict[int, None] = {}
    pending = sorted(aborted, key=lambda transaction: transaction[1])
    try:
        for pos, header in iter_headers(data):
            if header.crc != crc_of(data, pos, header.size):
                raise CorruptRecordError(header.base_offset, header.next_offset, "wrong CRC")
            while pending and pending[0][1] <= header.last_offset:
                open_aborts[pending.pop(0)[0]] = None
            if header.next_offset <= position:
                continue
            skip = header.is_control or (header.is_transactional and header.producer_id in open_aborts)
            decoded = _decode_batch(data, pos, header)
            if header.is_control and decoded and parse_control_type(decoded[0].key) == ABORT:
                open_aborts.pop(header.producer_id, None)
            fetched.epoch = header.leader_epoch
            for record in () if skip else decoded:
                offset = header.base_offset + record.offset_delta
                if offset < position:
                    continue
                if len(fetched.reads) == limit:
                    fetched.next_offset = offset
                    return
                fetched.reads.append((offset, value_of(record.value)))
                fetched.next_offset = offset + 1
            fetched.next_offset = header.next_offset
    except (MalformedError, ValueError) as error:
        raise CorruptRecordError(fetched.next_offset, fetched.next_offset + 1, str(error)) from error


def _decode_batch(data: Buffer, pos: int, header: BatchHeader) -> list[Record]:
    body = decompress(header.codec, body_of(data, pos, header.size), MAX_DECOMPRESSED)
    return list(iter_records(body, header.count, header.base_timestamp))
