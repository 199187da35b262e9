"""Truncation of the log of a follower."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import copytree
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.common import KafkaError
from kbroker.simulation.disk.disk import SimDisk
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import read_blocking, read_or_slice
from kbroker.storage.log.segment import BULK_BYTES, FileSlice
from kbroker.storage.log.segment_indexes import SegmentGone
from kbroker.storage.recovery.truncation import truncate_to
from protocol.errors import ErrorCode
from protocol.records.batch import iter_headers
from tests.unit.support.damaged_log import memory_lab
from tests.unit.support.log_lab import NOW, Lab, append, append_run, batch, content, fill, start_at, truncate
from tests.unit.support.replicated_log import WRITES, Stored, Write, feed, state_of, store

SMALL = {"segment_bytes": 1000, "index_interval_bytes": 200}


def committed_state_of(log: Log) -> dict[str, object]:
    log.update_high_watermark(log.log_end_offset)
    return state_of(log)


def built_so_far(stored: Stored, count: int) -> Log:
    """Return a log that has only the first batches."""
    log = memory_lab(**SMALL).open()
    data, headers = stored.run(0, count)
    log.append_as_follower(data, headers, NOW)
    return log


@settings(max_examples=60)
@given(WRITES, st.data(), st.sampled_from(["open", "checkpoint", "reopened", "clean"]))
def test_a_truncated_log_equals_one_that_was_built_only_so_far(writes: list[Write], data: Any, before: str) -> None:
    stored = store(writes)
    kept = data.draw(st.integers(0, len(stored.at)), label="batches kept")
    lab = memory_lab(**SMALL)
    log = lab.open()
    feed(log, stored, [5, 11])
    if before == "checkpoint":
        log.durability.checkpoint()
    elif before != "open":
        assert lab.close(log)
        log = lab.open(log.log_end_offset, clean=before == "clean")
    expected = built_so_far(stored, kept)
    truncate(log, stored.at[kept][1].last_offset if kept < len(stored.at) else log.log_end_offset)
    assert committed_state_of(log) == committed_state_of(expected)
    assert log.recovery_point <= log.log_end_offset
    assert log.cleaned_to <= log.log_end_offset
    # The leader's batches follow, then the log is opened again.
    feed(log, stored, [3, 8])
    assert committed_state_of(log) == committed_state_of(built_so_far(stored, len(stored.at)))
    truncate(log, expected.log_end_offset)
    assert lab.close(log)
    for clean in (True, False):
        assert committed_state_of(lab.open(log.log_end_offset, clean=clean)) == committed_state_of(expected)


def test_other_batches_follow_in_the_epoch_that_was_truncated(tmp_path: Path) -> None:
    log = Lab(tmp_path).open()
    append(log, batch(2), 3)
    append(log, batch(2), 7)
    truncate(log, 2)
    assert log.epochs.entries == [(3, 0)]
    append(log, batch(1), 7)
    assert log.epochs.entries == [(3, 0), (7, 2)]


def test_an_epoch_without_batches_is_removed_at_the_log_end(tmp_path: Path) -> None:
    """The broker was the leader in epoch 7 but appended nothing before another one was elected."""
    log = Lab(tmp_path).open()
    append(log, batch(2), 3)
    log.assign_leader_epoch(7)
    truncate(log, 5)
    assert log.epochs.entries == [(3, 0)]


def test_the_lower_recovery_point_is_durable_before_the_file_changes(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    fill(log, 20)
    log.durability.checkpoint()
    size, seen = log.size_bytes, []
    lab.owner.writes.append(lambda: seen.append((log.recovery_point, (lab.path / f"{0:020d}.log").stat().st_size)))
    truncate(log, 10)
    assert seen == [(log.log_end_offset, size)]
    seen.clear()
    append(log, batch(3))
    truncate(log, log.log_end_offset - 1)
    assert seen == []


def test_appends_do_not_resume_before_the_truncation_has_ended(tmp_path: Path) -> None:
    """A disk has space again while the truncation waits to write the lower recovery point. A file that shrinks before
    that leaves a gap after a crash, since recovery trusts what is below the recovery point."""
    lab = Lab(tmp_path, **SMALL)
    log = lab.open()
    fill(log, 40)
    log.durability.checkpoint()
    log.health.suspend()
    recovery_point, seen = log.recovery_point, []

    def resume_and_recover() -> None:
        seen.append((log.durability.probe_blocking(), log.resume()))
        copy = Lab(tmp_path / "crashed", **SMALL)
        copytree(lab.path, copy.path)
        crashed = copy.open(recovery_point)
        seen.append((crashed.log_end_offset, [header.base_offset for _, header in iter_headers(content(crashed))]))

    offsets = [header.base_offset for _, header in iter_headers(content(log))]
    lab.owner.writes.append(resume_and_recover)
    truncate(log, 10)
    assert seen == [(True, False), (recovery_point, offsets)]
    assert log.health.full
    assert log.resume()
    assert append(log, batch(1)) == log.log_end_offset - 1


def test_compacted_records_above_the_truncation_count_as_dirty(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **SMALL)
    log = lab.open()
    fill(log, 40)
    log.mark_cleaned(log.active.base_offset)
    truncate(log, log.segments[2].base_offset + 1)
    assert log.cleaned_to == log.active.base_offset == log.segments[-1].base_offset


def test_a_flush_that_began_before_the_truncation_counts_for_nothing(tmp_path: Path) -> None:
    log = Lab(tmp_path).open()
    fill(log, 10)
    target, truncations = log.log_end_offset, log.truncations
    log.durability.flush_blocking(target)
    truncate(log, 5)
    fill(log, 10)
    log.complete_flush(target, truncations)
    assert log.recovery_point == 0
    log.complete_flush(log.durability.flush_blocking(log.log_end_offset), log.truncations)
    assert log.recovery_point == log.log_end_offset


def test_a_transaction_whose_marker_is_above_the_high_watermark_stays_unstable(tmp_path: Path) -> None:
    """Its marker is in the snapshot from which the producer state is rebuilt."""
    marker = [Write(0, 1, 20, True, committed, False, 0) for committed in (None, True)]
    log = Lab(tmp_path).open()
    feed(log, store([*marker, *[Write(-1, 1, 20, False, None, False, 0)] * 3]), [])
    log.update_high_watermark(1)
    log.durability.checkpoint()
    append(log, batch(1))
    truncate(log, 5)
    assert log.producers.transactions.first_unstable_offset == 0
    log.update_high_watermark(2)
    assert log.producers.transactions.first_unstable_offset > log.log_end_offset


@pytest.mark.parametrize("offset", [0, 100])
def test_a_full_truncation_starts_anywhere(tmp_path: Path, offset: int) -> None:
    lab = Lab(tmp_path, **SMALL)
    log = lab.open()
    fill(log, 40)
    append(log, batch(1, producer_id=4, producer_epoch=0, base_sequence=0))
    log.durability.checkpoint()
    written: list[tuple[int, int]] = []
    lab.owner.writes.append(lambda: written.append((log.log_start_offset, log.recovery_point)))
    start_at(log, offset)
    assert (log.log_start_offset, log.log_end_offset, log.epochs.entries, len(log.producers)) == (offset, offset, [], 0)
    assert written == [(offset, offset)]
    assert lab.files(".log") == [f"{offset:020d}.log"]
    assert lab.files(".snapshot") == []
    assert append(log, batch(2), 9) == offset
    assert lab.close(log)
    reopened = lab.open(log.log_end_offset, clean=True, log_start=offset)
    assert (reopened.log_start_offset, reopened.log_end_offset, reopened.repairs) == (offset, offset + 2, [])
    assert reopened.epochs.entries == [(9, offset)]


@pytest.mark.parametrize("cut", [truncate, start_at])
def test_snapshots_that_a_full_disk_did_not_take_are_not_missed(
    tmp_path: Path, cut: Callable[[Log, int], None]
) -> None:
    lab = Lab(tmp_path, **SMALL)
    log = lab.open()
    *_, offset = fill(log, 40)
    log.durability.checkpoint()
    assert lab.files(".snapshot")
    for name in lab.files(".snapshot"):
        (Path(log.directory) / name).unlink()
    cut(log, offset)
    assert (log.log_end_offset, log.health.offline) == (offset, None)


def test_an_offset_before_the_first_segment_empties_the_log(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    start_at(log, 50)
    fill(log, 3)
    truncate(log, 20)
    assert (log.log_start_offset, log.log_end_offset) == (20, 20)


def test_nothing_else_changes_the_log_during_a_truncation(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **SMALL, retention_bytes=0)
    log = lab.open()
    fill(log, 40)
    lab.background.hold = True
    closed: list[bool] = []

    async def story() -> None:
        truncation = asyncio.ensure_future(truncate_to(log, 10))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert log.is_truncating
        for action in (
            lambda: append(log, batch(1)),
            lambda: append_run(log, batch(1, base_offset=log.log_end_offset)),
        ):
            with pytest.raises(KafkaError) as raised:
                action()
            assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        segments = log.segments
        assert log.enforce_retention(NOW, log.log_end_offset) == 0
        log.roll(NOW)
        log.durability.checkpoint()
        assert log.replace_segments([segments[0].base_offset], segments[0]) is None
        log.durability.close(True, closed.append)
        assert log.segments is segments
        truncation.cancel()
        for _ in range(50):
            lab.background.run()
            await asyncio.sleep(0)

    with suppress(asyncio.CancelledError):
        asyncio.run(story())
    lab.background.run()
    # The truncation is completed although its caller has gone, and then the log is closed.
    assert closed == [True]
    assert log.log_end_offset <= 10
    reopened = lab.open(log.log_end_offset, clean=True)
    lab.background.run()
    assert (reopened.log_end_offset, reopened.repairs) == (log.log_end_offset, [])


def test_a_thread_reads_on_during_truncations(tmp_path: Path) -> None:
    """The reader stays below what is truncated, as consumers do; what it reads is always what was appended there."""
    log = Lab(tmp_path, **SMALL).open()
    fill(log, 30)
    expected, stable = content(log), log.log_end_offset
    problems: list[str] = []
    done: list[bool] = []

    def read() -> None:
        while not done and not problems:
            offset, parts = 0, []
            try:
                while offset < stable:
                    data = bytes(read_blocking(log, offset, 700, stable))
                    parts.append(data)
                    offset = max(header.next_offset for _, header in iter_headers(data))
            except Exception as error:
                problems.append(repr(error))
            if b"".join(parts) != expected:
                problems.append(f"{offset} of {stable}")

    reader = Thread(target=read, daemon=True)
    reader.start()
    for _ in range(40):
        fill(log, 20)
        truncate(log, stable)
    done.append(True)
    reader.join(60)
    assert problems == []


def test_a_power_loss_brings_back_no_file_that_was_removed() -> None:
    # Without index entries, the truncation syncs no other file.
    lab = memory_lab(segment_bytes=1000, index_interval_bytes=1 << 20)
    log = lab.open()
    feed(log, store([Write(0, 3, 300, False, None, False, 0)] * 12), [])
    assert len(log.segments) > 3
    log.durability.checkpoint()
    truncate(log, 4)
    disk = lab.disk
    assert isinstance(disk, SimDisk)
    assert [path for path in disk.removed_files() if path.endswith((".log", ".snapshot"))] == []


def test_index_entries_of_removed_batches_are_removed_from_the_files(tmp_path: Path) -> None:
    """Otherwise the time index would have the timestamps of removed batches when the recovery point has passed them."""
    lab = Lab(tmp_path, index_interval_bytes=100)
    log = lab.open()
    for n in range(20):
        append(log, batch(1, 200, NOW + 1000 + n))
    log.durability.checkpoint()
    truncate(log, 5)
    assert log.active.max_timestamp == NOW + 1004
    for n in range(20):
        append(log, batch(1, 200, NOW + n))
    log.complete_flush(log.durability.flush_blocking(log.log_end_offset), log.truncations)
    reopened = lab.open(log.recovery_point)
    assert reopened.repairs == []
    assert log.active.indexes.time is not None
    assert reopened.active.indexes.time is not None
    assert reopened.active.indexes.time.offsets == log.active.indexes.time.offsets


def test_a_read_that_began_before_the_truncation_is_repeated(tmp_path: Path) -> None:
    log = Lab(tmp_path).open()
    fill(log, 10)
    segment = log.active
    assert segment.read(10, 0, True)
    truncate(log, 5)
    with pytest.raises(SegmentGone):
        segment.read(10, 0, True)


def test_a_response_that_sends_truncated_records_fails_alone(tmp_path: Path) -> None:
    log = Lab(tmp_path).open()
    append(log, batch(1))
    append(log, batch(1, BULK_BYTES))
    response = read_or_slice(log, 1, 2 * BULK_BYTES, log.log_end_offset)
    assert isinstance(response, FileSlice)
    truncate(log, 1)
    with pytest.raises(OSError, match="ends before"):
        response.read_blocking(1 << 20)
    assert log.health.offline is None
