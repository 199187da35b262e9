"""A broker that starts on a full disk."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from tests.compat.hostile.raw_client import RawClient, create_topic, end_offset, produce_record
from tests.compat.support import BrokerProcess, eventually, fill, need_own_broker

pytestmark = [pytest.mark.feature("kill -9"), pytest.mark.client("wire")]

# So many that their new leader epochs do not fit into the last page of the journal.
PARTITIONS = 60


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    need_own_broker()
    path = tmp_path / "disk"
    path.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode != 0:
        pytest.skip("not run: file systems cannot be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def outcomes(broker: BrokerProcess) -> set[ErrorCode]:
    """Return the error codes of a Produce to each partition."""
    with RawClient(broker.bootstrap) as client:
        return {produce_record(client, "t", partition, 5000) for partition in range(PARTITIONS)}


def wait_until_appends_are_accepted(broker: BrokerProcess) -> None:
    """Wait until each partition has accepted a record.

    Each gets one only: if a log could not be opened on the full disk, which is tried again after some time, records for
    all partitions would fill the disk meanwhile.
    """
    refusing = set(range(PARTITIONS))

    def accepted_by_all() -> bool:
        with RawClient(broker.bootstrap) as client:
            accepting = {part for part in refusing if produce_record(client, "t", part, 5000) is ErrorCode.NONE}
        refusing.difference_update(accepting)
        return not refusing

    eventually(accepted_by_all, "appends are accepted when there is room")


def test_a_start_on_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.data_dir = small_disk / "data"
    filler = small_disk / "filler"
    try:
        broker.start()
        create_topic(broker.bootstrap, "t", PARTITIONS, retention_ms=-1)
        assert outcomes(broker) == {ErrorCode.NONE}
        for end in (broker.kill, broker.stop, broker.kill):
            fill(filler)
            end()
            fill(filler)
            broker.start()
            assert outcomes(broker) == {ErrorCode.KAFKA_STORAGE_ERROR}
            with RawClient(broker.bootstrap) as client:
                assert end_offset(client, "t", 0) == 1
        assert "the disk is full: no appends" in broker.errors
        filler.unlink()
        wait_until_appends_are_accepted(broker)
        broker.restart()
        assert outcomes(broker) == {ErrorCode.NONE}
        broker.stop()
    finally:
        broker.end()
