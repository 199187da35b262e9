"""Names, checkpoints and index files, in Apache Kafka's formats."""

from pathlib import Path
from random import Random

import pytest

from kbroker.common import TopicPartition
from kbroker.runtime.disk import RealDisk
from kbroker.storage import checkpoint_files, file_names
from kbroker.storage.clean_shutdown_file import consume_clean_shutdown_file, write_clean_shutdown_file
from kbroker.storage.indexes.index_file import WouldBlock
from kbroker.storage.indexes.offset_index import OffsetIndex, find_entry, find_entry_by_position
from kbroker.storage.indexes.time_index import TimeIndex, find_last_before
from kbroker.storage.log.task_queue import SerialTaskQueue
from tests.unit.support.log_lab import Background

T0, T1 = TopicPartition("t", 0), TopicPartition("a-b.c", 12)


def test_names() -> None:
    assert file_names.segment_file("d", 9472, file_names.LOG) == "d/00000000000000009472.log"
    assert file_names.parse_segment_file("00000000000000009472.timeindex") == (9472, ".timeindex")
    for name in ("9472.log", "00000000000000009472.log.deleted", "leader-epoch-checkpoint", "x0000000000000009472.log"):
        assert file_names.parse_segment_file(name) is None
    assert file_names.partition_dir("/data", T1) == "/data/a-b.c-12"
    assert file_names.parse_partition_dir("a-b.c-12") == T1
    for name in ("t", "-1", "t-", "t-x", "t-0.b2dd6cc065d34fc999dda5545ec1c4f4-delete"):
        assert file_names.parse_partition_dir(name) is None
    assert file_names.deleted_dir("/data", T1, "0" * 32) == f"/data/a-b.c-12.{'0' * 32}-delete"
    long = file_names.deleted_dir("d", TopicPartition("t" * 249, 3), "f" * 32)
    assert len(long) == 2 + 255
    assert file_names.is_deleted_dir(long[2:])
    assert not file_names.is_deleted_dir("my-topic-delete-0")


def test_offset_checkpoints(tmp_path: Path) -> None:
    disk = RealDisk()
    data = str(tmp_path)
    assert checkpoint_files.read_offsets(disk, data, file_names.RECOVERY_POINTS) == {}
    offsets = {T0: 10824, T1: 0}
    checkpoint_files.write_offsets(disk, data, file_names.RECOVERY_POINTS, offsets)
    assert disk.read(f"{data}/recovery-point-offset-checkpoint") == b"0\n2\nt 0 10824\na-b.c 12 0\n"
    assert checkpoint_files.read_offsets(disk, data, file_names.RECOVERY_POINTS) == offsets
    assert checkpoint_files.encode_offsets({}) == b"0\n0\n"
    assert checkpoint_files.decode_offsets(b"") == {}


