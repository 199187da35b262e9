"""The clean-shutdown file is read once and removed."""

from pathlib import Path

import pytest

from kbroker.runtime.real_disk import RealDisk
from kbroker.storage.metadata_files import (
    consume_clean_shutdown_file,
    has_written_transaction_indexes,
    read_clean_broker_epoch,
    write_clean_shutdown_file,
)


def test_a_clean_shutdown_file_is_consumed(tmp_path: Path) -> None:
    disk = RealDisk()
    assert not consume_clean_shutdown_file(disk, str(tmp_path))
    write_clean_shutdown_file(disk, str(tmp_path), 11)
    assert (
        tmp_path / ".kafka_cleanshutdown"
    ).read_bytes() == b'{"version":0,"brokerEpoch":11,"transactionIndexes":true}'
    assert consume_clean_shutdown_file(disk, str(tmp_path))
    assert not consume_clean_shutdown_file(disk, str(tmp_path))


@pytest.mark.parametrize(
    ("content", "epoch"),
    [(b'{"version":0,"brokerEpoch":11}', 11), (b'{"version":0}', -1), (b"", -1), (b"[]", -1), (b"\xff", -1)],
)
def test_the_broker_epoch_of_the_last_process(tmp_path: Path, content: bytes, epoch: int) -> None:
    disk = RealDisk()
    assert read_clean_broker_epoch(disk, str(tmp_path)) == -1
    (tmp_path / ".kafka_cleanshutdown").write_bytes(content)
    assert read_clean_broker_epoch(disk, str(tmp_path)) == epoch
    assert consume_clean_shutdown_file(disk, str(tmp_path))


@pytest.mark.parametrize(
    ("content", "written"),
    [
        (b'{"version":0,"brokerEpoch":11,"transactionIndexes":true}', True),
        (b'{"version":0,"brokerEpoch":11}', False),
        (b"", False),
        (b"[]", False),
        (b"\xff", False),
    ],
)
def test_a_former_version_has_written_no_transaction_index_checkpoint(
    tmp_path: Path, content: bytes, written: bool
) -> None:
    assert not has_written_transaction_indexes(RealDisk(), str(tmp_path))
    (tmp_path / ".kafka_cleanshutdown").write_bytes(content)
    assert has_written_transaction_indexes(RealDisk(), str(tmp_path)) == written
