"""The batches of a topic with delayed delivery: their types, their effects on pending records, what consumers see.

Private bits of the attributes give the type of a batch:

- DELAYED: a producer's batch with delayed records. It is stored as it came, under its producer's sequences, so retries
  and transactions need nothing special. If all its records are delayed it is HIDDEN too; otherwise consumers see it
  without the delayed ones, as if it were compacted. Its max timestamp is its arrival (LOG_APPEND_TIME), from which the
  due times follow; CREATE_TIME says that its records have the timestamps of the producer. If consumers see one with a
  later timestamp, the time index must lead to it: the batch is rebuilt (AHEAD). Then its base timestamp is the arrival,
  and its max timestamp that of the records that consumers see.
- DELIVERED: each record names the stored record that it delivers. With HIDDEN the batch cancels the stored records
  instead. With HIDDEN and DELAYED it stores them again, because their segment is about to be deleted.

So the pending records follow from the log alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kbroker.queues.delay.pending_records import Pending
from kbroker.queues.record_headers import InvalidHeaderError
from kbroker.runtime.turns import yield_if_due
from protocol.errors import MalformedError
from protocol.records.batch import (
    CODEC_MASK,
    CONTROL,
    HIDDEN,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    body_of,
    build_batch,
    patch_max_timestamp,
    rebuild_batch,
)
from protocol.records.compression import compress, decompress
from protocol.records.control import find_end_marker
from protocol.records.record import (
    Header,
    Record,
    decode_record_at,
    decode_varint,
    encode_record,
    iter_records,
    skip_records,
)

SECOND_MS = 1_000

LEVEL = b"DELAY"
DELAY_SEC = b"TIMER_DELAY_SEC"
DELAY_MS = b"TIMER_DELAY_MS"
DELIVER_MS = b"TIMER_DELIVER_MS"
DELAY_HEADERS = frozenset({LEVEL, DELAY_SEC, DELAY_MS, DELIVER_MS})

# No timestamp has more digits.
_MAX_DIGITS = 18


def parse_due_time(headers: Sequence[Header], levels: Sequence[int], arrival_ms: int) -> int | None:
    """Return the due time (ms) of a record, None without a delay header. Raises InvalidHeaderError.

    `arrival_ms`: when its batch arrived. `levels`: the delays of the levels in ms. More than one delay header is an
    error even if they agree: the choice of one would be a guess.
    """
    found = [(name, value) for name, value in headers if name in DELAY_HEADERS]
    if not found:
        return None
    if len(found) > 1:
        names = ", ".join([name.decode() for name, _ in found])
        raise InvalidHeaderError(f"The record has several delay headers ({names}); it may have one.")
    name, value = found[0]
    number = _parse_number(name, value)
    if name == DELIVER_MS:
        return number
    if name == LEVEL:
        if not 1 <= number <= len(levels):
            levels_text = f"1 to {len(levels)}; leave the header out for no delay"
            raise InvalidHeaderError(f"Header DELAY is {number}; the levels are {levels_text}.")
        return arrival_ms + levels[number - 1]
    return arrival_ms + number * (SECOND_MS if name == DELAY_SEC else 1)


def _parse_number(name: bytes, value: bytes | None) -> int:
    is_number = value is not None and value.isdigit()
    if value is not None and is_number and len(value) <= _MAX_DIGITS:
        return int(value)
    shown = "null" if value is None else repr(value[:40].decode("ascii", "backslashreplace"))
    expected = f"a number of at most {_MAX_DIGITS} decimal digits" if is_number else "a number in decimal digits"
    raise InvalidHeaderError(f"Header {name.decode()} is {shown}; it must be {expected}.")


DELAYED = 0x2000
DELIVERED = 0x1000
CREATE_TIME = 0x0800
AHEAD = 0x0400
PRIVATE_BITS = HIDDEN | DELAYED | DELIVERED | CREATE_TIME | AHEAD

# The headers of delivered records: the offset of the stored record, its due time, the timestamp that it had.
FROM = b"kbroker.delayed.from"
DUE = b"kbroker.delayed.due.ms"
TIMESTAMP = b"kbroker.delayed.timestamp.ms"
# Upper bounds: the lengths of a delivered record and the headers that the delivery adds, and the lengths of a header.
_ADDED_BYTES, _HEADER_BYTES = 200, 10
# Decoding a record takes some 5 us, skipping one 0.1 us.
_DECODED_AT_ONCE, _SKIPPED_AT_ONCE = 16, 256
_REPLACED = DELAY_HEADERS | {FROM, DUE, TIMESTAMP}


class Effects(NamedTuple):
    """The changes of a batch to the pending records. `removed`: entries that it delivers, cancels or moves.

    `ends`: it ends its producer's transaction, and the transaction is `committed` or aborted.
    """

    added: list[Pending]
    removed: list[Pending]
    ends: bool = False
    committed: bool = False


NO_EFFECTS = Effects([], [])


def store_delayed(batch: bytearray | memoryview, header: BatchHeader, is_all: bool, now_ms: int) -> None:
    """Mark a producer's batch that has delayed records; `is_all`: all of its records are."""
    attributes = header.attributes | DELAYED | LOG_APPEND_TIME | (HIDDEN if is_all else 0)
    if not header.is_log_append_time:
        attributes |= CREATE_TIME
    patch_max_timestamp(batch, 0, header.size, attributes, now_ms)


