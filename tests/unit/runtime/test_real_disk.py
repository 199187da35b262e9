"""RealDisk on the file system of the tests."""

import errno
import os
from pathlib import Path

import pytest

from kbroker.runtime import real_disk
from kbroker.runtime.real_disk import RWF_NOWAIT, RealDisk


@pytest.fixture
def disk() -> RealDisk:
    return RealDisk()


def test_an_append_after_a_truncation_goes_to_the_new_end(disk: RealDisk, tmp_path: Path) -> None:
    path = f"{tmp_path}/f"
    file = disk.open(path, create=True)
    assert file.append(b"hello ") == 6
    assert file.append(memoryview(b"world")) == 5
    assert file.pread(100, 3) == b"lo world"
    file.truncate(6)
    assert file.append(bytearray(b"all")) == 3
    file.fdatasync()
    file.start_writeback(0, 9)
    assert (disk.read(path), file.size(), disk.size(path)) == (b"hello all", 9, 9)
    assert disk.open(path, create=True).size() == 9, "an existing file is kept"


def test_an_absent_file_is_not_created(disk: RealDisk, tmp_path: Path) -> None:
    for action in (disk.open, disk.read, disk.size, disk.unlink):
        with pytest.raises(FileNotFoundError):
            action(f"{tmp_path}/f")
    disk.rmtree(f"{tmp_path}/d")


@pytest.mark.skipif(not RWF_NOWAIT, reason="the system has no RWF_NOWAIT")
def test_written_data_is_read_from_the_page_cache(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", create=True)
    file.append(b"0123456789")
    data = file.pread_nowait(4, 2)
    if data is None:
        pytest.skip(f"the file system of {tmp_path} does not support RWF_NOWAIT")
    assert data == b"2345"
    assert file.pread_nowait(10, 8) == b"89"
    assert file.pread_nowait(10, 10) == b""


@pytest.mark.skipif(not RWF_NOWAIT, reason="the system has no RWF_NOWAIT")
def test_the_buffer_of_a_large_read_is_reused_without_references(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", create=True)
    for letter in (b"a", b"b", b"c"):
        file.append(letter * 500_000)
    first = file.pread_nowait(500_000, 0)
    if first is None:
        pytest.skip(f"the file system of {tmp_path} does not support RWF_NOWAIT")
    part = memoryview(first)[10:20]
    memory = first.obj
    del first
    second = file.pread_nowait(500_000, 500_000)
    assert part == b"a" * 10
    assert second == b"b" * 500_000
    assert second.obj is not memory
    part.release()
    del part
    third = file.pread_nowait(500_000, 1_000_000)
    assert third == b"c" * 500_000
    assert third.obj is not second.obj
    del memory, second, third
    references = [file.pread_nowait(500_000, 0) for _ in range(20)]
    assert len({id(data.obj) for data in references if data is not None}) == 20, (
        "also of more reads than there are reused buffers"
    )


@pytest.mark.parametrize(("code", "again"), [(errno.EAGAIN, True), (errno.EOPNOTSUPP, False), (errno.EINVAL, False)])
def test_rwf_nowait_is_not_retried_where_it_is_not_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, again: bool
) -> None:
    tries = 0
    read = os.preadv

    def preadv(fd: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        nonlocal tries
        if not flags:
            return read(fd, buffers, offset)
        tries += 1
        raise OSError(code, "no")

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr("kbroker.runtime.real_disk.RWF_NOWAIT", 8)
    disk = RealDisk()
    for name in "fg":
        file = disk.open(f"{tmp_path}/{name}", create=True)
        file.append(b"0123456789")
        assert file.pread_nowait(4, 2) == (None if again else b"2345")
        assert file.pread_nowait(10, 1 << 20) is None
    assert tries == (4 if again else 1)


def test_a_failed_read_raises_the_error(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def preadv(*_: object) -> int:
        raise OSError(errno.EIO, "broken")

    file = disk.open(f"{tmp_path}/f", create=True)
    monkeypatch.setattr("kbroker.runtime.real_disk.RWF_NOWAIT", 8)
    disk._file_systems.clear()
    file = disk.open(f"{tmp_path}/f", create=True)
    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(OSError, match="broken"):
        file.pread_nowait(1, 0)


def test_a_file_is_closed_with_its_last_reference(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/f", create=True)
    file.append(b"x")
    disk.unlink(f"{tmp_path}/f")
    assert file.pread(1, 0) == b"x"
    descriptor = file._fd
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("sync", [True, False])
def test_files_are_replaced_atomically(disk: RealDisk, tmp_path: Path, sync: bool) -> None:
    path = f"{tmp_path}/f"
    disk.write_atomic(path, b"one", sync=sync)
    disk.write_atomic(path, b"2", sync=sync)
    assert disk.read(path) == b"2"
    assert disk.listdir(str(tmp_path)) == ["f"]


def test_directories(disk: RealDisk, tmp_path: Path) -> None:
    path = f"{tmp_path}/a/b"
    disk.makedirs(path)
    disk.makedirs(path)
    assert disk.isdir(path)
    assert disk.exists(path)
    disk.write_atomic(f"{path}/f", b"x")
    assert not disk.isdir(f"{path}/f")
    assert disk.mtime_ms(f"{path}/f") > 1_600_000_000_000
    disk.sync_dir(path)
    disk.rename(path, f"{tmp_path}/c")
    assert disk.listdir(f"{tmp_path}/c") == ["f"]
    disk.rmtree(f"{tmp_path}/c")
    assert not disk.exists(f"{tmp_path}/c")
    total, free = disk.usage(str(tmp_path))
    assert 0 < free < total


def test_a_lock_is_exclusive(disk: RealDisk, tmp_path: Path) -> None:
    path = f"{tmp_path}/.lock"
    lock = disk.lock(path)
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    lock.close()
    lock.close()
    disk.lock(path).close()


def test_sync_file_range_is_loaded_later_if_there_is_no_file_descriptor(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "too many open files")

    file = disk.open(f"{tmp_path}/f", create=True)
    file.append(b"0123456789")
    load = real_disk._load_sync_file_range
    with monkeypatch.context() as patch:
        patch.setattr(real_disk, "_load_sync_file_range", fail)
        for file_system in disk._file_systems.values():
            file_system._sync_file_range = fail
        file.start_writeback(0, 10)
        for file_system in disk._file_systems.values():
            assert file_system._sync_file_range is fail, "the next call loads it"
            file_system._sync_file_range = load
    file.start_writeback(0, 10)
