"""What survives a crash of a simulated disk: every outcome is one that a real disk allows, and each occurs."""

from random import Random

import pytest

from kbroker.simulation.disk.device import MachineCrashed
from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.disk.file import PAGE, SECTOR
from tests.unit.simulation.disk.crashed_disks import atomic, content, fail_sync, names, outcomes, synced_file


def test_pages_are_lost_independently_and_torn_at_sectors(disk):
    file = synced_file(disk, b"")
    file.append(b"x" * 3 * PAGE)
    results = outcomes(disk, content)
    assert any(data[:PAGE] == bytes(PAGE) and data[PAGE : 2 * PAGE] == b"x" * PAGE for data in results)
    first_pages = [data[:PAGE] for data in results if len(data) >= PAGE]
    assert any(len({page[at : at + SECTOR] for at in range(0, PAGE, SECTOR)}) == 2 for page in first_pages)
    for data in results:
        assert all(len(set(data[at : at + SECTOR])) == 1 for at in range(0, len(data), SECTOR))


def test_a_truncation_that_was_not_synced_can_be_undone(disk):
    file = synced_file(disk, b"a" * 2 * PAGE)
    file.truncate(100)
    file.truncate(10)
    file.append(b"b" * 20)
    assert disk.durable("/d/f") == b"a" * 10
    results = outcomes(disk, content)
    assert {b"a" * 10, b"a" * 10 + b"b" * 20, b"a" * 2 * PAGE} <= results
    # The page was written in place, the truncation was not.
    assert any(data[10:30] == b"b" * 20 and data[PAGE:] == b"a" * PAGE for data in results)
    file.fdatasync()
    assert outcomes(disk, content) == {b"a" * 10 + b"b" * 20}


def test_the_sync_after_a_failed_one_writes_nothing(disk):
    """Linux marks pages whose write has failed as clean, so a second sync succeeds."""
    file = synced_file(disk, b"kept")
    file.append(b"lost")
    fail_sync(disk, file)
    file.fdatasync()
    assert (content(disk), disk.durable("/d/f"), disk.unwritten()) == (b"keptlost", b"kept", ["/d/f"])
    assert outcomes(disk, content) == {b"kept\0\0\0\0", b"keptlost"}
    # A write to the same page writes it all.
    file.append(b"!")
    file.fdatasync()
    assert outcomes(disk, content) == {b"keptlost!"}
    assert (disk.unwritten(), disk.faults.injected) == ([], {"sync error": 1})


def test_evicted_clean_pages_are_read_from_the_disk(disk):
    file = synced_file(disk, b"kept")
    file.append(b"lost")
    fail_sync(disk, file)
    file.drop_clean_pages(0)
    assert content(disk) == b"kept\0\0\0\0"
    file.append(b"x" * PAGE)
    fail_sync(disk, file)
    file.fdatasync()
    file.drop_clean_pages(PAGE)
    assert (content(disk)[:PAGE].count(b"x"), content(disk)[PAGE:]) == (PAGE - 8, bytes(8))


def test_a_power_loss_leaves_a_prefix_of_the_changes(disk):
    for name in ("/d/1", "/d/e/2", "/d/3", "/d/e/4"):
        disk.open(name, create=True)
    disk.unlink("/d/1")
    assert outcomes(disk, names) == {
        (),
        ("/d/1",),
        ("/d/1", "/d/e/2"),
        ("/d/1", "/d/3", "/d/e/2"),
        ("/d/1", "/d/3", "/d/e/2", "/d/e/4"),
        ("/d/3", "/d/e/2", "/d/e/4"),
    }
    # The sync of a directory also makes earlier changes in others durable.
    disk.sync_dir("/d/e")
    assert outcomes(disk, names) == {("/d/1", "/d/3", "/d/e/2", "/d/e/4"), ("/d/3", "/d/e/2", "/d/e/4")}


def test_a_crash_in_each_step_of_an_atomic_write(clock):
    """Create, write, sync, rename, sync the directory: the file is the old or the new one after a crash in any step."""
    crashes = []
    for changes in range(5):
        disk = SimDisk(clock, Random(changes))
        disk.makedirs("/d")
        synced_file(disk, b"old")
        disk.crash_after(changes, lambda: crashes.append(True))
        with pytest.raises(MachineCrashed):
            atomic(disk)
        assert crashes == [True] * (changes + 1)
        left = disk.after_crash()
        assert left.read("/d/f") == (b"old" if changes < 4 else b"0123456789" * 100)
        assert left.exists("/d/f.tmp") == (0 < changes < 4)
        assert outcomes(left, lambda lost: len(lost.read("/d/f"))) <= {3, 1000}
    disk = SimDisk(clock, Random(9))
    disk.makedirs("/d")
    disk.crash_after(6, lambda: None)
    atomic(disk)
    with pytest.raises(MachineCrashed):
        disk.unlink("/d/f") or disk.sync_dir("/d") or disk.sync_dir("/d")


def test_a_crash_in_a_write_leaves_a_part_of_it(clock):
    sizes = set()
    for seed in range(50):
        disk = SimDisk(clock, Random(seed))
        disk.capacity = 100
        file = disk.open("f", create=True)
        states: list[SimDisk] = []
        disk.crash_after(0, lambda disk=disk, states=states: states.append(disk.after_crash()))
        with pytest.raises(MachineCrashed):
            file.append(b"x" * 10)
        (left,) = states
        sizes.add(left.size("f"))
        assert left.usage("f") == (100, 100 - left.size("f"))
    assert {0, 10} < sizes <= set(range(11))
