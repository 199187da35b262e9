"""What a crash leaves of a simulated disk, as stories."""

import errno
import os
from collections.abc import Callable, Iterator
from random import Random

import pytest

from kbroker.simulation.disk.directory_journal import JOURNAL_LIMIT
from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.disk.inode import PAGE, SECTOR
from kbroker.simulation.runtime.clock import SimClock
from kbroker.simulation.runtime.crash import MachineCrashed
from kbroker.simulation.runtime.loop import SimLoop

SEEDS = 200


@pytest.fixture
def clock() -> Iterator[SimClock]:
    loop = SimLoop()
    yield SimClock(loop)
    loop.close()


@pytest.fixture
def disk(clock: SimClock) -> SimDisk:
    disk = SimDisk(clock, Random(1))
    disk.makedirs("/d/e")
    disk.sync_dir("/d")
    disk.sync_dir("/")
    return disk


def raises(code: int):
    return pytest.raises(OSError, match=os.strerror(code))


def losses(disk: SimDisk, look: Callable[[SimDisk], object]) -> set[object]:
    """What is seen after one power loss or another."""
    faults = disk.faults
    seen = {look(disk.after_crash(True, keep_running=True)) for _ in range(SEEDS)}
    disk.faults = faults
    return seen


def names(disk: SimDisk) -> tuple[str, ...]:
    return tuple(disk.find(""))


def synced_file(disk: SimDisk, data: bytes, path: str = "/d/f"):
    file = disk.open(path, create=True)
    file.append(data)
    file.fdatasync()
    disk.sync_dir("/d")
    return file


# Content.


def test_a_kill_takes_nothing(disk):
    disk.open("/d/f", create=True).append(b"never synced")
    disk.rename("/d/f", "/d/e/g")
    left = disk.after_crash()
    assert left.read("/d/e/g") == b"never synced"
    assert names(left) == ("/d/e/g",)
    # It is not durable for that: the power may fail next.
    assert losses(left, names) == {(), ("/d/f",), ("/d/e/g",)}


def test_what_is_synced_stays(disk):
    file = synced_file(disk, b"kept")
    file.append(b"more")
    assert disk.durable("/d/f") == b"kept"
    seen = losses(disk, lambda left: left.read("/d/f"))
    assert all(data[:4] == b"kept" for data in seen)
    assert {b"kept", b"keptmore", b"keptm", b"kept\0\0"} <= seen
    file.fdatasync()
    assert losses(disk, lambda left: left.read("/d/f")) == {b"keptmore"} == {disk.durable("/d/f")}


def test_pages_are_lost_each_by_itself_and_torn_at_sectors(disk):
    file = synced_file(disk, b"")
    file.append(b"x" * 3 * PAGE)
    seen = losses(disk, lambda left: left.read("/d/f"))
    holes = [data for data in seen if data[:PAGE] == bytes(PAGE) and data[PAGE : 2 * PAGE] == b"x" * PAGE]
    assert holes
    torn = [data for data in seen if len({data[at : at + SECTOR] for at in range(0, PAGE, SECTOR)}) == 2]
    assert torn
    for data in seen:
        for at in range(0, len(data), SECTOR):
            assert len(set(data[at : at + SECTOR])) == 1


def test_a_truncation_that_was_not_synced_can_be_undone(disk):
    file = synced_file(disk, b"a" * 2 * PAGE)
    file.truncate(10)
    file.append(b"b" * 20)
    assert disk.durable("/d/f") == b"a" * 10
    seen = losses(disk, lambda left: left.read("/d/f"))
    assert {b"a" * 10, b"a" * 10 + b"b" * 20, b"a" * 2 * PAGE} <= seen
    # The page was written in its place, the truncation was not.
    assert any(data[10:30] == b"b" * 20 and data[PAGE:] == b"a" * PAGE for data in seen)
    file.fdatasync()
    assert losses(disk, lambda left: left.read("/d/f")) == {b"a" * 10 + b"b" * 20}


