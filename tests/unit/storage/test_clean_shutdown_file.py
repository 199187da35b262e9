"""The clean-shutdown file is read once and removed."""

from pathlib import Path

from kbroker.runtime.real_disk import RealDisk
from kbroker.storage.clean_shutdown_file import consume_clean_shutdown_file, write_clean_shutdown_file


def test_a_clean_shutdown_file_is_consumed(tmp_path: Path) -> None:
    disk = RealDisk()
    assert not consume_clean_shutdown_file(disk, str(tmp_path))
    write_clean_shutdown_file(disk, str(tmp_path), 11)
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":11}'
    assert consume_clean_shutdown_file(disk, str(tmp_path))
    assert not consume_clean_shutdown_file(disk, str(tmp_path))
