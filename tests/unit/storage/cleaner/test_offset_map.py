"""The inner loops of compaction agree with decoding the records one by one."""

from itertools import pairwise
from random import Random

import pytest

from kbroker.storage.cleaner.batch_filter import (
    MAX_KEY_BYTES,
    OffsetMap,
    add_keys,
    digest,
    rebase_timestamps,
    select_retained,
)
from protocol.errors import MalformedError
from protocol.records.record import Record, encode_record, iter_records
from tests.sampling import third_of

BASE = 1_000_000
# Sizes and deltas at which varints get longer.
EDGES = (0, 1, 62, 63, 64, 65, 127, 128, 8191, 8192, 20_000)
TIMES = (0, 1, 63, 64, 8191, 8192, 1 << 20, 1 << 40, -1, -64, -65, -(1 << 33))


def random_records(random: Random, count: int) -> list[Record]:
    records = []
    delta = 0
    for _ in range(count):
        size = random.choice(EDGES) if random.random() < 0.2 else random.randrange(40)
        key = (
            None if random.random() < 0.1 else b"%d" % random.randrange(8) + bytes(random.choice((0, 0, 0, 30, 31, 64)))
        )
        value = None if random.random() < 0.3 else bytes(size)
        headers = ((b"h", None), (b"i", b"v"))[: random.randrange(3)]
        records.append(Record(0, delta, random.choice(TIMES), key, value, headers))
        delta += 1 if random.random() < 0.8 else random.choice((63, 64, 8191, 8192, 100_000))
    return records


def encoded(records: list[Record], base_timestamp: int = 0) -> bytes:
    return b"".join(
        encode_record(record.offset_delta, record.timestamp - base_timestamp, record.key, record.value, record.headers)
        for record in records
    )


def map_key(key: bytes) -> bytes | int:
    return digest(key) if len(key) > MAX_KEY_BYTES else key


@pytest.mark.parametrize("seed", third_of(range(60)))
def test_add_keys_sets_the_latest_offset_of_each_key(seed: int) -> None:
    records = random_records(Random(seed), seed)
    offsets: OffsetMap = {b"other": 7}
    add_keys(encoded(records), len(records), BASE, records[-1].offset_delta if records else 0, offsets)
    expected = {map_key(record.key): BASE + record.offset_delta for record in records if record.key is not None}
    assert offsets == {b"other": 7, **expected}


@pytest.mark.parametrize("drop_tombstones", [False, True])
@pytest.mark.parametrize("seed", third_of(range(60)))
def test_select_retained_drops_superseded_records(seed: int, drop_tombstones: bool) -> None:
    random = Random(seed)
    records = random_records(random, seed)
    body = encoded(records)
    last = max([record.offset_delta for record in records], default=0)
    offsets: OffsetMap = {
        map_key(record.key): BASE + record.offset_delta for record in records if record.key is not None
    }
    for key in list(offsets):
        # A later record elsewhere; or the latest known record is an earlier one; or none is known.
        draw = random.random()
        if draw < 0.2:
            offsets[key] = BASE + last + 1
        elif draw < 0.4:
            offsets[key] = BASE - 1
        elif draw < 0.6:
            del offsets[key]
    kept_records = [
        record
        for record in records
        if record.key is not None
        and offsets.get(map_key(record.key), -1) <= BASE + record.offset_delta
        and (record.value is not None or not drop_tombstones)
    ]
    slices, kept, has_tombstones, max_timestamp = select_retained(body, len(records), BASE, offsets, drop_tombstones)
    assert kept == len(kept_records)
    assert b"".join(body[start:end] for start, end in slices) == encoded(kept_records)
    assert len(slices) == len({end for _, end in slices}) <= len(kept_records)
    assert all(end < start for (_, end), (start, _) in pairwise(slices)), "neighbours must be one slice"
    assert has_tombstones == any(record.value is None for record in kept_records)
    if kept_records:
        assert max_timestamp == max(record.timestamp for record in kept_records)
    for shift in (0, 5, -(1 << 41)):
        assert rebase_timestamps(body, slices, shift) == encoded(kept_records, -shift)


def test_every_cut_and_every_wrong_count_is_rejected() -> None:
    records = random_records(Random(5), 12)
    body = encoded(records)
    last = records[-1].offset_delta
    for end in range(len(body)):
        for walk in (
            lambda body: add_keys(body, 12, 0, last, {}),
            lambda body: select_retained(body, 12, 0, {}, False),
        ):
            with pytest.raises(MalformedError):
                walk(body[:end])
    for count in (0, 11, 13):
        with pytest.raises(MalformedError):
            add_keys(body, count, 0, last, {})
        with pytest.raises(MalformedError):
            select_retained(body, count, 0, {}, False)


@pytest.mark.parametrize("seed", third_of(range(300)))
def test_damaged_bodies_are_rejected_or_agree_with_decoding(seed: int) -> None:
    """Nothing is accepted that decoding would reject, and only MalformedError is raised."""
    random = Random(seed)
    records = random_records(random, 10)
    body = bytearray(encoded(records))
    for _ in range(random.randrange(1, 4)):
        body[random.randrange(len(body))] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))
    offsets: OffsetMap = {}
    last = records[-1].offset_delta
    try:
        add_keys(bytes(body), 10, 0, last, offsets)
    except MalformedError:
        return
    assert all(0 <= offset <= last for offset in offsets.values())
    try:
        expected = {
            map_key(record.key): record.offset_delta
            for record in iter_records(bytes(body), 10, 0)
            if record.key is not None
        }
    except MalformedError:
        # The part after the key is not decoded by add_keys.
        return
    assert offsets == expected


def test_long_keys_take_the_memory_of_short_ones() -> None:
    first, second = bytes(1 << 20), bytes((1 << 20) - 1) + b"x"
    body = encoded([Record(0, 0, 0, first, b"1"), Record(0, 1, 0, second, b"2"), Record(0, 2, 0, first, b"3")])
    offsets: OffsetMap = {}
    add_keys(body, 3, 0, 2, offsets)
    assert sorted(offsets.values()) == [1, 2]
    assert all(isinstance(key, int) and key < 1 << 128 for key in offsets)
    assert [body[start:end][-2:-1] for start, end in select_retained(body, 3, 0, offsets, False).slices] == [b"3"]
    # A short key that equals the digest of a long one is another key.
    short = digest(first).to_bytes(16, "big")
    add_keys(encoded([Record(0, 0, 0, short, b"4")]), 1, 9, 0, offsets)
    assert len(offsets) == 3