def test_a_file_cut_twice(disk):
    file = synced_file(disk, b"0123456789")
    file.truncate(8)
    file.append(b"xyz")
    file.truncate(4)
    seen = losses(disk, lambda left: left.read("/d/f"))
    assert {b"0123", b"0123456789"} <= seen
    assert {data[:4] for data in seen} == {b"0123"}


def test_the_sync_after_a_failed_one_writes_nothing(disk):
    """Linux marks the pages clean whose writing has failed, so whoever tries again is told that all is well."""
    file = synced_file(disk, b"kept")
    file.append(b"lost")
    disk.faults.fail_next("sync", lambda path: path.endswith("f"))
    with raises(errno.EIO):
        file.fdatasync()
    file.fdatasync()
    assert disk.read("/d/f") == b"keptlost"
    assert disk.durable("/d/f") == b"kept"
    assert {b"kept\0\0\0\0", b"keptlost"} == losses(disk, lambda left: left.read("/d/f"))
    # What is written to the same page takes it along.
    file.append(b"!")
    file.fdatasync()
    assert losses(disk, lambda left: left.read("/d/f")) == {b"keptlost!"}
    assert disk.faults.injected == {"sync error": 1}


def test_pages_before_one_that_is_written_again_stay_lost(disk):
    file = synced_file(disk, b"")
    file.append(b"x" * (PAGE + 5))
    disk.faults.fail_next("sync")
    with raises(errno.EIO):
        file.fdatasync()
    file.append(b"y" * 5)
    file.fdatasync()
    tail = b"x" * 5 + b"y" * 5
    assert losses(disk, lambda left: left.read("/d/f")) == {bytes(PAGE) + tail, b"x" * PAGE + tail}
    file.truncate(10)
    file.fdatasync()
    assert losses(disk, lambda left: left.read("/d/f")) == {b"x" * 10}
    assert disk.durable("/d/f") == b"x" * 10


def test_lost_pages_that_are_cut(disk):
    file = synced_file(disk, b"")
    file.append(b"x" * 3 * PAGE)
    disk.faults.fail_next("sync")
    with raises(errno.EIO):
        file.fdatasync()
    file.fdatasync()
    # What is cut off and not synced comes back as it was: lost.
    file.truncate(PAGE)
    assert any(data[2 * PAGE : 3 * PAGE] == bytes(PAGE) for data in losses(disk, lambda left: left.read("/d/f")))
    file.fdatasync()
    file.append(b"y" * PAGE)
    file.fdatasync()
    assert {data[PAGE:] for data in losses(disk, lambda left: left.read("/d/f"))} == {b"y" * PAGE}


# Names.


def test_a_name_is_durable_with_the_sync_of_its_directory_alone(disk):
    file = disk.open("/d/f", create=True)
    file.append(b"1")
    file.fdatasync()
    disk.sync_dir("/d/e")
    disk.sync_dir("/")
    assert losses(disk, names) == {(), ("/d/f",)}
    assert (disk.durable("/d/f"), "/d/f" in disk.durable_paths()) == (b"", False)
    disk.sync_dir("/d")
    assert losses(disk, names) == {("/d/f",)}
    assert (disk.durable("/d/f"), "/d/f" in disk.durable_paths()) == (b"1", True)


def test_changes_of_names_are_lost_from_the_last_to_the_first(disk):
    for name in ("/d/1", "/d/e/2", "/d/3", "/d/e/4"):
        disk.open(name, create=True)
    disk.unlink("/d/1")
    assert losses(disk, names) == {
        (),
        ("/d/1",),
        ("/d/1", "/d/e/2"),
        ("/d/1", "/d/3", "/d/e/2"),
        ("/d/1", "/d/3", "/d/e/2", "/d/e/4"),
        ("/d/3", "/d/e/2", "/d/e/4"),
    }
    # What came before is durable as well, wherever it was.
    disk.sync_dir("/d/e")
    assert losses(disk, names) == {("/d/1", "/d/3", "/d/e/2", "/d/e/4"), ("/d/3", "/d/e/2", "/d/e/4")}
    assert disk.durable_paths() == [".", "/", "/d", "/d/3", "/d/e", "/d/e/2", "/d/e/4"]