@pytest.mark.parametrize(
    "data",
    [b"1\n0\n", b"0\n", b"0\n1\n", b"0\n1\nt 0 1\nt 1 1\n", b"0\n1\nt 0\n", b"0\nx\n", b"\xff\n", b"0\n1\nt 0 1"],
)
def test_damaged_checkpoints_are_noticed(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        checkpoint_files.decode_offsets(data)
    with pytest.raises((ValueError, IndexError)):
        checkpoint_files.decode_epochs(data)


def test_epochs() -> None:
    assert checkpoint_files.encode_epochs([(0, 0), (4, 77)]) == b"0\n2\n0 0\n4 77\n"
    assert checkpoint_files.decode_epochs(b"0\n2\n0 0\n4 77\n") == [(0, 0), (4, 77)]
    with pytest.raises(ValueError, match="order"):
        checkpoint_files.decode_epochs(b"0\n2\n4 77\n0 0\n")


def test_the_mark_of_a_clean_stop_counts_once(tmp_path: Path) -> None:
    disk = RealDisk()
    assert not consume_clean_shutdown_file(disk, str(tmp_path))
    write_clean_shutdown_file(disk, str(tmp_path), 11)
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":11}'
    assert consume_clean_shutdown_file(disk, str(tmp_path))
    assert not consume_clean_shutdown_file(disk, str(tmp_path))


@pytest.mark.parametrize("count", [0, 1, 2, 511, 512, 513, 5000])
def test_an_index_is_searched_alike_in_memory_and_on_disk(count: int) -> None:
    random = Random(count)
    index, times = OffsetIndex(), TimeIndex()
    offset = position = timestamp = 0
    for _ in range(count):
        offset += random.randrange(1, 9)
        position += random.randrange(61, 5000)
        timestamp += random.randrange(1, 100)
        index.add(offset, position)
        times.add(timestamp, offset)
    data, times_data = index.encode(0, count), times.encode(0, count)
    assert len(data) == 8 * count
    assert list(OffsetIndex.decode(data).entries) == list(index.entries)
    assert TimeIndex.decode(times_data).offsets == times.offsets
    pairs = [(entry >> 32, entry & 0xFFFFFFFF) for entry in index.entries]

    def read(size: int, at: int) -> bytes:
        return data[at : at + size]

    def read_times(size: int, at: int) -> bytes:
        return times_data[at : at + size]

    for wanted in [0, 1, offset, offset + 5, *(random.randrange(offset + 2) for _ in range(100))]:
        expected = max((pair for pair in pairs if pair[0] <= wanted), default=None)
        entry = index.at_offset(wanted)
        assert (None if entry is None else (entry >> 32, entry & 0xFFFFFFFF)) == expected
        assert find_entry(read, count, wanted) == entry
    for wanted in [0, 1, position, position + 5, *(random.randrange(position + 2) for _ in range(100))]:
        expected = max((pair for pair in pairs if pair[1] <= wanted), default=None)
        entry = index.at_position(wanted)
        assert (None if entry is None else (entry >> 32, entry & 0xFFFFFFFF)) == expected
        assert find_entry_by_position(read, count, wanted) == entry
    stamped = list(zip(times.timestamps, times.offsets, strict=True))
    for wanted in [0, 1, timestamp, timestamp + 5, *(random.randrange(timestamp + 2) for _ in range(100))]:
        expected_offset = max((o for t, o in stamped if t < wanted), default=0)
        assert times.last_before(wanted) == expected_offset
        assert find_last_before(read_times, count, wanted) == expected_offset
    if count:
        with pytest.raises(WouldBlock):
            find_entry(lambda size, at: None, count, 1)
        with pytest.raises(ValueError, match="early"):
            find_entry(lambda size, at: b"", count, 1)


@pytest.mark.parametrize(
    "data", [b"1234567", bytes(16), b"\xff" * 8, (5 << 32 | 9).to_bytes(8) + (6 << 32 | 9).to_bytes(8)]
)
def test_damaged_indexes_are_noticed(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"multiple|ascend|negative"):
        OffsetIndex.decode(data)


@pytest.mark.parametrize("data", [b"1234567", bytes(24), b"\xff" * 12])
def test_damaged_time_indexes_are_noticed(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"multiple|ascend|negative"):
        TimeIndex.decode(data)


def test_a_time_index_notes_only_larger_timestamps() -> None:
    times = TimeIndex()
    for timestamp, offset in ((-1, 0), (5, 1), (5, 2), (4, 3), (6, 4)):
        times.add(timestamp, offset)
    assert list(zip(times.timestamps, times.offsets, strict=True)) == [(5, 1), (6, 4)]


def test_chores_run_one_at_a_time_in_order() -> None:
    background = Background()
    background.hold = True
    failures: list[OSError] = []
    chores = SerialTaskQueue(background, failures.append)
    heard: list[object] = []

    def fail() -> int:
        raise OSError("no")

    chores.when_idle(lambda: heard.append("idle at once"))
    chores.add(lambda: 1, heard.append)
    chores.add(fail, heard.append)
    chores.add(lambda: 2, heard.append)
    chores.when_idle(lambda: heard.append("idle"))
    assert len(background.held) == 1
    background.run()
    assert heard == ["idle at once", 1, 2, "idle"]
    assert [str(failure) for failure in failures] == ["no"]
    chores.add(lambda: 3, heard.append)
    background.run()
    assert heard[-1] == 3
