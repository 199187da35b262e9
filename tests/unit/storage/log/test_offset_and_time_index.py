"""Offset and time indexes: lookups, and files in Apache Kafka's formats."""

from random import Random

import pytest

from kbroker.storage.log.indexes import (
    OffsetIndex,
    TimeIndex,
    WouldBlock,
    find_entry,
    find_entry_by_position,
    find_last_before,
)


@pytest.mark.parametrize("count", [0, 1, 2, 511, 512, 513, 5000])
def test_lookups_in_memory_and_on_disk_agree(count: int) -> None:
    random = Random(count)
    index, times = OffsetIndex(), TimeIndex()
    offset = position = timestamp = 0
    for _ in range(count):
        offset += random.randrange(1, 9)
        position += random.randrange(61, 5000)
        timestamp += random.randrange(1, 100)
        index.add(offset, position)
        times.add(timestamp, offset)
    data, times_data = index.encode(0, count), times.encode(0, count)
    assert len(data) == 8 * count
    assert list(OffsetIndex.decode(data).entries) == list(index.entries)
    assert TimeIndex.decode(times_data).offsets == times.offsets
    pairs = [(entry >> 32, entry & 0xFFFFFFFF) for entry in index.entries]

    def read(size: int, at: int) -> bytes:
        return data[at : at + size]

    def read_times(size: int, at: int) -> bytes:
        return times_data[at : at + size]

    for key in [0, 1, offset, offset + 5, *(random.randrange(offset + 2) for _ in range(100))]:
        expected = max((pair for pair in pairs if pair[0] <= key), default=None)
        entry = index.at_offset(key)
        assert (None if entry is None else (entry >> 32, entry & 0xFFFFFFFF)) == expected
        assert find_entry(read, count, key) == entry
    for key in [0, 1, position, position + 5, *(random.randrange(position + 2) for _ in range(100))]:
        expected = max((pair for pair in pairs if pair[1] <= key), default=None)
        entry = index.at_position(key)
        assert (None if entry is None else (entry >> 32, entry & 0xFFFFFFFF)) == expected
        assert find_entry_by_position(read, count, key) == entry
    stamped = list(zip(times.timestamps, times.offsets, strict=True))
    for key in [0, 1, timestamp, timestamp + 5, *(random.randrange(timestamp + 2) for _ in range(100))]:
        expected_offset = max((o for t, o in stamped if t < key), default=0)
        assert times.last_before(key) == expected_offset
        assert find_last_before(read_times, count, key) == expected_offset
    if count:
        with pytest.raises(WouldBlock):
            find_entry(lambda size, at: None, count, 1)
        with pytest.raises(ValueError, match="early"):
            find_entry(lambda size, at: b"", count, 1)


@pytest.mark.parametrize(
    "data", [b"1234567", bytes(16), b"\xff" * 8, (5 << 32 | 9).to_bytes(8) + (6 << 32 | 9).to_bytes(8)]
)
def test_damaged_offset_indexes_are_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"multiple|ascend|negative"):
        OffsetIndex.decode(data)


@pytest.mark.parametrize("data", [b"1234567", bytes(24), b"\xff" * 12])
def test_damaged_time_indexes_are_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"multiple|ascend|negative"):
        TimeIndex.decode(data)


def test_a_time_index_has_only_larger_timestamps() -> None:
    times = TimeIndex()
    for timestamp, offset in ((-1, 0), (5, 1), (5, 2), (4, 3), (6, 4)):
        times.add(timestamp, offset)
    assert list(zip(times.timestamps, times.offsets, strict=True)) == [(5, 1), (6, 4)]