def test_a_renamed_directory_that_is_synced_by_its_new_name(disk):
    disk.open("/d/e/f", create=True)
    disk.rename("/d/e", "/d/g")
    disk.sync_dir("/d/g")
    assert losses(disk, names) == {("/d/e/f",), ("/d/g/f",)}
    assert disk.durable_paths() == [".", "/", "/d"]
    disk.sync_dir("/d")
    assert losses(disk, names) == {("/d/g/f",)}


def test_a_file_that_was_replaced_comes_back_whole(disk):
    synced_file(disk, b"old")
    disk.write_atomic("/d/f", b"new", sync=False)
    seen = losses(disk, lambda left: left.read("/d/f"))
    # The new name for content that is not there: this is what a rename without a sync risks.
    assert {b"old", b"new", b""} <= seen
    disk.write_atomic("/d/f", b"newer")
    assert losses(disk, lambda left: left.read("/d/f")) == {b"newer"} == {disk.durable("/d/f")}


def test_a_tree_is_removed_piece_by_piece(disk):
    for name in ("/d/e/1", "/d/e/2"):
        disk.open(name, create=True)
    disk.sync_dir("/d/e")
    disk.rmtree("/d/e")
    assert losses(disk, names) == {("/d/e/1", "/d/e/2"), ("/d/e/2",), ()}


def test_a_journal_is_not_endless(disk):
    for number in range(JOURNAL_LIMIT + 1):
        disk.open(f"/d/{number}", create=True)
    sizes = [len(names(disk.after_crash(True, keep_running=True))) for _ in range(20)]
    assert JOURNAL_LIMIT // 2 <= min(sizes) < max(sizes) <= JOURNAL_LIMIT + 1


# The end of a machine.


def test_a_dead_disk_is_of_no_use(disk):
    file = synced_file(disk, b"1")
    lock = disk.lock("/d/lock")
    left = disk.after_crash()
    for attempt in (
        lambda: file.append(b"2"),
        lambda: file.pread(1, 0),
        lambda: file.pread_nowait(1, 0),
        lambda: file.truncate(0),
        lambda: file.size(),
        lambda: file.fdatasync(),
        lambda: disk.open("/d/f"),
        lambda: disk.read("/d/f"),
        lambda: disk.write_atomic("/d/f", b""),
        lambda: disk.listdir("/d"),
        lambda: disk.isdir("/d"),
        lambda: disk.exists("/d"),
        lambda: disk.size("/d/f"),
        lambda: disk.mtime_ms("/d/f"),
        lambda: disk.makedirs("/d/x"),
        lambda: disk.rename("/d/f", "/d/g"),
        lambda: disk.unlink("/d/f"),
        lambda: disk.rmtree("/d"),
        lambda: disk.sync_dir("/d"),
        lambda: disk.usage("/d"),
        lambda: disk.lock("/d/other"),
    ):
        with pytest.raises(MachineCrashed):
            attempt()
    lock.close()
    file.close()
    assert (left.read("/d/f"), names(left)) == (b"1", ("/d/f", "/d/lock"))
    left.lock("/d/lock")


def test_a_ghost_goes_on_unseen(disk):
    file = synced_file(disk, b"1")
    left = disk.after_crash(keep_running=True)
    file.append(b"2")
    disk.unlink("/d/f")
    assert left.read("/d/f") == b"1"
    assert left.usage("/") == (1 << 40, (1 << 40) - 1)


def atomic(disk: SimDisk) -> None:
    disk.write_atomic("/d/f", b"0123456789" * 100)


