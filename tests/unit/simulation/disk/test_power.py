"""What survives a crash of a simulated disk: every outcome is one that a real disk allows, and each occurs."""

from random import Random

import pytest

from kbroker.simulation.disk.device import MachineCrashed
from kbroker.simulation.disk.directory_journal import JOURNAL_LIMIT
from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.disk.file import PAGE, SECTOR
from tests.unit.simulation.disk.crashed_disks import atomic, content, fail_sync, names, outcomes, synced_file


# Content.
def test_a_kill_loses_nothing(disk):
    disk.open("/d/f", create=True).append(b"never synced")
    disk.rename("/d/f", "/d/e/g")
    left = disk.after_crash()
    assert left.read("/d/e/g") == b"never synced"
    assert names(left) == ("/d/e/g",)
    # That does not make it durable: the power may fail next.
    assert outcomes(left, names) == {(), ("/d/f",), ("/d/e/g",)}


def test_synced_bytes_survive(disk):
    file = synced_file(disk, b"kept")
    file.append(b"more")
    assert disk.durable("/d/f") == b"kept"
    results = outcomes(disk, content)
    assert all(data[:4] == b"kept" for data in results)
    assert {b"kept", b"keptmore", b"keptm", b"kept\0\0"} <= results
    file.fdatasync()
    assert outcomes(disk, content) == {b"keptmore"} == {disk.durable("/d/f")}


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


def test_lost_pages_before_one_that_is_written_again(disk):
    file = synced_file(disk, b"")
    file.append(b"x" * (PAGE + 5))
    fail_sync(disk, file)
    file.append(b"y" * 5)
    file.fdatasync()
    tail = b"x" * 5 + b"y" * 5
    assert outcomes(disk, content) == {bytes(PAGE) + tail, b"x" * PAGE + tail}
    file.truncate(10)
    file.fdatasync()
    assert outcomes(disk, content) == {b"x" * 10} == {disk.durable("/d/f")}


def test_lost_pages_that_are_truncated(disk):
    file = synced_file(disk, b"")
    file.append(b"x" * 3 * PAGE)
    fail_sync(disk, file)
    file.fdatasync()
    # The truncation may be undone; then the pages are still lost.
    file.truncate(PAGE)
    assert any(data[2 * PAGE : 3 * PAGE] == bytes(PAGE) for data in outcomes(disk, content))
    file.fdatasync()
    file.append(b"y" * PAGE)
    file.fdatasync()
    assert {data[PAGE:] for data in outcomes(disk, content)} == {b"y" * PAGE}


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


# Directory entries.
def test_only_the_sync_of_its_directory_makes_a_name_durable(disk):
    file = disk.open("/d/f", create=True)
    file.append(b"1")
    file.fdatasync()
    disk.sync_dir("/d/e")
    disk.sync_dir("/")
    assert outcomes(disk, names) == {(), ("/d/f",)}
    assert (disk.durable("/d/f"), "/d/f" in disk.durable_paths()) == (b"", False)
    disk.sync_dir("/d")
    assert outcomes(disk, names) == {("/d/f",)}
    assert (disk.durable("/d/f"), "/d/f" in disk.durable_paths()) == (b"1", True)


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
    assert disk.durable_paths() == [".", "/", "/d", "/d/3", "/d/e", "/d/e/2", "/d/e/4"]


def test_a_renamed_directory_that_is_synced_by_its_new_name(disk):
    disk.open("/d/e/f", create=True)
    disk.rename("/d/e", "/d/g")
    disk.sync_dir("/d/g")
    assert outcomes(disk, names) == {("/d/e/f",), ("/d/g/f",)}
    assert disk.durable_paths() == [".", "/", "/d"]
    disk.sync_dir("/d")
    assert outcomes(disk, names) == {("/d/g/f",)}


def test_a_replaced_file_is_the_old_or_the_new_one(disk):
    synced_file(disk, b"old")
    disk.write_atomic("/d/f", b"new", sync=False)
    results = outcomes(disk, content)
    # A rename without a sync risks a new name for content that is not on the disk.
    assert {b"old", b"new", b""} <= results
    disk.write_atomic("/d/f", b"newer")
    assert outcomes(disk, content) == {b"newer"} == {disk.durable("/d/f")}


def test_a_tree_is_removed_entry_by_entry(disk):
    for name in ("/d/e/1", "/d/e/2"):
        disk.open(name, create=True)
    disk.sync_dir("/d/e")
    disk.rmtree("/d/e")
    assert outcomes(disk, names) == {("/d/e/1", "/d/e/2"), ("/d/e/2",), ()}


def test_the_journal_is_bounded(disk):
    for number in range(JOURNAL_LIMIT + 1):
        disk.open(f"/d/{number}", create=True)
    sizes = [len(names(disk.after_crash(True, keep_running=True))) for _ in range(20)]
    assert JOURNAL_LIMIT // 2 <= min(sizes) < max(sizes) <= JOURNAL_LIMIT + 1


def test_a_file_whose_rename_is_not_synced_is_durable_as_either_name(disk):
    file = synced_file(disk, b"0123456789", "/d/f.swap")
    disk.rename("/d/f.swap", "/d/f")
    assert disk.durable("/d/f") == b""
    assert disk.durable("/d/f", "/d/f.swap") == b"0123456789"
    assert outcomes(disk, names) == {("/d/f",), ("/d/f.swap",)}
    file.append(b"more")
    assert disk.durable("/d/f", "/d/f.swap") == b"0123456789"
    disk.rename("/d/f", "/d/g")
    assert disk.durable("/d/g", "/d/f") == b""
    disk.rename("/d/g", "/d/f")
    assert disk.durable("/d/f", "/d/f.swap") == b"", "it may also have the name /d/g"
    disk.sync_dir("/d")
    assert disk.durable("/d/f") == b"0123456789"
    disk.rename("/d/f", "/d/g")
    disk.rename("/d/g", "/d/f")
    assert disk.durable("/d/f") == b""
    disk.rename("/d/f", "/d/g")
    disk.sync_dir("/d")
    assert disk.durable("/d/g") == b"0123456789"


# Crashes.
def test_operations_on_a_dead_disk_raise(disk):
    file = synced_file(disk, b"1")
    lock = disk.lock("/d/lock")
    left = disk.after_crash()
    for operation, *arguments in (
        *((file.append, b"2"), (file.pread, 1, 0), (file.pread_nowait, 1, 0), (file.truncate, 0)),
        *((file.size,), (file.fdatasync,), (disk.write_atomic, "/d/f", b""), (disk.rename, "/d/f", "/d/g")),
        *((each, "/d/f") for each in (disk.open, disk.read, disk.size, disk.mtime_ms, disk.unlink, disk.exists)),
        *((each, "/d") for each in (disk.listdir, disk.isdir, disk.makedirs, disk.rmtree, disk.sync_dir, disk.usage)),
        (disk.lock, "/d/other"),
    ):
        with pytest.raises(MachineCrashed):
            operation(*arguments)
    lock.close()
    file.close()
    assert (left.read("/d/f"), names(left)) == (b"1", ("/d/f", "/d/lock"))
    left.lock("/d/lock")


def test_a_disk_that_keeps_running_is_independent(disk):
    file = synced_file(disk, b"1")
    file.append(b"2")
    fail_sync(disk, file)
    left = disk.after_crash(keep_running=True)
    file.append(b"3")
    disk.unlink("/d/f")
    assert (content(left), left.unwritten()) == (b"12", ["/d/f"])
    assert left.usage("/") == (1 << 40, (1 << 40) - 2)


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
