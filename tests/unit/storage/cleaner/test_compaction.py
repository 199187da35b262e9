"""Compaction compared with a dictionary, and with crashes at every step."""

from pathlib import Path
from random import Random

import pytest

from kbroker.storage.log.log_reads import read_blocking
from kbroker.storage.log.offset_lookup import find_offset_for_timestamp
from protocol.records.batch import DELETE_HORIZON, build_batch, iter_batch_records, iter_headers, parse_header
from tests.unit.support.compaction import (
    COMPACT,
    DAY,
    Records,
    compact,
    install,
    make_plan_for,
    records,
    run_plan,
    write,
)
from tests.unit.support.crashing_disk import Crash, CrashingDisk
from tests.unit.support.log_lab import NOW, Lab, append, content, forget_positions


def expected(before: Records, end: int) -> Records:
    """Return the latest record of each key below `end`, and all records from `end` on."""
    latest = {key: offset for offset, (_, key, _) in before.items() if offset < end}
    return {offset: record for offset, record in before.items() if offset >= end or latest[record[1]] == offset}


def is_partly_compacted(actual: Records, before: Records, end: int) -> bool:
    """Return whether `actual` is a possible result when some segments are compacted and others are not."""
    return expected(before, end).items() <= actual.items() <= before.items()


@pytest.mark.parametrize("codec", range(5))
def test_the_latest_record_of_each_key_stays_at_its_offset(tmp_path: Path, codec: int) -> None:
    lab = Lab(tmp_path, **COMPACT)
    log = lab.open()
    random = Random(codec)
    write(log, random, 150, codec=codec)
    before, end = records(log), log.active.base_offset
    segments, size = len(log.segments), log.size_bytes
    assert segments > 3
    assert compact(log)
    assert records(log) == expected(before, end)
    assert (log.log_end_offset, log.cleaned_to) == (max(before) + 1, end)
    assert log.size_bytes < size / 2
    # Again, with new records.
    write(log, random, 150, codec=codec)
    before, end = records(log), log.active.base_offset
    assert compact(log)
    assert records(log) == expected(before, end)
    # Small segments of the first compaction were merged.
    assert len(log.segments) < segments + 3
    # A restart finds the same.
    kept = records(log)
    assert lab.close(log)
    log = lab.open(log.log_end_offset, clean=True)
    assert (records(log), log.repairs) == (kept, [])
    log = lab.open(0)
    assert (records(log), log.repairs) == (kept, [])


def test_reads_skip_removed_offsets(tmp_path: Path) -> None:
    log = Lab(tmp_path, **COMPACT, index_interval_bytes=200).open()
    write(log, Random(1), 300)
    assert compact(log)
    headers = [header for _, header in iter_headers(content(log))]
    assert sum(header.last_offset_delta + 1 for header in headers) < log.log_end_offset
    for offset in range(log.log_end_offset):
        forget_positions(log)
        header = parse_header(read_blocking(log, offset, 1, log.log_end_offset))
        assert header == next(batch for batch in headers if batch.last_offset >= offset)


def test_tombstones_are_removed_after_delete_retention(tmp_path: Path) -> None:
    log = Lab(tmp_path, **COMPACT).open()
    random = Random(2)
    write(log, random, 150)
    log.roll(NOW)
    compact(log, NOW)
    tombstones = {offset for offset, (_, key, value) in records(log).items() if value is None and key != b"key-0"}
    assert tombstones
    marked = [header for _, header in iter_headers(content(log)) if header.attributes & DELETE_HORIZON]
    assert {header.base_timestamp for header in marked} == {NOW + DAY}
    write(log, random, 60, keys=1)
    assert compact(log, NOW + DAY - 1)
    assert tombstones <= set(records(log))
    write(log, random, 60, keys=1)
    assert compact(log, NOW + DAY)
    assert not tombstones & set(records(log))


def test_timestamps_and_headers_survive(tmp_path: Path) -> None:
    log = Lab(tmp_path, **COMPACT).open()
    append(log, build_batch([(NOW, b"a", b"1", ((b"h", None),)), (NOW + 5, b"b", None, ()), (NOW + 9, b"a", b"2", ())]))
    log.roll(NOW)
    compact(log)
    data = content(log)
    header = parse_header(data)
    assert (header.base_offset, header.last_offset, header.count, header.max_timestamp) == (0, 2, 2, NOW + 9)
    assert [tuple(record) for record in iter_batch_records(data, header)] == [
        (0, 1, NOW + 5, b"b", None, ()),
        (0, 2, NOW + 9, b"a", b"2", ()),
    ]
    assert find_offset_for_timestamp(log, NOW + 6, 3) == (2, NOW + 9, 0)


