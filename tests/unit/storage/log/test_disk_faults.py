"""Disks that are full, fail, or become read-only."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.common import Buffer, KafkaError
from kbroker.runtime.real_disk import RealDisk, RealFile
from kbroker.storage.log.log_reads import read, read_blocking
from protocol.errors import ErrorCode
from tests.unit.support.log_lab import NOW, Lab, append, batch, content, fill


class FaultyFile(RealFile):
    """Fails when its disk says so."""

    disk: "FaultyDisk"
    path: str

    def append(self, data: Buffer, /) -> int:
        room = self.disk.room
        if room is not None:
            allowed = min(room, len(data))
            self.disk.room = room - allowed
            if allowed < len(data):
                if allowed == 0:
                    raise OSError(errno.ENOSPC, "full")
                return super().append(memoryview(data)[:allowed])
        self.disk.check("append", self.path)
        return super().append(data)

    def pread(self, size: int, offset: int, /) -> bytes:
        self.disk.check("read", self.path)
        return super().pread(size, offset)

    def pread_reused(self, size: int, offset: int, /) -> memoryview:
        self.disk.check("read", self.path)
        return super().pread_reused(size, offset)

    def pread_nowait(self, size: int, offset: int, /) -> memoryview | None:
        self.disk.check("read", self.path)
        if self.disk.cold:
            return None
        data = super().pread_nowait(size, offset)
        return data if data is None or self.disk.short is None else data[: self.disk.short]

    def fdatasync(self) -> None:
        self.disk.syncs += 1
        self.disk.check("sync", self.path)
        super().fdatasync()

    def truncate(self, size: int, /) -> None:
        self.disk.check("truncate", self.path)
        super().truncate(size)


class FaultyDisk(RealDisk):
    """`room`: bytes that can still be appended; `broken`: errno of the operations that fail; `cold`: nothing is in
    memory; `short`: only the first bytes of a read are."""

    def __init__(self) -> None:
        super().__init__()
        self.room: int | None = None
        self.broken: dict[str, int] = {}
        self.cold = False
        self.short: int | None = None
        self.syncs = 0

    def check(self, operation: str, path: str) -> None:
        if operation in self.broken:
            raise OSError(self.broken[operation], f"{operation} of {path}")

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        if create:
            self.check("create", path)
        file = super().open(path, create=create, write=write)
        faulty = FaultyFile(file._fd, file._file_system)
        file._fd = -1
        faulty.disk, faulty.path = self, path
        return faulty

    def write_atomic(self, path: str, data: bytes | bytearray, *, sync: bool = True) -> None:
        if self.room is not None and self.room < len(data):
            raise OSError(errno.ENOSPC, "full")
        self.check("write", path)
        super().write_atomic(path, data, sync=sync)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def lab(tmp_path: Path, disk: FaultyDisk) -> Lab:
    return Lab(tmp_path, disk, segment_bytes=10_000, index_interval_bytes=256)


def error_code_of(action: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        action()
    return error.value.code


@pytest.mark.parametrize("room", [0, 1, 60, 61, 100])
def test_a_full_disk_keeps_complete_batches_and_rejects_appends_until_there_is_room(
    lab: Lab, disk: FaultyDisk, room: int
) -> None:
    log = lab.open()
    fill(log, 10)
    before, end = content(log), log.log_end_offset
    disk.room = room
    assert error_code_of(lambda: append(log, batch(1, 200))) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.health.full, log.health.offline, log.log_end_offset) == (True, None, end)
    assert (lab.path / f"{0:020d}.log").read_bytes() == before
    assert content(log) == before
    disk.room = 10_000
    assert error_code_of(lambda: append(log, batch(1, 1))) is ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.durability.probe_blocking()
    disk.room = None
    assert log.durability.probe_blocking()
    assert lab.files("probe") == []
    log.resume()
    assert append(log, batch(1, 200)) == end
    assert lab.open().log_end_offset == end + 1


def test_a_full_disk_at_the_first_batch(lab: Lab, disk: FaultyDisk) -> None:
    log = lab.open()
    disk.room = 10
    assert error_code_of(lambda: append(log, batch(1, timestamp=NOW))) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.room = None
    log.resume()
    assert append(log, batch(1, timestamp=NOW + 10**9)) == 0
    assert log.active.first_timestamp == NOW + 10**9


def test_a_full_disk_when_a_segment_is_to_be_created(lab: Lab, disk: FaultyDisk) -> None:
    log = lab.open()
    fill(log, 10)
    log.set_config(Lab(lab.path, segment_bytes=log.size_bytes + 10).config)
    end = log.log_end_offset
    disk.broken["create"] = errno.ENOSPC
    assert error_code_of(lambda: append(log, batch(1, 200))) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.health.full, log.health.offline, len(log.segments)) == (True, None, 1)
    disk.broken.clear()
    log.resume()
    assert append(log, batch(1, 200)) == end
    assert len(log.segments) == 2


def test_retention_makes_room_on_a_full_disk(lab: Lab, disk: FaultyDisk) -> None:
    log = lab.open()
    fill(log, 200)
    closed = len(log.segments) - 1
    assert closed > 0
    log.set_config(Lab(lab.path, retention_ms=0).config)
    disk.broken["create"] = errno.ENOSPC
    assert log.enforce_retention(NOW + 10**9, log.log_end_offset) == closed
    assert (len(log.segments), log.health.full) == (1, True)


def test_an_append_without_a_file_descriptor_fails_alone(lab: Lab, disk: FaultyDisk) -> None:
    log = lab.open()
    fill(log, 10)
    log.set_config(Lab(lab.path, segment_bytes=log.size_bytes + 10).config)
    disk.broken["create"] = errno.EMFILE
    assert error_code_of(lambda: append(log, batch(1, 200))) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.broken.clear()
    assert append(log, batch(1, 200))


def test_a_full_disk_during_background_work_loses_nothing(lab: Lab, disk: FaultyDisk) -> None:
    log = lab.open()
    fill(log, 20)
    disk.room = 0
    log.durability.checkpoint()
    assert log.health.offline is None
    assert log.recovery_point == 0
    disk.room = None
    log.durability.checkpoint()
    assert log.recovery_point == log.log_end_offset
    data = content(log)
    log = lab.open(log.recovery_point)
    assert (log.repairs, content(log)) == ([], data)


def test_a_failed_append_takes_the_log_offline(lab: Lab, disk: FaultyDisk) -> None:
    log = lab.open()
    fill(log, 5)
    disk.broken["append"] = errno.EIO
    assert error_code_of(lambda: append(log, batch(1))) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.broken.clear()
    assert log.health.offline is not None
    assert error_code_of(lambda: append(log, batch(1))) is ErrorCode.KAFKA_STORAGE_ERROR
    log.resume()
    assert error_code_of(lambda: append(log, batch(1))) is ErrorCode.KAFKA_STORAGE_ERROR
    assert lab.open().log_end_offset == log.log_end_offset


def test_a_full_disk_that_cannot_be_cut_back_takes_the_log_offline(lab: Lab, disk: FaultyDisk) -> None:
    log = lab.open()
    fill(log, 5)
    end = log.log_end_offset
    disk.room = 30
    disk.broken["truncate"] = errno.EIO
    assert error_code_of(lambda: append(log, batch(1))) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.health.offline is not None
    disk.broken.clear()
    disk.room = None
    log = lab.open()
    assert log.log_end_offset == end
    assert log.repairs


@pytest.mark.parametrize("room", [None, 30])
def test_a_read_only_file_system_rejects_appends_and_truncations_until_it_is_writable(
    lab: Lab, disk: FaultyDisk, room: int | None
) -> None:
    """`room`: a part of the batch is written before the error."""
    log = lab.open()
    fill(log, 5)
    before, end = content(log), log.log_end_offset
    disk.room = room
    disk.broken.update(dict.fromkeys(("append", "create", "truncate", "write"), errno.EROFS))
    assert error_code_of(lambda: append(log, batch(1))) is ErrorCode.KAFKA_STORAGE_ERROR
    assert (log.health.full, log.health.read_only, log.health.offline, content(log)) == (True, True, None, before)
    assert not log.durability.probe_blocking()
    disk.room = None
    disk.broken.clear()
    assert log.durability.probe_blocking()
    log.resume()
    assert (log.health.full, log.health.read_only) == (False, False)
    assert append(log, batch(1)) == end
    reopened = lab.open()
    assert (reopened.repairs, reopened.log_end_offset) == ([], end + 1)


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_the_synced_part_of_an_offline_log_can_be_read(lab: Lab, disk: FaultyDisk, operation: str) -> None:
    log = lab.open()
    fill(log, 5)
    synced = log.log_end_offset
    log.complete_flush(log.durability.flush_blocking(synced))
    fill(log, 5)
    assert log.readable_end == log.log_end_offset
    disk.broken[operation] = errno.EIO
    end = log.log_end_offset
    doing = {"append": lambda: append(log, batch(1)), "sync": lambda: log.durability.flush_blocking(end)}
    with pytest.raises((KafkaError, OSError)):
        doing[operation]()
    assert (log.health.offline is not None, log.readable_end) == (True, synced)


def test_after_a_failed_read_nothing_can_be_read(lab: Lab, disk: FaultyDisk) -> None:
    log = lab.open()
    fill(log, 5)
    log.complete_flush(log.durability.flush_blocking(log.log_end_offset))
    disk.broken["read"] = errno.EIO
    assert error_code_of(lambda: read_blocking(log, 0, 1000, log.log_end_offset)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.readable_end == 0


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_not_repeated_and_moves_no_recovery_point(lab: Lab, disk: FaultyDisk, code: int) -> None:
    log = lab.open()
    fill(log, 5)
    disk.broken["sync"] = code
    with pytest.raises(OSError, match="sync"):
        log.durability.flush_blocking(log.log_end_offset)
    assert log.health.offline is not None
    disk.broken.clear()
    disk.syncs = 0
    log.complete_flush(log.log_end_offset)
    log.durability.checkpoint()
    results: list[bool] = []
    log.durability.close(True, results.append)
    assert (log.recovery_point, disk.syncs, results) == (0, 0, [False])


def test_a_failed_sync_in_the_background_takes_the_log_offline(lab: Lab, disk: FaultyDisk) -> None:
    log = lab.open()
    disk.broken["sync"] = errno.EIO
    with pytest.raises(KafkaError):
        fill(log, 200)
    assert log.health.offline is not None
    assert log.recovery_point == 0


def test_a_failed_sync_makes_a_close_unclean(lab: Lab, disk: FaultyDisk) -> None:
    log = lab.open()
    fill(log, 5)
    disk.broken["sync"] = errno.EIO
    results: list[bool] = []
    log.durability.close(True, results.append)
    assert results == [False]


@pytest.mark.parametrize("read", [read, read_blocking])
def test_a_failed_read_takes_the_log_offline(lab: Lab, disk: FaultyDisk, read: Callable[..., object]) -> None:
    log = lab.open()
    fill(log, 5)
    disk.broken["read"] = errno.EIO
    assert error_code_of(lambda: read(log, 0, 1000, log.log_end_offset)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert log.health.offline is not None


def test_a_cold_read_needs_a_thread(lab: Lab, disk: FaultyDisk) -> None:
    log = lab.open()
    fill(log, 100)
    disk.cold = True
    for offset in range(log.log_end_offset):
        assert read(log, offset, 500, log.log_end_offset) is None
        assert read_blocking(log, offset, 500, log.log_end_offset)


@pytest.mark.parametrize("short", [1, 50, 61, 200, 1000])
def test_the_part_in_memory_is_served(lab: Lab, disk: FaultyDisk, short: int) -> None:
    log = lab.open()
    fill(log, 20)
    all_bytes = content(log)
    disk.short = short
    first = batch(1, 10)
    data = read(log, 0, 100_000, log.log_end_offset)
    if short < len(first):
        assert data is None
    else:
        assert data is not None
        assert len(data) <= short
        assert all_bytes.startswith(bytes(data))
        assert len(data) >= len(first)
