"""The simulated disk passes the same tests as the real one."""

import errno
import os
from pathlib import Path
from random import Random

import pytest

from kbroker.runtime.disk import Disk
from kbroker.runtime.real_disk import RealDisk
from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.runtime.environment import SimClock
from kbroker.simulation.runtime.loop import SimLoop


@pytest.fixture
def loop():
    loop = SimLoop()
    yield loop
    loop.close()


@pytest.fixture(params=["simulated", "real"])
def disk(request, loop) -> Disk:
    return RealDisk() if request.param == "real" else SimDisk(SimClock(loop), Random(1))


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    path = str(tmp_path)
    disk.makedirs(path)
    return path


def raises(code: int):
    return pytest.raises(OSError, match=os.strerror(code))


def test_files(disk, root):
    path = f"{root}/file"
    with raises(errno.ENOENT):
        disk.open(path)
    file = disk.open(path, create=True)
    assert file.append(b"0123456789") == 10
    assert file.append(bytearray(b"abcdef")) == 6
    assert (file.size(), disk.size(path)) == (16, 16)
    assert [file.pread(4, 8), file.pread(100, 14), file.pread(1, 16)] == [b"89ab", b"ef", b""]
    assert file.pread_nowait(4, 0) in (None, b"0123")
    file.truncate(3)
    file.append(b"X")
    file.fdatasync()
    file.start_writeback(0, 4)
    assert disk.read(path) == b"012X"
    file.truncate(6)
    assert disk.read(path) == b"012X\0\0"
    file.close()
    reader = disk.open(path, write=False)
    assert reader.pread(2, 0) == b"01"
    for not_writable in (file, reader):
        with raises(errno.EBADF):
            not_writable.append(b"x")


def test_an_open_file_survives_its_name(disk, root):
    file = disk.open(f"{root}/file", create=True)
    file.append(b"content")
    disk.unlink(f"{root}/file")
    assert not disk.exists(f"{root}/file")
    assert file.pread(7, 0) == b"content"
    assert disk.open(f"{root}/file", create=True).size() == 0


def test_atomic_writes(disk, root):
    disk.write_atomic(f"{root}/file", b"one")
    old = disk.open(f"{root}/file")
    disk.write_atomic(f"{root}/file", b"two", sync=False)
    assert disk.read(f"{root}/file") == b"two"
    assert old.pread(10, 0) == b"one"
    disk.open(f"{root}/file.tmp", create=True).append(b"left by a crash")
    disk.write_atomic(f"{root}/file", b"three")
    assert disk.read(f"{root}/file") == b"three"
    with raises(errno.ENOENT):
        disk.write_atomic(f"{root}/none/file", b"x")
    disk.makedirs(f"{root}/dir")
    with raises(errno.EISDIR):
        disk.write_atomic(f"{root}/dir", b"x")
    assert sorted(disk.listdir(root)) == ["dir", "file"]


def test_directories(disk, root):
    disk.makedirs(f"{root}/a/b/c")
    disk.makedirs(f"{root}/a/b/c")
    disk.write_atomic(f"{root}/a/file", b"1")
    disk.write_atomic(f"{root}/a/b/deep", b"2")
    assert sorted(disk.listdir(f"{root}/a")) == ["b", "file"]
    assert [disk.isdir(f"{root}/a"), disk.isdir(f"{root}/a/file"), disk.exists(f"{root}/a/b")] == [True, False, True]
    disk.sync_dir(f"{root}/a")
    disk.rename(f"{root}/a", f"{root}/z")
    assert disk.read(f"{root}/z/b/deep") == b"2"
    assert [disk.isdir(f"{root}/z/b/c"), disk.exists(f"{root}/a")] == [True, False]
    disk.makedirs(f"{root}/full/x")
    with raises(errno.ENOTEMPTY):
        disk.rename(f"{root}/z", f"{root}/full")
    for name in ("z", "z", "full"):
        disk.rmtree(f"{root}/{name}")
    assert disk.listdir(root) == []


def test_renaming_a_file_replaces_the_other(disk, root):
    disk.write_atomic(f"{root}/old", b"1")
    disk.write_atomic(f"{root}/new", b"2")
    disk.rename(f"{root}/old", f"{root}/new")
    assert disk.listdir(root) == ["new"]
    assert disk.read(f"{root}/new") == b"1"
    with raises(errno.ENOENT):
        disk.rename(f"{root}/old", f"{root}/other")


def test_missing_files(disk, root):
    for operation in (disk.read, disk.size, disk.mtime_ms, disk.unlink, disk.listdir, disk.sync_dir):
        with pytest.raises(FileNotFoundError):
            operation(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/none/file", create=True)
    disk.write_atomic(f"{root}/file", b"")
    with pytest.raises(NotADirectoryError):
        disk.listdir(f"{root}/file")
    with pytest.raises(IsADirectoryError):
        disk.read(root)


def test_locks_and_usage(disk, root):
    lock = disk.lock(f"{root}/.lock")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/.lock")
    lock.close()
    disk.lock(f"{root}/.lock").close()
    total, free = disk.usage(root)
    assert 0 <= free <= total


# The simulated disk alone.


def test_a_full_disk_writes_a_part(loop):
    disk = SimDisk(SimClock(loop), Random(1))
    disk.capacity = 10
    file = disk.open("file", create=True)
    assert [file.append(b"1234567"), file.append(b"abcdef"), file.append(b"")] == [7, 3, 0]
    with raises(errno.ENOSPC):
        file.append(b"x")
    with raises(errno.ENOSPC):
        disk.write_atomic("other", b"x")
    assert disk.usage("file") == (10, 0)
    file.truncate(6)
    with raises(errno.ENOSPC):
        disk.write_atomic("file", b"12345")
    assert (disk.read("file"), disk.find("")) == (b"123456", ["file"])
    disk.write_atomic("file", b"1234")
    assert disk.usage("file") == (10, 6)
    # A file without a name uses no space.
    assert file.append(b"longer than that") == 6
    file.truncate(1)
    assert disk.usage("file") == (10, 6)
    disk.unlink("file")
    assert disk.usage("file") == (10, 10)
