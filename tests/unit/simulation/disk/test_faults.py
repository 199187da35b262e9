"""Faults of a simulated disk: errors, short writes, bit rot, slow syncs, and files that come back."""

import errno

from kbroker.simulation.disk.disk import SimDisk
from tests.unit.simulation.disk.crashed_disks import atomic, names, outcomes, raises, synced_file


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
