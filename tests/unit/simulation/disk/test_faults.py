"""Faults of a simulated disk: errors, short writes, bit rot, slow syncs, and files that come back."""

import errno
from random import Random

from kbroker.simulation.disk.disk import SimDisk
from tests.unit.simulation.disk.crashed_disks import atomic, names, outcomes, raises, synced_file


def test_errors_by_chance_and_by_path(disk):
    file = synced_file(disk, b"content")
    disk.faults.read = disk.faults.write = disk.faults.sync = 1.0
    for attempt in (
        lambda: file.pread(1, 0),
        lambda: file.append(b"x"),
        lambda: file.fdatasync(),
        lambda: disk.read("/d/f"),
        lambda: disk.sync_dir("/d"),
    ):
        with raises(errno.EIO):
            attempt()
    # Reads from the page cache do not fail.
    assert file.pread_nowait(1, 0) == b"c"
    disk.faults.stop()
    disk.faults.fail_next("write", lambda path: path.endswith(".index"), errno.ENOSPC)
    file.append(b"x")
    index = disk.open("/d/0.index", create=True)
    with raises(errno.ENOSPC):
        index.append(b"x")
    index.append(b"x")
    assert disk.faults.injected == {"read error": 2, "write error": 2, "sync error": 2}
    assert disk.read("/d/f") == b"contentx"


def test_an_atomic_write_that_fails_leaves_the_old_file(disk):
    synced_file(disk, b"old")
    for operation in ("write", "sync"):
        disk.faults.fail_next(operation, lambda path: path == "/d/f.tmp")
        with raises(errno.EIO):
            atomic(disk)
        assert (names(disk), disk.read("/d/f")) == (("/d/f",), b"old")
    disk.faults.fail_next("sync", lambda path: path == "/d")
    with raises(errno.EIO):
        atomic(disk)
    assert outcomes(disk, lambda left: left.size("/d/f")) == {3, 1000}


def test_short_writes(disk):
    file = disk.open("/d/f", create=True)
    disk.faults.short_write = 0.5
    written = [file.append(b"12345") for _ in range(100)]
    assert set(written) == {1, 2, 3, 4, 5}
    assert file.size() == sum(written)
    assert disk.faults.injected == {"short write": sum(size < 5 for size in written)}


def test_bit_rot_is_permanent(disk):
    synced_file(disk, b"\0" * 100)
    assert disk.flip_bit("/d/f", 7) == 7
    tp = disk.flip_bit("/d/f")
    injected = disk.faults.injected
    for left in (disk, disk.after_crash(keep_running=True), disk.after_crash(True, keep_running=True)):
        damaged = left.read("/d/f")
        assert damaged[7]
        assert damaged[tp]
        assert sum(damaged.count(1 << bit) for bit in range(8)) == 2
    assert injected == {"bit rot": 2}


def test_syncs_take_time(disk):
    file = synced_file(disk, b"1")
    disk.take_busy_ns()
    file.append(b"2")
    assert list(disk.take_busy_ns()) == [0]
    file.fdatasync()
    [busy_ns] = disk.take_busy_ns()
    assert 100_000 <= busy_ns <= 5_000_000
    assert list(disk.take_busy_ns()) == [0]


def test_syncs_are_slow_no_longer_than_the_disk_is(disk):
    file = synced_file(disk, b"1")
    disk.take_busy_ns()
    disk.faults.slow_sync_ns = 2_000_000_000
    file.fdatasync()
    disk.sync_dir("/d")
    file.fdatasync()
    steps = disk.take_busy_ns()
    assert 300_000 <= next(steps) <= 15_000_000
    assert next(steps) == 2_000_000_000
    disk.faults.slow_sync_ns = 0
    assert list(steps) == [0, 0]


def test_the_trace_of_changes(clock):
    changes = []
    disk = SimDisk(clock, Random(1))
    disk.trace = lambda *fields: changes.append(fields)
    disk.makedirs("/d")
    atomic(disk)
    disk.open("/d/f").truncate(5)
    disk.rmtree("/d")
    assert changes == [
        ("mkdir", "/d", 0),
        ("create", "/d/f.tmp", 0),
        ("write", "/d/f.tmp", 1000),
        ("sync", "/d/f.tmp", 0),
        ("rename", "/d/f.tmp", 0),
        ("sync_dir", "/d", 0),
        ("truncate", "/d/f", 5),
        ("unlink", "/d/f", 0),
        ("rmdir", "/d", 0),
    ]


def test_files_that_a_power_loss_may_bring_back(disk: SimDisk) -> None:
    disk.open("/d/a", create=True)
    disk.sync_dir("/d")
    disk.open("/d/b", create=True)
    disk.rename("/d/a", "/d/c")
    disk.unlink("/d/b")
    assert disk.removed_files() == ["/d/a", "/d/b"]
    disk.sync_dir("/d")
    assert disk.removed_files() == []


def test_a_log_file_that_is_created_may_have_old_content(disk: SimDisk) -> None:
    disk.faults.leftover = 1.0
    assert disk.open("/d/00000000000000000000.log", create=True).size() > 0
    assert disk.open("/d/00000000000000000000.index", create=True).size() == 0
    disk.faults.stop()
    assert disk.open("/d/00000000000000000007.log", create=True).size() == 0
