"""Checkpoint files are in Apache Kafka's formats."""

from pathlib import Path

import pytest

from kbroker.common import TopicPartition
from kbroker.runtime.real_disk import RealDisk
from kbroker.storage import checkpoint_files, file_names

T0, T1 = TopicPartition("t", 0), TopicPartition("a-b.c", 12)


def test_offset_checkpoints(tmp_path: Path) -> None:
    disk = RealDisk()
    data = str(tmp_path)
    assert checkpoint_files.read_offsets(disk, data, file_names.RECOVERY_POINTS) == {}
    offsets = {T0: 10824, T1: 0}
    checkpoint_files.write_offsets(disk, data, file_names.RECOVERY_POINTS, offsets)
    assert disk.read(f"{data}/recovery-point-offset-checkpoint") == b"0\n2\nt 0 10824\na-b.c 12 0\n"
    assert checkpoint_files.read_offsets(disk, data, file_names.RECOVERY_POINTS) == offsets
    assert checkpoint_files.encode_offsets({}) == b"0\n0\n"


@pytest.mark.parametrize(
    "data",
    [b"", b"1\n0\n", b"0\n", b"0\n1\n", b"0\n1\nt 0 1\nt 1 1\n", b"0\n1\nt 0\n", b"0\nx\n", b"\xff\n", b"0\n1\nt 0 1"],
)
def test_damaged_checkpoints_are_rejected(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        checkpoint_files.decode_offsets(data)
    with pytest.raises(ValueError, match=r"."):
        checkpoint_files.decode_epochs(data)


def test_leader_epoch_checkpoints() -> None:
    assert checkpoint_files.encode_epochs([(0, 0), (4, 77)]) == b"0\n2\n0 0\n4 77\n"
    assert checkpoint_files.decode_epochs(b"0\n2\n0 0\n4 77\n") == [(0, 0), (4, 77)]
    with pytest.raises(ValueError, match="order"):
        checkpoint_files.decode_epochs(b"0\n2\n4 77\n0 0\n")


def test_the_entries_of_transaction_indexes() -> None:
    entries = {T0: {0: 3, 4711: 1}, T1: {99: 2}}
    data = checkpoint_files.encode_index_entries(entries)
    assert data == b"0\n3\nt 0 0 3\nt 0 4711 1\na-b.c 12 99 2\n"
    assert checkpoint_files.decode_index_entries(data) == entries
    assert checkpoint_files.encode_index_entries({}) == b"0\n0\n"
    for damaged in (b"", b"0\n", data[:-3], b"0\n1\nt 0 5\n", b"0\n1\nt 0 5 x\n"):
        with pytest.raises(ValueError, match=r"."):
            checkpoint_files.decode_index_entries(damaged)
