"""Which segments expire when, and what happens to their files."""

from pathlib import Path

import pytest

from kbroker.common import KafkaError
from kbroker.runtime.real_disk import RealDisk
from kbroker.storage import file_names
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import read
from protocol.errors import ErrorCode
from tests.unit.support.log_lab import NOW, Lab, append, batch

DAY = 24 * 3600 * 1000


def log_of_days(lab: Lab, days: int) -> Log:
    """Return a log with a segment per day, the oldest of them `days` old at NOW."""
    log = lab.open(now_ms=NOW - days * DAY)
    for day in range(days, 0, -1):
        append(log, batch(2, 100, NOW - day * DAY))
        if day > 1:
            log.roll(NOW)
    return log


def base_offsets(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def test_segments_expire_when_their_newest_record_is_too_old(tmp_path: Path) -> None:
    lab = Lab(tmp_path, retention_ms=3 * DAY)
    log = log_of_days(lab, 6)
    assert log.enforce_retention(NOW - DAY, log.log_end_offset) == 2
    assert base_offsets(log) == [4, 6, 8, 10]
    assert log.log_start_offset == 4
    assert log.enforce_retention(NOW - DAY, log.log_end_offset) == 0


def test_time_retention_keeps_what_is_not_committed(tmp_path: Path) -> None:
    log = log_of_days(Lab(tmp_path, retention_ms=DAY), 6)
    assert log.enforce_retention(NOW, 3) == 1
    assert log.log_start_offset == 2


def test_when_all_segments_expire_an_empty_one_remains(tmp_path: Path) -> None:
    lab = Lab(tmp_path, retention_ms=DAY // 2)
    log = log_of_days(lab, 3)
    assert log.enforce_retention(NOW, 6) == 3
    assert (base_offsets(log), log.log_start_offset, log.log_end_offset, log.size_bytes) == ([6], 6, 6, 0)
    assert log.enforce_retention(NOW + 9 * DAY, 6) == 0
    assert append(log, batch(1)) == 6


def test_the_snapshot_that_stays_behind_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a checkpoint has written the snapshot without a sync, retention writes it again."""
    synced: dict[str, bool] = {}
    real = RealDisk.write_atomic

    def write_atomic(disk: RealDisk, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        synced[path] = sync
        real(disk, path, data, sync=sync)

    monkeypatch.setattr(RealDisk, "write_atomic", write_atomic)
    lab = Lab(tmp_path, retention_ms=DAY)
    log = lab.open()
    append(log, batch(2, 100, NOW, producer_id=7, producer_epoch=0, base_sequence=0))
    log.durability.checkpoint()
    snapshot = file_names.segment_file(log.directory, 2, file_names.SNAPSHOT)
    assert synced[snapshot] is False
    assert log.enforce_retention(NOW + 9 * DAY, 2) == 1
    assert synced[snapshot] is True


def test_retention_ms_of_minus_one_is_no_limit(tmp_path: Path) -> None:
    log = log_of_days(Lab(tmp_path, retention_ms=-1), 5)
    assert log.enforce_retention(NOW + 1000 * DAY, log.log_end_offset) == 0


def test_records_without_timestamps_age_with_their_file(tmp_path: Path) -> None:
    lab = Lab(tmp_path, retention_ms=DAY)
    log = lab.open()
    append(log, batch(1, timestamp=-1))
    written_ms = lab.disk.mtime_ms(log.active.path())
    assert log.enforce_retention(written_ms + DAY, 1) == 0
    assert log.enforce_retention(written_ms + DAY + 1, 1) == 1


def test_unsynced_segments_do_not_expire(tmp_path: Path) -> None:
    """A power loss before their files are renamed would leave them torn, in front of synced segments."""
    lab = Lab(tmp_path, retention_ms=DAY)
    log = lab.open(now_ms=NOW - 3 * DAY)
    lab.background.hold = True
    for _ in range(3):
        append(log, batch(2, 100, NOW - 3 * DAY))
        log.roll(NOW)
    log.complete_flush(log.durability.flush_blocking(3))
    log.delete_records(6)
    assert log.enforce_retention(NOW, 6) == 1
    assert base_offsets(log) == [2, 4, 6]
    log.complete_flush(log.durability.flush_blocking(6))
    assert log.enforce_retention(NOW, 6) == 2
    assert base_offsets(log) == [6]


def test_segments_expire_while_the_rest_of_the_log_is_large_enough(tmp_path: Path) -> None:
    size = len(batch(2, 100))
    for limit, remaining in ((0, 0), (1, 1), (size, 1), (size + 1, 2), (3 * size, 3), (99 * size, 5), (-1, 5)):
        log = log_of_days(Lab(tmp_path / str(limit), retention_ms=-1, retention_bytes=limit), 5)
        log.enforce_retention(NOW, log.log_end_offset)
        assert log.size_bytes == remaining * size, limit


def test_deleted_records_free_whole_segments_even_of_compacted_topics(tmp_path: Path) -> None:
    lab = Lab(tmp_path, cleanup_policy=("compact",), retention_ms=0, retention_bytes=0)
    log = log_of_days(lab, 5)
    assert log.enforce_retention(NOW, 10) == 0
    log.delete_records(5)
    assert log.log_start_offset == 5
    assert log.enforce_retention(NOW, 10) == 2
    assert (base_offsets(log), log.log_start_offset) == ([4, 6, 8], 5)
    log.delete_records(3)
    assert log.log_start_offset == 5


def test_epochs_begin_with_the_log(tmp_path: Path) -> None:
    lab = Lab(tmp_path, retention_ms=DAY)
    log = lab.open()
    for epoch in range(4):
        append(log, batch(1, timestamp=NOW), epoch=epoch)
    log.delete_records(2)
    assert log.epochs.entries == [(2, 2), (3, 3)]
    assert (lab.path / "leader-epoch-checkpoint").read_text() == "0\n2\n2 2\n3 3\n"


def test_files_are_renamed_at_once_and_unlinked_later(tmp_path: Path) -> None:
    lab = Lab(tmp_path, retention_ms=DAY, file_delete_delay_ms=60_000)
    log = log_of_days(lab, 3)
    log.durability.checkpoint()
    deleted = {f"{base:020d}{suffix}" for base in (0, 2) for suffix in (".log", ".index", ".timeindex")}
    assert deleted < set(lab.files())
    log.enforce_retention(NOW + 1, log.log_end_offset)
    assert not deleted & set(lab.files())
    assert {name + ".deleted" for name in deleted} < set(lab.files())
    assert [delay for delay, _, _ in lab.background.delayed] == [60_000]
    lab.background.run_delayed()
    assert lab.files(".deleted") == []
    assert f"{2:020d}.snapshot" not in lab.files()


def test_a_restart_unlinks_renamed_files(tmp_path: Path) -> None:
    lab = Lab(tmp_path, retention_ms=DAY)
    log = log_of_days(lab, 3)
    log.enforce_retention(NOW + 1, log.log_end_offset)
    assert lab.files(".deleted")
    log = lab.open()
    assert lab.files(".deleted") == []
    assert (log.log_start_offset, log.log_end_offset) == (4, 6)


def test_a_reader_may_finish_with_a_deleted_file(tmp_path: Path) -> None:
    lab = Lab(tmp_path, retention_ms=DAY)
    log = log_of_days(lab, 3)
    first = log.segments[0]
    file = first.open_blocking()
    log.enforce_retention(NOW + 1, log.log_end_offset)
    lab.background.run_delayed()
    assert len(file.pread(100, 0)) == 100
    with pytest.raises(KafkaError) as error:
        read(log, 0, 100, log.log_end_offset)
    assert error.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
