"""Appends, rolling and reads, compared with a plain list of batches."""

from pathlib import Path
from random import Random

import pytest

from kbroker.common import KafkaError
from kbroker.storage.log.indexes import OffsetIndex, TimeIndex
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import read, read_blocking
from kbroker.storage.log.offset_lookup import find_max_timestamp, find_offset_for_timestamp
from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers, parse_header
from tests.unit.support.log_lab import NOW, Lab, append, batch, content, fill, forget_positions

SMALL = {"segment_bytes": 3000, "index_interval_bytes": 256}


class Oracle:
    """Computes the result of a read from all batches in order and the base offsets of the segments."""

    def __init__(self, log: Log) -> None:
        data = content(log)
        self.batches = [
            (header.base_offset, header.last_offset, data[position : position + header.size])
            for position, header in iter_headers(data)
        ]
        self.bases = [segment.base_offset for segment in log.segments]

    def read(self, offset: int, max_bytes: int, max_offset: int, min_one: bool) -> bytes:
        out: list[bytes] = []
        if offset >= max_offset:
            return b""
        for base, last, data in self.batches:
            if last < offset:
                continue
            crosses = bool(out) and base in self.bases
            if last >= max_offset or crosses:
                break
            if sum(map(len, out)) + len(data) > max_bytes and (out or not min_one):
                break
            out.append(data)
        return b"".join(out)


def test_append_assigns_offsets_and_patches_the_batch_in_place(tmp_path: Path) -> None:
    log = Lab(tmp_path).open()
    assert append(log, batch(3), epoch=7) == 0
    data = batch(2)
    assert append(log, data, epoch=7) == 3
    assert log.log_end_offset == 5
    header = parse_header(data)
    assert (header.base_offset, header.leader_epoch) == (3, 7)
    assert content(log)[-len(data) :] == data
    assert log.epochs.entries == [(7, 0)]
    assert log.size_bytes == len(batch(3)) + len(data)


def test_a_memoryview_is_appended_without_a_copy(tmp_path: Path) -> None:
    log = Lab(tmp_path).open()
    frame = bytearray(b"front") + batch(2) + bytearray(b"behind")
    view = memoryview(frame)[5:-6]
    log.append(view, parse_header(view), 0, NOW)
    assert content(log) == bytes(view)


@pytest.mark.parametrize("reopen", [False, True])
def test_reads_agree_with_a_list_of_batches(tmp_path: Path, reopen: bool) -> None:
    lab = Lab(tmp_path, **SMALL)
    log = lab.open()
    fill(log, 150)
    assert len(log.segments) > 5
    if reopen:
        assert lab.close(log)
        log = lab.open(log.log_end_offset, clean=True)
    oracle = Oracle(log)
    random = Random(5)
    end = log.log_end_offset
    boundaries = [base for base, _, _ in oracle.batches]
    for _ in range(1500):
        offset = random.randrange(end + 1)
        max_bytes = random.choice([0, 60, 100, 300, 1000, 3000, 100_000])
        max_offset = random.choice([end, end + 100, random.choice(boundaries), random.randrange(end + 1)])
        min_one = random.random() < 0.7
        expected = oracle.read(offset, max_bytes, max_offset, min_one)
        data = read(log, offset, max_bytes, max_offset, min_one)
        if data is None:
            data = read_blocking(log, offset, max_bytes, max_offset, min_one)
        assert bytes(data) == expected, (offset, max_bytes, max_offset, min_one)


def test_a_read_from_the_end_of_the_last_one_needs_no_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Lab(tmp_path, index_interval_bytes=256).open()
    fill(log, 400)

    def fail(*_: object) -> int:
        raise AssertionError("searched")

    data = read(log, 0, 500, log.log_end_offset)
    assert data
    offset = max(header.next_offset for _, header in iter_headers(data))
    monkeypatch.setattr("kbroker.storage.log.offset_lookup.search_segment", fail)
    while offset < log.log_end_offset:
        data = read(log, offset, 500, log.log_end_offset)
        assert data
        offset = max(header.next_offset for _, header in iter_headers(data))


def test_recent_batches_are_found_without_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Lab(tmp_path).open()
    bases = fill(log, 300)
    monkeypatch.setattr("kbroker.storage.log.offset_lookup.search_segment", None)
    for base in bases[-60:]:
        data = read(log, base, 1, log.log_end_offset)
        assert data is not None
        assert parse_header(data).base_offset == base