def test_an_atomic_write_can_end_at_each_of_its_steps(clock):
    """Create, write, sync, rename, sync the directory: the file is the old one or the new one whatever happens."""
    deaths = []
    for changes in range(5):
        disk = SimDisk(clock, Random(changes))
        disk.makedirs("/d")
        synced_file(disk, b"old")
        disk.crash_after(changes, lambda: deaths.append(True))
        with pytest.raises(MachineCrashed):
            atomic(disk)
        assert deaths == [True] * (changes + 1)
        left = disk.after_crash()
        assert left.read("/d/f") == (b"old" if changes < 4 else b"0123456789" * 100)
        assert left.exists("/d/f.tmp") == (0 < changes < 4)
        assert losses(left, lambda lost: len(lost.read("/d/f"))) <= {3, 1000}
    disk = SimDisk(clock, Random(9))
    disk.makedirs("/d")
    disk.crash_after(6, lambda: None)
    atomic(disk)
    with pytest.raises(MachineCrashed):
        disk.unlink("/d/f") or disk.sync_dir("/d") or disk.sync_dir("/d")


def test_a_write_in_which_the_machine_dies_is_made_in_part(clock):
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


# Faults.


def test_errors_by_chance_and_by_name(disk):
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
    # Nothing is read from a failing disk, and what is in memory can be read.
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
    assert losses(disk, lambda left: left.size("/d/f")) == {3, 1000}


def test_short_writes(disk):
    file = disk.open("/d/f", create=True)
    disk.faults.short_write = 0.5
    written = [file.append(b"12345") for _ in range(100)]
    assert set(written) == {1, 2, 3, 4, 5}
    assert file.size() == sum(written)
    assert disk.faults.injected == {"short write": sum(size < 5 for size in written)}


def test_bit_rot_is_for_ever(disk):
    synced_file(disk, b"\0" * 100)
    assert disk.flip_bit("/d/f", 7) == 7
    place = disk.flip_bit("/d/f")
    injected = disk.faults.injected
    for left in (disk, disk.after_crash(keep_running=True), disk.after_crash(True, keep_running=True)):
        damaged = left.read("/d/f")
        assert damaged[7]
        assert damaged[place]
        assert sum(damaged.count(1 << bit) for bit in range(8)) == 2
    assert injected == {"bit rot": 2}


def test_a_sync_takes_time(disk):
    file = synced_file(disk, b"1")
    disk.take_busy_ns()
    file.append(b"2")
    assert disk.take_busy_ns() == 0
    file.fdatasync()
    assert 100_000 <= disk.take_busy_ns() <= 5_000_000
    assert disk.take_busy_ns() == 0
    disk.faults.slow_sync_ns = 2_000_000_000
    file.fdatasync()
    assert disk.take_busy_ns() >= 2_000_000_000


def test_every_change_is_told(clock):
    told = []
    disk = SimDisk(clock, Random(1))
    disk.trace = lambda *facts: told.append(facts)
    disk.makedirs("/d")
    atomic(disk)
    disk.open("/d/f").truncate(5)
    disk.rmtree("/d")
    assert told == [
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


def test_a_seed_decides(clock):
    def run(seed: int) -> list[object]:
        disk = SimDisk(clock, Random(seed))
        disk.makedirs("/d")
        disk.faults.write = 0.1
        for number in range(50):
            file = disk.open(f"/d/{number % 7}", create=True)
            try:
                file.append(bytes([number]) * 1000)
            except OSError:
                file.fdatasync()
        left = disk.after_crash(True)
        return [(path, left.read(path)) for path in left.find("")] + [left.listdir("/d"), left.take_busy_ns()]

    assert run(1) == run(1) != run(2)


def test_a_file_on_its_way_to_another_name_is_durable_under_one_of_them(disk):
    file = synced_file(disk, b"0123456789", "/d/f.swap")
    disk.rename("/d/f.swap", "/d/f")
    assert disk.durable("/d/f") == b""
    assert disk.durable("/d/f", "/d/f.swap") == b"0123456789"
    assert losses(disk, names) == {("/d/f",), ("/d/f.swap",)}
    file.append(b"more")
    assert disk.durable("/d/f", "/d/f.swap") == b"0123456789"
    disk.rename("/d/f", "/d/g")
    assert disk.durable("/d/g", "/d/f") == b""
    disk.sync_dir("/d")
    assert disk.durable("/d/g") == b"0123456789"
