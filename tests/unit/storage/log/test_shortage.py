"""Operations that fail for lack of disk space, file descriptors or memory are retried; no log goes offline."""

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from kbroker.common import KafkaError
from kbroker.runtime.real_disk import RealDisk, RealFile
from kbroker.storage.cleaner.compaction_plan import remove_leftovers_blocking
from kbroker.storage.cleaner.segment_swap import install_result
from kbroker.storage.log.durability import RETRY_MS
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import read_blocking
from kbroker.storage.log.offset_lookup import find_offset_for_timestamp
from protocol.errors import ErrorCode
from tests.unit.storage.cleaner.test_compaction import expected
from tests.unit.support.compaction import COMPACT, make_plan_for, records, run_plan, write
from tests.unit.support.log_lab import NOW, Lab, append, batch, content, fill

NO_FILES = [errno.EMFILE, errno.ENFILE]


class ShortDisk(RealDisk):
    """A disk that fails on demand.

    `missing`: the errno of operations that need a file descriptor, None if they succeed; `left`: how many of them still
    succeed. `renames`: the errno of renames.
    """

    def __init__(self) -> None:
        super().__init__()
        self.missing: int | None = None
        self.left = 0
        self.renames: int | None = None

    def _need_descriptor(self, path: str) -> None:
        if self.missing is not None:
            self.left -= 1
            if self.left < 0:
                raise OSError(self.missing, "too many open files", path)

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        self._need_descriptor(path)
        return super().open(path, create=create, write=write)

    def read(self, path: str) -> bytes:
        self._need_descriptor(path)
        return super().read(path)

    def write_atomic(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        self._need_descriptor(path)
        super().write_atomic(path, data, sync=sync)

    def listdir(self, path: str) -> list[str]:
        self._need_descriptor(path)
        return super().listdir(path)

    def sync_dir(self, path: str) -> None:
        self._need_descriptor(path)
        super().sync_dir(path)

    def rename(self, old: str, new: str) -> None:
        if self.renames is not None:
            raise OSError(self.renames, "no room for a longer name", new)
        super().rename(old, new)


@pytest.fixture
def disk() -> ShortDisk:
    return ShortDisk()


@pytest.fixture
def lab(tmp_path: Path, disk: ShortDisk) -> Lab:
    return Lab(tmp_path, disk, segment_bytes=10_000, index_interval_bytes=256)


def is_retrying(lab: Lab) -> bool:
    return any(delay_ms == RETRY_MS for delay_ms, _, _ in lab.background.delayed)


READS: list[Callable[[Log], object]] = [
    lambda log: read_blocking(log, 0, 1000, log.log_end_offset),
    lambda log: find_offset_for_timestamp(log, NOW, log.log_end_offset),
]


@pytest.mark.parametrize("read", READS, ids=["read", "timestamp"])
@pytest.mark.parametrize("code", [*NO_FILES, errno.ENOMEM])
def test_a_read_without_a_file_descriptor_fails_once(
    lab: Lab, disk: ShortDisk, code: int, read: Callable[[Log], object]
) -> None:
    log = lab.open()
    fill(log, 200)
    log.durability.checkpoint()
    log.close_segment_files(idle_only=False)
    operations = lab.owner.shortages
    disk.missing = code
    with pytest.raises(KafkaError) as refusal:
        read(log)
    assert (refusal.value.code, log.health.offline, operations) == (ErrorCode.KAFKA_STORAGE_ERROR, None, ["read"])
    disk.missing = None
    assert read(log)


@pytest.mark.parametrize("code", NO_FILES)
def test_a_sync_that_cannot_begin_is_retried(lab: Lab, disk: ShortDisk, code: int) -> None:
    log = lab.open()
    fill(log, 5)
    disk.missing = code
    with pytest.raises(OSError, match="too many open files"):
        log.durability.flush_blocking(log.log_end_offset)
    assert (log.health.offline, log.recovery_point) == (None, 0)
    disk.missing = None
    log.complete_flush(log.durability.flush_blocking(log.log_end_offset))
    assert log.recovery_point == log.log_end_offset


def test_a_truncation_is_synced_after_a_sync_that_could_not_begin(lab: Lab, disk: ShortDisk) -> None:
    log = lab.open()
    fill(log, 200)
    log.durability.checkpoint()
    closed = log.segments[0]
    log.close_segment_files(idle_only=False)
    closed.mark_truncated()
    disk.missing = errno.EMFILE
    with pytest.raises(OSError, match="too many open files"):
        log.durability.flush_blocking(log.log_end_offset)
    assert closed.unsynced_truncation


def test_a_sync_that_failed_for_lack_of_memory_is_not_retried(
    lab: Lab, disk: ShortDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: RealFile) -> None:
        raise OSError(errno.ENOMEM, "out of memory")

    log = lab.open()
    fill(log, 5)
    monkeypatch.setattr(RealFile, "fdatasync", fail)
    with pytest.raises(OSError, match="out of memory"):
        log.durability.flush_blocking(log.log_end_offset)
    assert log.health.offline is not None


@pytest.mark.parametrize("code", NO_FILES)
def test_a_closed_segment_is_synced_when_there_are_file_descriptors(lab: Lab, disk: ShortDisk, code: int) -> None:
    log = lab.open()
    fill(log, 40)
    operations = lab.owner.shortages
    synced = log.recovery_point
    lab.background.hold = True
    log.roll(NOW)
    disk.missing = code
    lab.background.run()
    assert (log.health.offline, operations, log.recovery_point) == (None, ["background work"], synced)
    assert synced < log.log_end_offset
    disk.missing = None
    lab.background.hold = False
    log.durability.checkpoint()
    assert log.recovery_point == log.log_end_offset
    data = content(log)
    assert lab.close(log)
    log = lab.open(log.recovery_point, clean=True)
    assert (log.repairs, content(log)) == ([], data)


def test_a_background_task_without_memory_does_not_take_the_log_offline(lab: Lab) -> None:
    def fail() -> None:
        raise MemoryError

    log = lab.open()
    operations = lab.owner.shortages
    log.durability.add_task(fail, lambda _: None)
    assert (log.health.offline, operations) == (None, ["background work"])


@pytest.mark.parametrize("code", [*NO_FILES, errno.ENOMEM])
def test_an_append_without_a_file_descriptor_is_reported(lab: Lab, disk: ShortDisk, code: int) -> None:
    log = lab.open()
    fill(log, 10)
    operations = lab.owner.shortages
    log.set_config(Lab(lab.path, segment_bytes=log.size_bytes + 10).config)
    disk.missing = code
    with pytest.raises(KafkaError):
        append(log, batch(1, 200))
    assert (log.health.offline, log.health.full, operations) == (None, False, ["append"])


def test_retention_frees_a_disk_that_has_no_room_for_longer_names(lab: Lab, disk: ShortDisk) -> None:
    log = lab.open()
    fill(log, 200)
    closed = len(log.segments) - 1
    assert closed > 0
    log.set_config(Lab(lab.path, retention_bytes=0).config)
    disk.renames = errno.ENOSPC
    assert log.enforce_retention(NOW, log.log_end_offset) >= closed
    assert lab.files(".log") == [f"{segment.base_offset:020d}.log" for segment in log.segments]
    assert log.health.offline is None


def test_a_log_that_goes_offline_reports_it_once(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    log = lab.open()
    with caplog.at_level(logging.ERROR):
        log.health.read_failed(OSError(errno.EIO, "Input/output error"))
        log.health.read_failed(OSError(errno.EIO, "Input/output error"))
        lab.close(log)
    assert [record.getMessage() for record in caplog.records] == [
        'log offline until a restart partition=t-0 reason="read failed: [Errno 5] Input/output error"'
    ]


def test_a_compaction_is_installed_or_abandoned_whenever_file_descriptors_run_out(tmp_path: Path) -> None:
    outcomes = set()
    for descriptors in range(100):
        disk = ShortDisk()
        lab = Lab(tmp_path / str(descriptors), disk, **COMPACT)
        log = lab.open()
        write(log, Random(9), 60, keys=5)
        before, after = records(log), expected(records(log), log.active.base_offset)
        plan = make_plan_for(log)
        assert plan is not None
        result = run_plan(log, plan)
        log.close_segment_files(idle_only=False)
        disk.missing, disk.left = errno.EMFILE, descriptors
        done: list[bool] = []
        install_result(log, result, lambda: done.append(True))  # noqa: B023
        short = disk.left < 0
        disk.missing = None
        while is_retrying(lab):
            lab.background.run_delayed()
        assert done
        assert log.health.offline is None
        complete = log.cleaned_to == result.cleaned_to
        outcomes.add(complete)
        assert lab.files(".swap") == []
        actual = records(log)
        assert actual == after if complete else expected(before, log.active.base_offset).items() <= actual.items()
        assert actual.items() <= before.items()
        assert lab.close(log)
        remove_leftovers_blocking(log)
        log = lab.open(log.recovery_point, clean=True)
        assert (log.repairs, records(log)) == ([], actual)
        if not short:
            break
    else:
        raise AssertionError("file descriptors always ran out")
    assert outcomes == {True, False}


def test_a_log_that_is_closed_in_the_middle_of_a_replacement_is_checked_by_the_next_start(tmp_path: Path) -> None:
    for descriptors in range(100):
        disk = ShortDisk()
        lab = Lab(tmp_path / str(descriptors), disk, **COMPACT)
        log = lab.open()
        write(log, Random(9), 60, keys=5)
        before, after = records(log), expected(records(log), log.active.base_offset)
        plan = make_plan_for(log)
        assert plan is not None
        result = run_plan(log, plan)
        disk.missing, disk.left = errno.EMFILE, descriptors
        install_result(log, result, lambda: None)
        if is_retrying(lab):
            break
    else:
        raise AssertionError("no job was to be tried again")
    responses: list[bool] = []
    log.durability.close(True, responses.append)
    assert responses == []
    lab.background.run_delayed()
    assert responses == [False]
    disk.missing = None
    log = lab.open()
    assert after.items() <= records(log).items() <= before.items()
    assert lab.files(".swap") == []
