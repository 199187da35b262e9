"""What is sent: numbers, each once in a run, as records of all sizes; and how batches of them are made and read."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from kbroker.simulation.checker.compaction import key_of
from kbroker.simulation.checker.history import Place
from protocol.errors import MalformedError
from protocol.records.batch import BatchHeader, Buffer, NewRecord, body_of, crc_of, iter_headers
from protocol.records.compression import decompress
from protocol.records.control import ABORT, parse_control_type
from protocol.records.record import Record, iter_records

# What a client is willing to make of one compressed batch, in bytes.
MAX_DECOMPRESSED = 64 * 1024 * 1024
PADDING = b"."


class CorruptRecordError(Exception):
    """What the broker gave is not what anybody sent. `offset` is where the batch begins, `next_offset` what it says
    about where the next one does."""

    place: Place

    def __init__(self, offset: int, next_offset: int, reason: str) -> None:
        super().__init__(f"batch at offset {offset}: {reason}")
        self.offset = offset
        self.next_offset = next_offset


class ValueSource:
    """Gives each number once."""

    def __init__(self, first: int = 0) -> None:
        self._next = first

    def allocate(self, count: int) -> tuple[int, ...]:
        self._next += count
        return tuple(range(self._next - count, self._next))


@dataclass(slots=True)
class RecordShape:
    """How records look: padding up to so many bytes, one of so many keys (0: none), one of these codecs."""

    max_padding: int = 64
    keys: int = 0
    codecs: Sequence[int] = (0,)


def build_records(values: Sequence[int], at_ms: int, shape: RecordShape, random: Random) -> list[NewRecord]:
    """Records that hold these values; sizes are up to chance."""
    found: list[NewRecord] = []
    for value in values:
        key = b"key-%d" % key_of(value, shape.keys) if shape.keys else None
        found.append((at_ms, key, b"%d" % value + PADDING * int(random.random() ** 3 * shape.max_padding), ()))
    return found


def value_of(content: bytes | None) -> int:
    """Raises ValueError for what no client has sent."""
    if not content:
        raise ValueError("a record without a value")
    return int(content.rstrip(PADDING))


@dataclass(slots=True)
class FetchedRecords:
    """What was read of one partition's response: (offset, value) in order, where to go on, and the leader epoch of the
    last batch, -1 if there was none."""

    reads: list[tuple[int, int]]
    next_offset: int
    epoch: int = -1


def read_batches(data: Buffer, position: int, aborted: Sequence[tuple[int, int]], limit: int) -> FetchedRecords:
    """The records from a position on, at most `limit`. Control batches, and of the transactions in `aborted`
    (producer id, first offset) what they wrote, are stepped over. What comes before damage is fetched as long as there
    is something; then the damage is at the beginning, and raises CorruptRecordError."""
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
    pending = sorted(aborted, key=lambda one: one[1])
    try:
        for pos, header in iter_headers(data):
            if header.crc != crc_of(data, pos, header.size):
                raise CorruptRecordError(header.base_offset, header.next_offset, "wrong CRC")
            while pending and pending[0][1] <= header.last_offset:
                open_aborts[pending.pop(0)[0]] = None
            if header.next_offset <= position:
                continue
            skip = header.is_control or (header.is_transactional and header.producer_id in open_aborts)
            found = _decoded(data, pos, header)
            if header.is_control and found and parse_control_type(found[0].key) == ABORT:
                open_aborts.pop(header.producer_id, None)
            fetched.epoch = header.leader_epoch
            for record in () if skip else found:
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


def _decoded(data: Buffer, pos: int, header: BatchHeader) -> list[Record]:
    body = decompress(header.codec, body_of(data, pos, header.size), MAX_DECOMPRESSED)
    return list(iter_records(body, header.count, header.base_timestamp))
