"""Opening a log after a clean or an unclean shutdown, with segments cut or damaged."""

from pathlib import Path

import pytest

from kbroker.common import KafkaError
from kbroker.runtime.real_disk import RealDisk, RealFile
from kbroker.storage.log.log_reads import read
from protocol.errors import ErrorCode
from protocol.records.batch import parse_header
from tests.unit.storage.recovery.stopped_logs import SEGMENTS, produce
from tests.unit.support.log_lab import NOW, TOPIC_ID, Lab, append, batch, content, fill


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_the_log_ends_at_a_segment_that_a_power_loss_has_emptied(tmp_path: Path, policy: str) -> None:
    """Only below the recovery point may compaction have left a gap."""
    lab = Lab(tmp_path, cleanup_policy=(policy,))
    log = lab.open()
    for _ in range(4):
        append(log, batch(2))
        log.roll(NOW)
    (lab.path / f"{2:020d}.log").write_bytes(b"")
    for recovery_point, end in ((4, 8), (2, 2)):
        log = lab.open(recovery_point, checkpointed=True)
        assert log.log_end_offset == end
    assert lab.files(".log") == [f"{0:020d}.log", f"{2:020d}.log"]


def test_the_log_is_cut_before_a_damaged_batch(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    fill(log, 3)
    size = log.size_bytes
    append(log, batch(1, 10))
    append(log, batch(1, 10))
    data = content(log)
    path = lab.path / f"{0:020d}.log"
    damaged_size = parse_header(data, size).size
    # Base offset and leader epoch are not covered by the CRC.
    for position in (*range(8, 12), *range(16, damaged_size)):
        bad = bytearray(data)
        bad[size + position] ^= 0x41
        path.write_bytes(bad)
        log = lab.open()
        assert content(log) == data[:size], position
        assert path.stat().st_size == size


@pytest.mark.parametrize("tail", [bytes(100), bytes(5000), b"\xff" * 300, b"garbage" * 50])
def test_bytes_that_a_power_loss_left_after_the_data_are_cut_off(tmp_path: Path, tail: bytes) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    fill(log, 20)
    data = content(log)
    path = lab.path / f"{0:020d}.log"
    path.write_bytes(data + tail)
    for clean in (False, True):
        log = lab.open(log.log_end_offset, clean=clean)
        assert content(log) == data
        assert path.read_bytes() == data
        path.write_bytes(data + tail)


class CountingDisk(RealDisk):
    """Counts the bytes that are read from log files."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        file = super().open(path, create=create, write=write)
        if not path.endswith(".log"):
            return file
        disk = self

        class Counting(RealFile):
            def pread(self, size: int, offset: int, /) -> bytes:
                data = super().pread(size, offset)
                disk.read_bytes += len(data)
                return data

        counting = Counting(file._fd, file._file_system)
        file._fd = -1
        return counting


def test_recovery_reads_only_past_the_recovery_point(tmp_path: Path) -> None:
    disk = CountingDisk()
    lab = Lab(tmp_path, disk)
    log = lab.open()
    for n in range(400):
        append(log, batch(10, 500, NOW + n))
    log.durability.checkpoint()
    point, size = log.recovery_point, log.size_bytes
    tail = fill(log, 5)
    disk.read_bytes = 0
    log = lab.open(point)
    assert log.repairs == []
    assert log.log_end_offset > tail[-1]
    assert disk.read_bytes < log.size_bytes - size + 3 * 4096 + 2 * 6000
    disk.read_bytes = 0
    lab.close(log)
    lab.open(log.log_end_offset, clean=True)
    assert disk.read_bytes < 4 * 4096 + 2 * 6000


def test_the_recovery_point_stays_where_it_was_until_the_next_sync(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    fill(log, 10)
    log.durability.checkpoint()
    point = log.recovery_point
    fill(log, 5)
    log = lab.open(point)
    assert log.recovery_point == point < log.log_end_offset


def test_segments_after_a_damaged_one_are_removed(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **SEGMENTS)
    log = lab.open()
    fill(log, 100)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 4
    path = lab.path / f"{bases[2]:020d}.log"
    data = bytearray(path.read_bytes())
    second = parse_header(data).size
    data[second + 50] ^= 1
    path.write_bytes(data)
    log = lab.open(bases[1])
    assert log.log_end_offset == parse_header(data).next_offset
    assert [segment.base_offset for segment in log.segments] == bases[:3]
    assert lab.files(".log") == [f"{base:020d}.log" for base in bases[:3]]
    assert any("removed" in line for line in log.repairs)
    assert append(log, batch(1)) == log.log_end_offset - 1


def test_nothing_below_the_recovery_point_is_checked(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **SEGMENTS)
    log = lab.open()
    fill(log, 100)
    path = lab.path / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)
    end = log.log_end_offset
    log = lab.open(log.segments[-1].base_offset)
    assert (log.log_end_offset, log.repairs) == (end, [])


def test_leftovers_are_removed(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    fill(log, 5)
    lab.close(log)
    before = lab.files()
    for name in ("x.tmp", f"{0:020d}.log.deleted", f"{9:020d}.index", f"{9:020d}.timeindex", f"{0:020d}.log.cleaned"):
        (lab.path / name).write_bytes(b"x")
    log = lab.open(log.log_end_offset, clean=True)
    assert lab.files() == before


def test_a_log_that_ends_before_its_start_offset_is_replaced_by_an_empty_one(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    produce(log, 10)
    log = lab.open(0, log_start=20)
    assert (log.log_start_offset, log.log_end_offset, len(log.producers)) == (20, 20, 0)
    assert lab.files(".log") == [f"{20:020d}.log"]
    assert append(log, batch(1)) == 20


def test_a_log_start_inside_a_segment_is_kept(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    fill(log, 10)
    log = lab.open(0, log_start=5)
    assert log.log_start_offset == 5
    with pytest.raises(KafkaError):
        read(log, 4, 100, log.log_end_offset)


def test_the_directory_of_another_topic_is_rejected(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    lab.open()
    path = lab.path / "partition.metadata"
    assert path.read_bytes() == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    path.write_bytes(b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODg")
    with pytest.raises(KafkaError) as error:
        lab.open()
    assert error.value.code is ErrorCode.INCONSISTENT_TOPIC_ID
    path.write_bytes(b"")
    assert lab.open().topic_id == TOPIC_ID
    assert path.read_bytes() == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"


def test_a_batch_larger_than_a_chunk_is_checked_piece_by_piece(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    log = lab.open()
    append(log, batch(3))
    data = batch(1, 3_500_000)
    append(log, data)
    append(log, batch(1))
    log = lab.open()
    assert (log.log_end_offset, log.repairs) == (5, [])
    path = lab.path / f"{0:020d}.log"
    bad = bytearray(path.read_bytes())
    bad[3_000_000] ^= 1
    path.write_bytes(bad)
    log = lab.open()
    assert log.log_end_offset == 3
