"""The cleaner: what it keeps and copies, what it finds damaged, and what limits it."""

import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from random import Random

from kbroker.storage.cleaner.cleaner import ENTRY_BYTES, build_offset_map, last_batches, run
from kbroker.storage.cleaner.compaction_plan import (
    CompactionPlan,
    CompactionResult,
    decode_plan,
    decode_result,
    encode_plan,
    encode_result,
    find_log_to_clean,
)
from kbroker.storage.cleaner.source_segments import SourceSegment, Throttler
from kbroker.storage.log.log_reads import read_blocking
from kbroker.storage.log.offset_lookup import find_offset_for_timestamp
from kbroker.storage.log.transaction_index import AbortedTransaction
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from protocol.records.batch import DELETE_HORIZON, assemble_batch, build_batch, iter_headers, parse_header
from protocol.records.record import encode_record
from tests.unit.storage.cleaner.log_model import HOUR, Model, write_some
from tests.unit.support.compaction import (
    COMPACT,
    DAY,
    StoppedClock,
    compact,
    install,
    make_plan_for,
    never_sleep,
    records,
    run_plan,
)
from tests.unit.support.log_lab import NOW, Lab, append, content, forget_positions


def test_plans_and_results_survive_encoding(tmp_path: Path) -> None:
    producers = ProducerStateManager()
    producers.update(parse_header(build_batch([(NOW, b"k", b"v", ())], producer_id=3, base_sequence=0)), 0)
    marker = build_batch([(NOW, b"k", b"v", ())], producer_id=4, producer_epoch=5)
    producers.end_transaction(parse_header(marker), 1, True, 0)
    plan = CompactionPlan(
        "/d",
        (SourceSegment(0, 5, 99),),
        3,
        NOW,
        DAY,
        1000,
        4096,
        1 << 20,
        1 << 16,
        1.5,
        (AbortedTransaction(1, 2, 3, 4),),
        producers.freeze(),
    )
    decoded = decode_plan(encode_plan(plan))
    assert replace(decoded, producers=plan.producers) == plan
    assert last_batches(decoded.producers) == ({0}, {(4, 5)})
    assert decode_result(encode_result(CompactionResult(failure="why", damaged=True))) == CompactionResult(
        (), -1, "why", True
    )
    log = Lab(tmp_path, **COMPACT).open()
    write_some(log, Model(), Random(1), NOW)
    log.roll(NOW)
    actual_plan = make_plan_for(log)
    assert actual_plan is not None
    result = run_plan(log, actual_plan)
    assert len(result.cleaned) > 0
    assert decode_result(encode_result(result)) == result


def test_a_producers_last_batch_is_kept_when_its_sequence_wraps(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **COMPACT)
    log = lab.open()
    last = 2**31 - 1
    for sequence in (last - 1, 0):
        new = [(NOW, b"k", b"v", ()), (NOW, b"k", b"v", ())]
        append(log, build_batch(new, producer_id=5, producer_epoch=1, base_sequence=sequence))
    append(log, build_batch([(NOW, b"k", b"v", ())]))
    log.roll(NOW)
    assert compact(log)
    headers = [header for _, header in iter_headers(content(log))]
    assert [(header.base_offset, header.last_offset, header.count) for header in headers] == [(2, 3, 0), (4, 4, 1)]
    # When the producer has expired, the next compaction removes the empty batch.
    log.producers.remove_expired(NOW + 100 * DAY, 1)
    append(log, build_batch([(NOW, b"k", b"v", ())]))
    log.roll(NOW)
    assert compact(log)
    assert [header.base_offset for _, header in iter_headers(content(log))] == [5]


def test_the_last_batch_of_a_log_is_kept_without_its_records(tmp_path: Path) -> None:
    """Otherwise the log would not show its end offset."""
    log = Lab(tmp_path, **COMPACT).open()
    for value in (b"1", b"2", None):
        append(log, build_batch([(NOW + 5, b"k", value, ())]))
    log.roll(NOW)
    assert compact(log, NOW)
    log.cleaned_to = 0
    assert compact(log, NOW + DAY)
    (header,) = [header for _, header in iter_headers(content(log))]
    assert (header.base_offset, header.count, header.max_timestamp, header.attributes) == (2, 0, NOW + 5, 0)


def test_a_segment_that_stays_as_it_is_is_not_written_again(tmp_path: Path) -> None:
    log = Lab(tmp_path, **{**COMPACT, "segment_bytes": 3000}).open()
    for n in range(100):
        append(log, build_batch([(NOW, b"key-%d" % n, bytes(100), ())]))
    files = {segment.base_offset: (tmp_path / f"{segment.path()}").stat().st_ino for segment in log.segments}
    assert len(files) > 4
    append(log, build_batch([(NOW, b"key-%d" % log.segments[2].base_offset, b"new", ())]))
    log.roll(NOW)
    assert compact(log)
    inodes_after = {segment.base_offset: (tmp_path / f"{segment.path()}").stat().st_ino for segment in log.segments}
    changed = [base for base, number in files.items() if inodes_after.get(base) != number]
    assert log.segments[2].base_offset in changed
    assert log.segments[0].base_offset not in changed
    assert log.segments[1].base_offset not in changed
    assert len(records(log)) == 100


