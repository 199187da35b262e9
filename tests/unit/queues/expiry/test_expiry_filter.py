"""Which records of a batch the filter drops, compared with the definition for each record."""

from random import Random

import pytest

from kbroker.queues.expiry import ExpiryFilter
from kbroker.simulation.runtime.environment import EPOCH_MS
from protocol.errors import MalformedError
from protocol.records.batch import LOG_APPEND_TIME, build_batch, iter_batch_records, parse_header, patch_max_timestamp
from protocol.records.control import EndTransactionMarker, build_end_marker

Row = tuple[int, bytes | None, list[bytes | None]]
MIB = 1 << 20


def batch_of(rows: list[Row], codec: int = 0, append_time: int | None = None, base_offset: int = 100) -> bytearray:
    """Build a batch of (timestamp, value, values of TTL_MS)."""
    records = [
        (timestamp, b"k", value, [(b"a", b"b"), *[(b"TTL_MS", ttl) for ttl in ttls]]) for timestamp, value, ttls in rows
    ]
    data = build_batch(records, codec=codec, base_offset=base_offset)
    if append_time is not None:
        header = parse_header(data)
        patch_max_timestamp(data, 0, header.size, header.attributes | LOG_APPEND_TIME, append_time)
    return data


def kept(data: bytearray, now_ms: int, *, reads_headers: bool = True, ttl_ms: int = 0) -> list[int] | None:
    """Return the offset deltas of the records that are kept, None if the batch is dropped."""
    found = ExpiryFilter(reads_headers, ttl_ms).filter_batch(memoryview(data), parse_header(data), now_ms, MIB)
    if found is None:
        return None
    header, before = parse_header(found), parse_header(data)
    assert (header.base_offset, header.last_offset_delta) == (before.base_offset, before.last_offset_delta)
    assert header.max_timestamp == before.max_timestamp
    # A small rest is not compressed.
    assert header.codec in (before.codec, 0)
    return [record.offset_delta for record in iter_batch_records(bytes(found), header)]


def is_alive(row: Row, now_ms: int, reads_headers: bool, ttl_ms: int, newest: int, append_time: int | None) -> bool:
    timestamp, _, ttls = row
    ttl: int | None = ttl_ms or None
    if reads_headers and len(ttls) == 1 and ttls[0] is not None and ttls[0].isdigit():
        ttl = int(ttls[0])
    if append_time is not None:
        timestamp = append_time
    elif timestamp < 0:
        timestamp = newest
    return newest < 0 or ttl is None or timestamp + ttl > now_ms


@pytest.mark.parametrize("codec", range(5))
def test_random_batches(codec: int) -> None:
    random = Random(codec)
    partly = 0
    for _ in range(400):
        rows: list[Row] = []
        for _ in range(random.randrange(1, 9)):
            timestamp = random.choice([EPOCH_MS, EPOCH_MS + random.randrange(-500, 500), -1])
            ttls: list[bytes | None] = random.choice(
                [[], [], [b"100"], [b"%d" % random.randrange(1000)], [b"x"], [None], [b"1", b"1"]]
            )
            rows.append((timestamp, random.choice([b"v", b"\x0cTTL_MS\x021", None]), ttls))
        append_time = random.choice([None, None, EPOCH_MS])
        data = batch_of(rows, codec, append_time)
        newest = parse_header(data).max_timestamp
        now_ms = EPOCH_MS + random.randrange(-500, 1500)
        reads_headers, ttl_ms = random.choice([(True, 0), (True, 300), (False, 300)])
        expected = [
            index for index, row in enumerate(rows)
            if is_alive(row, now_ms, reads_headers, ttl_ms, newest, append_time)
        ]  # fmt: skip
        found = kept(data, now_ms, reads_headers=reads_headers, ttl_ms=ttl_ms)
        assert (found or []) == expected, (rows, now_ms, reads_headers, ttl_ms, append_time)
        assert (found is None) == (not expected)
        partly += 0 < len(expected) < len(rows)
    assert partly > 50


def test_a_record_expires_at_its_timestamp_plus_ttl() -> None:
    data = batch_of([(EPOCH_MS, b"v", [b"1000"])])
    assert kept(data, EPOCH_MS + 999) == [0]
    assert kept(data, EPOCH_MS + 1000) is None
    data = batch_of([(EPOCH_MS, b"v", [])])
    assert kept(data, EPOCH_MS + 999, ttl_ms=1000) == [0]
    assert kept(data, EPOCH_MS + 1000, ttl_ms=1000) is None


def test_the_largest_ttl_does_not_overflow() -> None:
    assert kept(batch_of([(EPOCH_MS, b"v", [b"%d" % ((1 << 63) - 1)])]), EPOCH_MS, ttl_ms=1) == [0]


def test_a_batch_that_is_alive_is_not_copied() -> None:
    data = memoryview(batch_of([(EPOCH_MS, b"v", [b"10"]), (EPOCH_MS, b"w", [])]))
    assert ExpiryFilter(True, 10).filter_batch(data, parse_header(data), EPOCH_MS, MIB) is data


def test_control_batches_are_kept() -> None:
    data = memoryview(build_end_marker(EndTransactionMarker(True, 0), 7, 0, EPOCH_MS))
    assert ExpiryFilter(True, 1).filter_batch(data, parse_header(data), EPOCH_MS + 100, MIB) is data


def test_damaged_records_are_reported() -> None:
    data = batch_of([(EPOCH_MS, b"v", [b"10"]), (EPOCH_MS, b"w", [])])
    data[61] = 0x7F
    with pytest.raises(MalformedError):
        kept(data, EPOCH_MS)