def test_records_without_a_key_are_removed(tmp_path: Path) -> None:
    log = Lab(tmp_path, **COMPACT).open()
    append(log, build_batch([(NOW, None, b"1", ()), (NOW, b"k", b"2", ())]))
    log.roll(NOW)
    compact(log)
    assert list(records(log)) == [1]


def test_a_producers_last_batch_stays_without_its_records(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **COMPACT)
    log = lab.open()
    for n in range(3):
        append(log, build_batch([(NOW, b"k", b"v", ())], producer_id=5, producer_epoch=1, base_sequence=n))
    append(log, build_batch([(NOW, b"k", b"v", ())]))
    log.roll(NOW)
    compact(log)
    headers = [header for _, header in iter_headers(content(log))]
    assert [(header.base_offset, header.count) for header in headers] == [(2, 0), (3, 1)]
    for path in lab.path.glob("*.snapshot"):
        path.unlink()
    log = lab.open(0)
    assert [producer.last_sequence for producer in log.producers.active()] == [2]


def test_with_little_memory_a_log_is_compacted_in_parts(tmp_path: Path) -> None:
    log = Lab(tmp_path, **COMPACT).open()
    write(log, Random(3), 300, keys=200)
    before, end = records(log), log.active.base_offset
    rounds = 0
    while log.cleaned_to < end:
        was = log.cleaned_to
        assert compact(log, map_bytes=10_000)
        assert log.cleaned_to > was
        rounds += 1
    assert rounds > 2
    assert records(log) == expected(before, end)


def test_a_log_is_compacted_when_enough_is_dirty(tmp_path: Path) -> None:
    log = Lab(tmp_path, **COMPACT).open()
    random = Random(4)
    write(log, random, 200, keys=1000)
    assert compact(log, ratio=0.5)
    assert not compact(log, ratio=0.0)
    write(log, random, 30, keys=1000)
    assert not compact(log, ratio=0.5)
    write(log, random, 300, keys=1000)
    assert compact(log, ratio=0.5)


def test_unstable_and_young_segments_are_not_compacted(tmp_path: Path) -> None:
    log = Lab(tmp_path, **COMPACT).open()
    write(log, Random(5), 100)
    second = log.segments[1].base_offset
    assert make_plan_for(log, NOW, second - 1) is None
    task = make_plan_for(log, NOW, second)
    assert task is not None
    assert len(task.sources) == 1
    log.set_config(Lab(tmp_path, **COMPACT, min_compaction_lag_ms=1000).config)
    assert make_plan_for(log, NOW) is None
    assert make_plan_for(log, NOW + 2000) is not None


def test_retention_may_delete_a_source_meanwhile(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **COMPACT)
    log = lab.open()
    write(log, Random(7), 150)
    task = make_plan_for(log)
    assert task is not None
    result = run_plan(log, task)
    log.delete_records(log.segments[2].base_offset)
    log.enforce_retention(NOW, log.log_end_offset)
    before = records(log)
    install(log, result)
    assert log.segments[0].base_offset == log.log_start_offset
    assert is_partly_compacted(records(log), before, task.sources[-1].end_offset)
    assert [name for name in lab.files() if name.endswith((".swap", ".cleaned"))] == []


def test_readers_of_the_old_segments_are_not_disturbed(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **COMPACT)
    log = lab.open()
    write(log, Random(8), 150)
    before = records(log)
    end = log.active.base_offset
    old = log.segments[0]
    old.open_blocking()
    lab.background.hold = True
    compact(log)
    # Between the steps everything can be read, from the old or the new segments.
    for _ in range(3):
        forget_positions(log)
        log.close_segment_files(idle_only=True)
        log.close_segment_files(idle_only=True)
        assert is_partly_compacted(records(log), before, end)
        job, on_done = lab.background.held.pop(0)
        on_done(job())
    lab.background.run()
    assert records(log) == expected(before, end)


def test_a_crash_at_any_step_leaves_the_old_or_the_new_segments(tmp_path: Path) -> None:
    outcomes = set()
    for stop in range(1000):
        disk = CrashingDisk()
        lab = Lab(tmp_path / str(stop), disk, **COMPACT)
        log = lab.open()
        write(log, Random(9), 60, keys=5)
        before, end = records(log), log.active.base_offset
        after = expected(before, end)
        disk.left = stop
        try:
            compact(log)
        except Crash:
            disk.left = 1 << 60
        else:
            break
        log = lab.open(0)
        actual = records(log)
        assert actual in (before, after), stop
        outcomes.add(len(actual))
        assert log.log_end_offset == max(before) + 1
        assert [name for name in lab.files() if name.endswith((".swap", ".cleaned", ".deleted"))] == []
        log.durability.checkpoint()
        compact(log)
        assert records(log) == after
    else:
        raise AssertionError("compaction did not end")
    assert stop > 10
    assert len(outcomes) == 2