def test_retained_records_before_the_first_change_are_copied_unchanged(tmp_path: Path) -> None:
    log = Lab(tmp_path, **{**COMPACT, "segment_bytes": 100_000, "index_interval_bytes": 500}).open()
    for n in range(300):
        append(log, build_batch([(NOW + n, b"key-%d" % n, bytes(200), ())]))
    append(log, build_batch([(NOW, b"key-250", b"new", ())]))
    log.roll(NOW)
    before = records(log)
    assert compact(log)
    assert records(log) == {offset: record for offset, record in before.items() if offset != 250}
    for offset in range(0, 301, 7):
        forget_positions(log)
        assert parse_header(read_blocking(log, offset, 1, log.log_end_offset)).base_offset in (offset, offset + 1)
        assert find_offset_for_timestamp(log, NOW + offset, 301)[0] == offset if offset < 250 else True


def test_damage_is_reported_with_its_position_and_leaves_no_files(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **COMPACT)
    log = lab.open()
    write_some(log, Model(), Random(2), NOW)
    log.roll(NOW)
    plan = make_plan_for(log)
    assert plan is not None
    path = lab.path / f"{plan.sources[-1].base_offset:020d}.log"
    good = path.read_bytes()
    for at in (3, 11, 16, 20, 40, len(good) - 1):
        data = bytearray(good)
        data[at] ^= 0x40
        path.write_bytes(data)
        result = decode_result(run(log.disk, StoppedClock(), lambda _: None, encode_plan(plan)))
        assert result.damaged
        assert result.failure is not None
        assert f"{path} has at position" in result.failure
        assert not list(lab.path.glob("*.cleaned"))
    path.write_bytes(good[:-10])
    result = decode_result(run(log.disk, StoppedClock(), lambda _: None, encode_plan(plan)))
    assert result.damaged
    path.unlink()
    result = decode_result(run(log.disk, StoppedClock(), lambda _: None, encode_plan(plan)))
    assert (result.failure is None, result.damaged) == (False, False)


def test_damage_in_the_second_pass_leaves_no_files(tmp_path: Path) -> None:
    """The damage is in the clean part, which only the second pass reads, after it has written other segments."""
    lab = Lab(tmp_path, **{**COMPACT, "segment_bytes": 3000})
    log = lab.open()
    for n in range(100):
        append(log, build_batch([(NOW, b"key-%d" % n, bytes(100), ())]))
    log.roll(NOW)
    assert compact(log)
    for n in range(5):
        append(log, build_batch([(NOW, b"key-%d" % n, b"new", ())]))
    log.roll(NOW)
    plan = make_plan_for(log)
    assert plan is not None
    path = lab.path / f"{plan.sources[2].base_offset:020d}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    files = lab.files()
    assert decode_result(run(log.disk, StoppedClock(), lambda _: None, encode_plan(plan))).damaged
    assert lab.files() == files


def test_a_body_without_valid_records_is_damage(tmp_path: Path) -> None:
    """Header validation accepts it while the topic is not compacted."""
    lab = Lab(tmp_path, **COMPACT)
    log = lab.open()
    body = encode_record(0, 0, b"k", b"v") + b"more"
    append(log, assemble_batch(body, count=1, last_offset_delta=0, base_timestamp=NOW, max_timestamp=NOW))
    log.roll(NOW)
    plan = make_plan_for(log)
    assert plan is not None
    result = decode_result(run(log.disk, StoppedClock(), lambda _: None, encode_plan(plan)))
    assert result.damaged
    assert result.failure is not None
    assert "4 bytes remain" in result.failure


def test_a_batch_larger_than_a_chunk_is_compacted(tmp_path: Path) -> None:
    log = Lab(tmp_path, **{**COMPACT, "segment_bytes": 1 << 20}).open()
    for n in range(4):
        append(log, build_batch([(NOW, b"a", bytes([n]) * 50_000, ()), (NOW, b"%d" % n, bytes(50_000), ())]))
    log.roll(NOW)
    assert compact(log)
    assert list(records(log)) == [1, 3, 5, 6, 7]


