"""Opening a log whose indexes, snapshots of producers or leader epochs are lost or damaged."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.common import KafkaError
from kbroker.storage.log.log_reads import read_blocking
from protocol.records.batch import parse_header
from tests.unit.storage.recovery.stopped_logs import SEGMENTS, produce, producers
from tests.unit.support.log_lab import NOW, Lab, append, batch, content, fill, forget_positions


def damage_delete(path: Path) -> None:
    path.unlink()


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\x7f" * 24)


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def damage_zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def damage_swap(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[-24:] + data[24:-24] + data[:24])


DAMAGES = [damage_delete, damage_empty, damage_grow, damage_cut, damage_zero, damage_swap]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("clean", [True, False])
def test_damaged_indexes_are_rebuilt(
    tmp_path: Path, damage: Callable[[Path], None], suffix: str, which: int, clean: bool
) -> None:
    lab = Lab(tmp_path, index_interval_bytes=100)
    log = lab.open()
    fill(log, 40)
    log.roll(NOW)
    fill(log, 40)
    data = content(log)
    largest = [segment.max_timestamp for segment in log.segments]
    assert lab.close(log)
    path = sorted(lab.path.glob(f"*.{suffix}"))[which]
    good = path.read_bytes()
    assert len(good) >= 48
    damage(path)
    point = log.log_end_offset
    log = lab.open(point, clean=clean)
    # The middle of the index of a closed segment is checked only when it is used.
    silent = damage is damage_swap and which == 0
    # An active segment may have no index files yet, or empty ones.
    assert log.repairs or silent or (damage in (damage_delete, damage_empty) and which == -1)
    if not silent:
        assert [segment.max_timestamp for segment in log.segments] == largest
    assert content(log) == data
    for offset in range(log.log_end_offset):
        forget_positions(log)
        header = parse_header(read_blocking(log, offset, 1, log.log_end_offset))
        assert header.base_offset <= offset <= header.last_offset
    log.durability.checkpoint()
    assert lab.close(log)
    if not silent or suffix == "index":
        assert path.read_bytes() == good


@pytest.mark.parametrize("damage", [damage_delete, damage_empty, damage_cut, damage_zero])
@pytest.mark.parametrize("clean", [True, False])
def test_a_damaged_snapshot_is_replaced_by_the_log(tmp_path: Path, damage: Callable[[Path], None], clean: bool) -> None:
    lab = Lab(tmp_path, **SEGMENTS)
    log = lab.open()
    produce(log, 100)
    produce(log, 3, producer_id=8)
    assert lab.close(log)
    before = producers(log)
    snapshots = sorted(lab.path.glob("*.snapshot"))
    assert len(snapshots) == len(log.segments)
    damage(snapshots[-1])
    log = lab.open(log.log_end_offset, clean=clean)
    assert producers(log) == before
    for path in lab.path.glob("*.snapshot"):
        path.unlink()
    log = lab.open(log.log_end_offset, clean=clean)
    assert producers(log) == before


@pytest.mark.parametrize("clean", [True, False])
def test_batches_in_flight_at_the_shutdown_are_recognized_as_duplicates(tmp_path: Path, clean: bool) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    sent = produce(log, 60)
    if clean:
        assert lab.close(log)
    else:
        log.durability.checkpoint()
    log = lab.open(log.log_end_offset, clean=clean)
    for n, data in enumerate(sent[-5:], start=55):
        duplicate = log.producers.check(parse_header(data))
        assert duplicate is not None
        assert duplicate[0] == n
    with pytest.raises(KafkaError):
        log.producers.check(parse_header(sent[-6]))


def test_an_unclean_stop_after_a_checkpoint_keeps_producers(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **SEGMENTS)
    log = lab.open()
    produce(log, 50)
    log.durability.checkpoint()
    point = log.recovery_point
    produce(log, 50, start=50)
    produce(log, 2, producer_id=9)
    before = producers(log)
    log = lab.open(point)
    assert producers(log) == before
    append(log, batch(1, producer_id=7, producer_epoch=0, base_sequence=100))


def test_a_snapshot_beyond_the_end_of_the_log_is_ignored(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    produce(log, 10)
    before = producers(log)
    size = log.size_bytes
    produce(log, 1, start=10)
    assert lab.close(log)
    path = lab.path / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:size])
    for clean in (True, False):
        log = lab.open(11, clean=clean)
        assert (log.log_end_offset, producers(log)) == (10, before)
    assert lab.files(".snapshot") == []


@pytest.mark.parametrize("damage", [damage_delete, damage_empty, damage_cut, damage_zero])
@pytest.mark.parametrize("clean", [True, False])
def test_damaged_epochs_are_rebuilt_from_the_log(tmp_path: Path, damage: Callable[[Path], None], clean: bool) -> None:
    lab = Lab(tmp_path, **SEGMENTS)
    log = lab.open()
    for n in range(60):
        append(log, batch(1, 100), epoch=n // 20)
    assert lab.close(log)
    path = lab.path / "leader-epoch-checkpoint"
    good = path.read_bytes()
    assert good == b"0\n3\n0 0\n1 20\n2 40\n"
    damage(path)
    log = lab.open(log.log_end_offset, clean=clean)
    assert log.epochs.entries == [(0, 0), (1, 20), (2, 40)]
    append(log, batch(1), epoch=2)
    assert path.read_bytes() == good


def test_an_epoch_without_appends_is_written_at_the_next_checkpoint(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    append(log, batch(1), epoch=3)
    log.durability.checkpoint()
    log.epochs.assign(4, 1)
    log.durability.checkpoint()
    assert lab.open(1).epochs.entries == [(3, 0)], "an epoch without batches"
    assert (lab.path / "leader-epoch-checkpoint").read_bytes() == b"0\n2\n3 0\n4 1\n"


def test_epochs_before_a_log_start_that_a_crash_has_lost_are_read_from_the_log(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    for n in range(30):
        append(log, batch(1), epoch=n // 10)
    log.durability.checkpoint()
    path = lab.path / "leader-epoch-checkpoint"
    good = path.read_bytes()
    assert good == b"0\n3\n0 0\n1 10\n2 20\n"
    # What is written after records below offset 25 were deleted.
    path.write_bytes(b"0\n1\n2 25\n")
    log = lab.open(30, log_start=5)
    assert log.epochs.entries == [(0, 5), (1, 10), (2, 20)]
    assert path.read_bytes() == b"0\n3\n0 5\n1 10\n2 20\n"


def test_epochs_that_a_crash_kept_from_the_file_come_from_the_tail(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    append(log, batch(1), epoch=3)
    log.durability.checkpoint()
    lab.background.hold = True
    append(log, batch(1), epoch=5)
    lab.background.hold = False
    log = lab.open(1)
    assert log.epochs.entries == [(3, 0), (5, 1)]