def test_a_closed_segment_is_opened_in_a_thread_only_and_closed_when_idle(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **SMALL)
    log = lab.open()
    fill(log, 100)
    log.close_segment_files(idle_only=True)
    log.close_segment_files(idle_only=True)
    assert log.segments[0].file is None
    assert read(log, 0, 500, log.log_end_offset) is None
    assert read_blocking(log, 0, 500, log.log_end_offset)
    assert read(log, 0, 500, log.log_end_offset)
    log.close_segment_files(idle_only=True)
    assert log.segments[0].file is not None
    log.close_segment_files(idle_only=True)
    assert log.segments[0].file is None


def test_offsets_outside_the_log_are_out_of_range(tmp_path: Path) -> None:
    log = Lab(tmp_path).open()
    fill(log, 5)
    log.delete_records(2)
    for offset in (-1, 1, log.log_end_offset + 1):
        with pytest.raises(KafkaError) as error:
            read(log, offset, 100, log.log_end_offset)
        assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert read(log, log.log_end_offset, 100, log.log_end_offset) == b""


def test_segments_roll_by_size(tmp_path: Path) -> None:
    log = Lab(tmp_path, segment_bytes=1000).open()
    data = batch(1, 200)
    for _ in range(12):
        append(log, data)
    per_segment = 1000 // len(data)
    assert [segment.base_offset for segment in log.segments] == list(range(0, 12, per_segment))
    assert all(segment.size <= 1000 for segment in log.segments)


def test_a_batch_larger_than_a_segment_is_rejected(tmp_path: Path) -> None:
    log = Lab(tmp_path, segment_bytes=1000).open()
    with pytest.raises(KafkaError) as error:
        append(log, batch(1, 1000))
    assert error.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
    assert log.log_end_offset == 0


def test_segments_roll_by_the_time_between_records(tmp_path: Path) -> None:
    log = Lab(tmp_path, segment_ms=1000).open()
    for timestamp in (NOW, NOW + 1000, NOW + 1001, NOW + 500, NOW + 2002):
        append(log, batch(1, timestamp=timestamp))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]


