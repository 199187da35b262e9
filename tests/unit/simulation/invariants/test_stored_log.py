"""A log on a disk is followed while it grows, is truncated, and loses its first segments."""

from random import Random

from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.disk.log_files import StoredLog
from kbroker.simulation.runtime.environment import SimClock
from kbroker.simulation.runtime.loop import SimLoop
from tests.unit.simulation.invariants.replica_files import DIRECTORY, ReplicaFiles


def files() -> ReplicaFiles:
    return ReplicaFiles(SimDisk(SimClock(SimLoop(0)), Random(0)))


def test_a_growing_log():
    disk, log = files(), StoredLog()
    assert log.update(disk.disk, DIRECTORY) == []
    assert (log.start, log.end) == (0, 0)
    disk.append(0, b"a", epoch=1)
    disk.append(1, b"b", epoch=1)
    assert [batch.base_offset for batch in log.update(disk.disk, DIRECTORY)] == [0, 1]
    disk.append(2, b"c", epoch=2, segment=2)
    (added,) = log.update(disk.disk, DIRECTORY)
    assert (added.base_offset, added.next_offset, added.leader_epoch) == (2, 3, 2)
    assert (log.start, log.end, log.active_base, log.truncated_to) == (0, 3, 2, None)
    assert [batch.base_offset for batch in log.batches_from(1)] == [1, 2]
    assert log.update(disk.disk, DIRECTORY) == []


def test_a_truncated_log_that_grows_again_to_the_same_size():
    disk, log = files(), StoredLog()
    for offset, value in enumerate((b"a", b"b", b"c")):
        disk.append(offset, value, epoch=1)
    log.update(disk.disk, DIRECTORY)
    disk.truncate(1)
    disk.append(1, b"x", epoch=2)
    disk.append(2, b"y", epoch=2)
    assert [batch.base_offset for batch in log.update(disk.disk, DIRECTORY)] == [1, 2]
    assert log.truncated_to == 1
    assert [batch.leader_epoch for batch in log.batches_from(0)] == [1, 2, 2]


def test_removed_segments():
    disk, log = files(), StoredLog()
    for offset in range(3):
        disk.append(offset, b"a", epoch=1, segment=offset)
    log.update(disk.disk, DIRECTORY)
    disk.remove(0)
    log.update(disk.disk, DIRECTORY)
    assert (log.start, log.end, log.truncated_to) == (1, 3, None), "retention removes the first segments"
    disk.remove(2)
    log.update(disk.disk, DIRECTORY)
    assert (log.end, log.truncated_to) == (2, 2), "a truncation removes the last"


def test_a_truncation_removes_several_segments_of_which_the_last_is_empty():
    disk, log = files(), StoredLog()
    for offset in range(3):
        disk.append(offset, b"a", epoch=1, segment=offset)
    disk.roll(3)
    log.update(disk.disk, DIRECTORY)
    for segment in (1, 2, 3):
        disk.remove(segment)
    log.update(disk.disk, DIRECTORY)
    assert (log.end, log.truncated_to) == (1, 1)