def rebuild_ahead(body: Buffer, header: BatchHeader, dues: Sequence[Pending], arrival_ms: int) -> bytearray:
    """Rebuild a producer's batch of delayed and other records, of which some have timestamps after the arrival.

    `dues`: (due time, index) of the delayed ones. Raises MalformedError.
    """
    delayed = {index for _, index in dues}
    records = list(iter_records(body, header.count, header.base_timestamp))
    encoded = [
        encode_record(index, record.timestamp - arrival_ms, record.key, record.value, record.headers)
        for index, record in enumerate(records)
    ]
    return rebuild_batch(
        header,
        compress(header.codec, b"".join(encoded)),
        count=header.count,
        base_timestamp=arrival_ms,
        max_timestamp=max([record.timestamp for index, record in enumerate(records) if index not in delayed]),
        attributes=header.attributes | DELAYED | CREATE_TIME | AHEAD,
    )


def due_time(record: Record, header: BatchHeader, levels: Sequence[int]) -> int | None:
    """Return the due time (ms) of a record of a stored batch, None if it is not delayed."""
    arrival_ms = header.base_timestamp if header.attributes & AHEAD else header.max_timestamp
    try:
        due_ms = parse_due_time(record.headers, levels, arrival_ms)
    except InvalidHeaderError:
        return None
    return due_ms if due_ms is not None and due_ms > arrival_ms else None


def has_effects(header: BatchHeader) -> bool:
    attributes = header.attributes
    return bool(attributes & (DELAYED | DELIVERED)) or bool(attributes & CONTROL)


def effects_of(batch: Buffer, body: bytes, header: BatchHeader, levels: Sequence[int]) -> Effects:
    """Return the effects of a batch of the log, in turns. `body`: its decompressed records.

    Raises MalformedError.
    """
    attributes = header.attributes
    if attributes & CONTROL:
        marker = find_end_marker(batch)
        return NO_EFFECTS if marker is None else Effects([], [], True, marker.committed)
    added: list[Pending] = []
    removed: list[Pending] = []
    is_delayed, offset = attributes & DELAYED, header.base_offset
    for record in iter_records(body, header.count, header.base_timestamp):
        if attributes & DELIVERED:
            named = _named(record)
            removed.append(named)
            due_ms: int | None = named[0]
        else:
            due_ms = due_time(record, header, levels)
        if is_delayed and due_ms is not None:
            added.append((due_ms, offset))
        offset += 1
        if not offset % _DECODED_AT_ONCE:
            yield_if_due()
    return Effects(added, removed)


def _named(record: Record) -> Pending:
    headers = dict(record.headers)
    try:
        return int(headers[DUE] or b""), int(headers[FROM] or b"")
    except (KeyError, ValueError):
        raise MalformedError("a record that delivers another one does not name it") from None


def added_entry(header: BatchHeader, record: Record | None, offset: int, levels: Sequence[int]) -> Pending | None:
    """Return the entry that a stored batch adds for its record at `offset`; None if that record is not delayed."""
    if record is None or not header.attributes & DELAYED:
        return None
    is_moved = header.attributes & DELIVERED
    due_ms = _named(record)[0] if is_moved else due_time(record, header, levels)
    return None if due_ms is None else (due_ms, offset)