def test_the_rate_limit_is_respected(tmp_path: Path) -> None:
    class Clock(StoppedClock):
        ms = 0

        def mono_ms(self) -> int:
            return self.ms

    clock = Clock()

    def sleep(seconds: float) -> None:
        assert seconds > 0
        clock.ms += int(seconds * 1000) + 1

    log = Lab(tmp_path, **COMPACT).open()
    write_some(log, Model(), Random(3), NOW)
    log.roll(NOW)
    plan = make_plan_for(log)
    assert plan is not None
    size = sum(source.size for source in plan.sources)
    result = decode_result(run(log.disk, clock, sleep, encode_plan(replace(plan, rate=1000.0))))
    transferred = 2 * size + sum(cleaned.size for cleaned in result.cleaned)
    assert transferred <= clock.ms < 1.5 * transferred + 10


def test_memory_for_keys_is_bounded(tmp_path: Path) -> None:
    """ENTRY_BYTES is the bound of an entry, whatever the keys are."""
    log = Lab(tmp_path, **{**COMPACT, "segment_bytes": 1 << 24}).open()
    keys = 20_000
    for n in range(0, keys, 200):
        new = [(NOW, (b"%031d" if k % 2 else b"%0200d") % (n + k), b"", ()) for k in range(200)]
        append(log, build_batch(new))
    log.roll(NOW)
    plan = make_plan_for(log)
    assert plan is not None
    for share in (1.0, 0.7, 0.4):
        limit = int(keys * ENTRY_BYTES * share)
        tracemalloc.start()
        offsets, cleaned_to = build_offset_map(
            log.disk, replace(plan, map_bytes=limit), Throttler(None, StoppedClock(), never_sleep)
        )
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert abs(len(offsets) - keys * share) <= 200
        assert cleaned_to == len(offsets)
        assert peak < limit + (1 << 18), "the map, a batch and a chunk"
    assert sys.getsizeof(b"x" * 31) <= 64


def test_retention_deletes_compacted_segments(tmp_path: Path) -> None:
    """With cleanup.policy=compact,delete compacted segments expire as others do."""
    lab = Lab(tmp_path, **{**COMPACT, "cleanup_policy": ("compact", "delete"), "retention_ms": DAY})
    log = lab.open()
    model = Model()
    write_some(log, model, Random(4), NOW)
    log.roll(NOW)
    assert compact(log)
    write_some(log, model, Random(5), NOW + DAY)
    log.roll(NOW)
    assert log.enforce_retention(NOW + DAY + HOUR, log.log_end_offset) > 0
    assert log.log_start_offset > 0
    assert all(timestamp > NOW + HOUR for timestamp, _, _ in records(log).values())
    kept = records(log)
    assert compact(log, NOW + DAY + HOUR)
    assert records(log).items() <= kept.items()
    assert log.cleaned_to == log.active.base_offset


def test_a_log_start_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    log = Lab(tmp_path, **COMPACT).open()
    append(log, build_batch([(NOW, b"%d" % n, b"v", ()) for n in range(6)]))
    append(log, build_batch([(NOW, b"5", b"w", ())]))
    log.delete_records(3)
    log.roll(NOW)
    assert compact(log)
    assert log.log_start_offset == 3
    assert [offset for offset in records(log) if offset >= 3] == [3, 4, 6]
    assert [offset for (offset,) in [(o,) for o in records(log)] if offset >= 3] == [3, 4, 6]


def test_delete_horizons_are_set_once(tmp_path: Path) -> None:
    log = Lab(tmp_path, **COMPACT).open()
    append(log, build_batch([(NOW, b"k", None, ()), (NOW, b"l", b"v", ())]))
    append(log, build_batch([(NOW, b"m", b"v", ())]))
    for now_ms in (NOW, NOW + HOUR, NOW + 2 * HOUR):
        append(log, build_batch([(NOW, b"x", b"v", ())]))
        log.roll(NOW)
        assert compact(log, now_ms)
        headers = [header for _, header in iter_headers(content(log))]
        assert [header.base_timestamp for header in headers if header.attributes & DELETE_HORIZON] == [NOW + DAY]
    install(log, CompactionResult((), log.cleaned_to))
    assert find_log_to_clean(log, NOW, log.log_end_offset) is None


def test_a_log_is_compacted_below_the_recovery_point_of_the_checkpoint_file_only(tmp_path: Path) -> None:
    """Recovery reads the log from that point on, and takes the gaps between compacted segments for damage."""
    lab = Lab(tmp_path, **COMPACT)
    log = lab.open()
    for value in (b"v", b"w"):
        append(log, build_batch([(NOW, b"key", value, ())]))
        log.roll(NOW)
    # The process is killed: which leader epochs are durable is no longer known.
    log = lab.open(0)
    log.complete_flush(log.durability.flush_blocking(log.log_end_offset))
    assert (log.recovery_point, log.durable_recovery_point) == (2, 0)
    assert not compact(log)
    # The next checkpoint syncs them, although there are no new records.
    log.durability.checkpoint()
    assert log.durable_recovery_point == 2
    assert compact(log)
    assert list(records(log)) == [1]
    log = lab.open(log.durable_recovery_point, checkpointed=True)
    assert list(records(log)) == [1]