def test_without_timestamps_segments_roll_by_the_clock(tmp_path: Path) -> None:
    log = Lab(tmp_path, segment_ms=1000).open()
    append(log, batch(1, timestamp=-1))
    append(log, batch(1, timestamp=-1), now_ms=NOW + 1000)
    append(log, batch(1, timestamp=-1), now_ms=NOW + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_jitter_makes_segments_roll_earlier(tmp_path: Path) -> None:
    log = Lab(tmp_path, segment_ms=1000, segment_jitter_ms=900).open()
    for n in range(50):
        append(log, batch(1, timestamp=NOW + 100 * n))
    lengths = {b.base_offset - a.base_offset for a, b in zip(log.segments, log.segments[1:], strict=False)}
    assert len(lengths) > 1
    assert max(lengths) <= 11


def test_segments_roll_when_an_index_is_full(tmp_path: Path) -> None:
    log = Lab(tmp_path, segment_index_bytes=40, index_interval_bytes=0).open()
    for n in range(20):
        append(log, batch(1, timestamp=NOW + n))
    # As in Kafka, two entries of 12 bytes fill a time index with room for three; the first batch has no entry.
    assert [segment.base_offset for segment in log.segments][:3] == [0, 3, 6]
    log = Lab(tmp_path / "b", segment_index_bytes=40, index_interval_bytes=0).open()
    for _ in range(20):
        append(log, batch(1, timestamp=NOW))
    assert [segment.base_offset for segment in log.segments][:3] == [0, 6, 12]


def test_segments_roll_before_a_relative_offset_overflows(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    append(log, batch(1))
    log.log_end_offset = 2**31 - 2
    append(log, batch(2))
    append(log, batch(1))
    assert [segment.base_offset for segment in log.segments] == [0, 2**31]


def test_maybe_roll_follows_the_clock(tmp_path: Path) -> None:
    log = Lab(tmp_path, segment_ms=1000).open()
    log.maybe_roll(NOW + 5000)
    append(log, batch(1, timestamp=NOW))
    log.maybe_roll(NOW + 1000)
    assert len(log.segments) == 1
    log.maybe_roll(NOW + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_a_config_change_takes_effect_at_once(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    data = batch(1, 200)
    append(log, data)
    log.set_config(Lab(tmp_path, segment_bytes=len(data) + 10).config)
    append(log, data)
    assert len(log.segments) == 2


def test_index_files_are_kafkas(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **SMALL)
    log = lab.open()
    fill(log, 100)
    assert lab.close(log)
    data = content(log)
    headers = {header.last_offset: (position, header) for position, header in iter_headers(data)}
    start = 0
    for segment in log.segments:
        base = segment.base_offset
        index = OffsetIndex.decode((lab.path / f"{base:020d}.index").read_bytes())
        times = TimeIndex.decode((lab.path / f"{base:020d}.timeindex").read_bytes())
        assert len(index.entries) >= segment.size // 600 - 1
        for entry in index.entries:
            position, header = headers[base + (entry >> 32)]
            assert position - start == entry & 0xFFFFFFFF
            assert header.last_offset == base + (entry >> 32)
        for timestamp, offset in zip(times.timestamps, times.offsets, strict=True):
            assert headers[base + offset][1].max_timestamp == timestamp
        assert times.timestamps[-1] == segment.max_timestamp
        start += segment.size


def test_a_damaged_index_of_a_closed_segment_is_rebuilt_on_use(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **SMALL)
    log = lab.open()
    fill(log, 100)
    expected = content(log)
    assert lab.close(log)
    path = lab.path / f"{0:020d}.index"
    good = path.read_bytes()
    bad = bytearray(good)
    for n in range(0, len(bad) - 8, 8):
        bad[n + 7] ^= 1
    path.write_bytes(bad)
    log = lab.open(log.log_end_offset, clean=True)
    oracle = Oracle(log)
    assert b"".join(data for _, _, data in oracle.batches) == expected
    for base, last, data in oracle.batches[:20]:
        forget_positions(log)
        assert bytes(read_blocking(log, last, 1, log.log_end_offset)) == data, base
    log.durability.checkpoint()
    assert path.read_bytes() == good
    assert log.segments[0].indexes.offset is None


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("closed", [False, True])
def test_offsets_by_timestamp(tmp_path: Path, codec: int, closed: bool) -> None:
    lab = Lab(tmp_path, **SMALL)
    log = lab.open()
    random = Random(codec)
    records = []
    offset = 0
    for n in range(80):
        start = NOW + 50 * n + random.randrange(-200, 200)
        append(log, batch(3, 40, start, codec=codec), epoch=n // 20)
        records.extend((offset + m, start + m, n // 20) for m in range(3))
        offset += 3
    if closed:
        lab.close(log)
        log = lab.open(offset, clean=True)
    for timestamp in range(NOW - 300, NOW + 4300, 37):
        expected = next((record for record in records if record[1] >= timestamp), None)
        assert find_offset_for_timestamp(log, timestamp, offset) == expected
        if expected is not None:
            assert find_offset_for_timestamp(log, timestamp, expected[0]) is None
    largest = max(timestamp for _, timestamp, _ in records)
    assert find_max_timestamp(log) == next(record for record in records if record[1] == largest)
    log.delete_records(100)
    first = next(record for record in records if record[0] >= 100 and record[1] >= NOW)
    assert find_offset_for_timestamp(log, NOW, offset) == first


def test_offsets_by_timestamp_of_broker_stamped_batches(tmp_path: Path) -> None:
    log = Lab(tmp_path).open()
    data = batch(3, timestamp=5, attributes=8)
    header = parse_header(data)._replace(max_timestamp=NOW)
    data[35:43] = NOW.to_bytes(8, "big")
    log.append(data, header, 2, NOW)
    assert find_offset_for_timestamp(log, NOW - 10, 3) == (0, NOW, 2)
    assert find_max_timestamp(log) == (0, NOW, 2)


def test_an_empty_log_has_no_timestamps(tmp_path: Path) -> None:
    log = Lab(tmp_path).open()
    assert find_offset_for_timestamp(log, 0, 0) is None
    assert find_max_timestamp(log) is None


def test_flush_moves_the_recovery_point(tmp_path: Path) -> None:
    log = Lab(tmp_path, segment_bytes=2000).open()
    fill(log, 5)
    assert log.recovery_point == 0
    up_to = log.durability.flush_blocking(log.log_end_offset)
    fill(log, 1)
    log.complete_flush(up_to)
    assert log.recovery_point == up_to < log.log_end_offset
    fill(log, 30)
    assert log.recovery_point == log.active.base_offset, "a closed segment is synced"


def test_a_read_in_a_thread_finds_the_new_segments(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **SMALL, retention_bytes=5000)
    log = lab.open()
    fill(log, 100)
    log.close_segment_files(idle_only=True)
    log.close_segment_files(idle_only=True)
    first = log.segments[0]
    log.enforce_retention(NOW, log.log_end_offset)
    assert first.retired
    with pytest.raises(KafkaError) as error:
        read_blocking(log, 0, 100, log.log_end_offset)
    assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    offset = log.log_start_offset
    assert read_blocking(log, offset, 100, log.log_end_offset)