def visible_batch(batch: memoryview, header: BatchHeader, max_bytes: int, levels: Sequence[int]) -> Buffer | None:
    """Return what consumers see: `batch`, without its delayed records, or None for a hidden one."""
    if header.attributes & HIDDEN:
        return None
    if not header.attributes & DELAYED:
        return batch
    body = bytes(decompress(header.codec, body_of(batch, 0, header.size), max_bytes))
    pieces, pos, max_timestamp = [], 0, -1
    for record in iter_records(body, header.count, header.base_timestamp):
        size, start = decode_varint(body, pos)
        if due_time(record, header, levels) is None:
            pieces.append(body[pos : start + size])
            max_timestamp = max(max_timestamp, record.timestamp)
        pos = start + size
    attributes = header.attributes & ~(PRIVATE_BITS | CODEC_MASK)
    if header.attributes & CREATE_TIME:
        attributes &= ~LOG_APPEND_TIME
    else:
        max_timestamp = header.max_timestamp
    return rebuild_batch(
        header,
        b"".join(pieces),
        count=len(pieces),
        base_timestamp=header.base_timestamp,
        max_timestamp=max_timestamp,
        attributes=attributes,
    )


class StoredRecord(NamedTuple):
    """A pending record as it is stored. `timestamp`: the one that consumers would see without the delay.

    `size`: an upper bound of the bytes of the delivered record. `moved_from`: its former offset if retention has moved
    it, else -1.
    """

    due_ms: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    size: int = 0
    moved_from: int = -1


def pick_records(body: bytes, header: BatchHeader, offsets: Sequence[int]) -> list[Record | None]:
    """Return the records at ascending offsets of a batch with delayed records; None for offsets that it lacks.

    The other records are skipped, which is faster than decoding them. `body`: the decompressed records. Raises
    MalformedError.
    """
    found: list[Record | None] = []
    pos, at, end = 0, header.base_offset, header.base_offset + header.count
    for offset in offsets:
        record = None
        if at <= offset < end:
            while at < offset:
                skipped = min(offset - at, _SKIPPED_AT_ONCE)
                pos = skip_records(body, pos, skipped)
                at += skipped
                yield_if_due()
            record, pos = decode_record_at(body, pos, header.base_timestamp)
            at += 1
        found.append(record)
        if not len(found) % _DECODED_AT_ONCE:
            yield_if_due()
    return found


def stored_record(entry: Pending, record: Record, header: BatchHeader) -> StoredRecord:
    timestamp, moved_from = record.timestamp, -1
    if header.attributes & DELIVERED:
        # The record was moved, and has its original timestamp in a header.
        headers = dict(record.headers)
        timestamp, moved_from = int(headers.get(TIMESTAMP) or b"-1"), int(headers.get(FROM) or b"-1")
    elif not header.attributes & CREATE_TIME:
        timestamp = header.max_timestamp
    size = _ADDED_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += _HEADER_BYTES + len(name) + len(value or b"")
    return StoredRecord(*entry, timestamp, record.key, record.value, record.headers, size, moved_from)


def build_delivery(records: Sequence[StoredRecord], now_ms: int, *, log_append_time: bool) -> bytearray:
    """Build the batch that delivers stored records. Their timestamp is the time of the delivery."""
    attributes = DELIVERED | (LOG_APPEND_TIME if log_append_time else 0)
    return build_batch(
        [(now_ms, record.key, record.value, _delivered_headers(record)) for record in records], attributes=attributes
    )


def build_move(records: Sequence[StoredRecord], now_ms: int) -> bytearray:
    """Build the hidden batch that moves pending records to the end of the log: it stores them again."""
    return build_batch(
        [
            (now_ms, record.key, record.value, (*_delivered_headers(record), (DELIVER_MS, b"%d" % record.due_ms)))
            for record in records
        ],
        attributes=HIDDEN | DELAYED | DELIVERED,
    )


def build_cancellation(entries: Sequence[Pending], now_ms: int) -> bytearray:
    """Build the hidden batch that cancels pending records."""
    return build_batch(
        [(now_ms, None, None, ((FROM, b"%d" % offset), (DUE, b"%d" % due))) for due, offset in entries],
        attributes=HIDDEN | DELIVERED,
    )


def _delivered_headers(record: StoredRecord) -> tuple[Header, ...]:
    kept = [header for header in record.headers if header[0] not in _REPLACED]
    return (
        *kept,
        (FROM, b"%d" % record.offset),
        (DUE, b"%d" % record.due_ms),
        (TIMESTAMP, b"%d" % record.timestamp),
    )


def is_transactional(header: BatchHeader) -> bool:
    return bool(header.attributes & TRANSACTIONAL) and header.producer_id >= 0
