"""`kbroker log verify` of data directories."""

import json
from pathlib import Path

import pytest

from kbroker.cli import main
from kbroker.coordination.interface import Create
from kbroker.coordination.journal import Journal
from kbroker.runtime.real_disk import RealDisk
from kbroker.storage import checkpoint_files, file_names, metadata_files
from kbroker.storage.metadata_files import write_clean_shutdown_file
from tests.unit.support.log_lab import TP, Lab, fill


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a broker after a clean shutdown."""
    lab = Lab(tmp_path, segment_bytes=2000, index_interval_bytes=300)
    log = lab.open()
    fill(log, 40)
    end = log.log_end_offset
    assert lab.close(log)
    disk, directory = RealDisk(), str(lab.path.parent)
    metadata_files.write_meta_properties(disk, directory, metadata_files.MetaProperties("cluster", 1, "directory"))
    checkpoint_files.write_offsets(disk, directory, file_names.RECOVERY_POINTS, {TP: end})
    write_clean_shutdown_file(disk, directory, 0)
    journal = Journal(disk, f"{directory}/coordination")
    journal.load()
    journal.append([Create("/a", b"")])
    journal.append([Create("/b", b"")])
    journal.close()
    (lab.path.parent / ".lock").touch()
    return lab.path.parent


def verify(capsys: pytest.CaptureFixture[str], path: Path, status: int) -> list[str]:
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert main(["log", "verify", str(path)]) == status
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    return [line.replace(f"{path}/", "") for line in capsys.readouterr().out.splitlines()]


def first_log(data: Path) -> Path:
    return data / "t-0" / "00000000000000000000.log"


def damage(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_an_intact_directory(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = sum(path.stat().st_size for path in data.rglob("*.log"))
    assert verify(capsys, data, 0) == [f"1 partition, 40 batches, {size} bytes: 0 problems, 0 notes"]
    assert verify(capsys, data / "t-0", 0) == [f"1 partition, 40 batches, {size} bytes: 0 problems, 0 notes"]


def test_damage_that_the_next_start_would_not_detect(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(first_log(data), 70)
    lines = verify(capsys, data, 1)
    assert lines[0] == "problem: t-0/00000000000000000000.log byte 0 offset 0: a batch: its CRC is wrong"
    assert lines[1] == "next start: would neither detect nor repair these problems"
    assert lines[2].endswith("1 problem, 0 notes")


def test_damage_after_an_unclean_shutdown_and_its_repair(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / file_names.CLEAN_SHUTDOWN).unlink()
    checkpoint_files.write_offsets(RealDisk(), str(data), file_names.RECOVERY_POINTS, {TP: 0})
    last = max((data / "t-0").glob("*.log"))
    size = last.stat().st_size
    last.write_bytes(last.read_bytes()[:-3])
    lines = verify(capsys, data, 1)
    assert lines[0].startswith(f"problem: t-0/{last.name} byte ")
    assert any(line.startswith(f"next start: t-0/{last.name}: cut from {size - 3} to ") for line in lines)
    assert any("the last shutdown was not clean" in line for line in lines)


def test_files_of_the_data_directory(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / file_names.LOG_START_OFFSETS).write_bytes(b"1\n")
    (data / file_names.META_PROPERTIES).write_bytes(b"version=1\n")
    (data / "old-1.0123456789abcdef0123456789abcdef-delete").mkdir()
    damage(data / "coordination" / "coordination.journal", 10)
    lines = verify(capsys, data, 1)
    assert "problem: log-start-offset-checkpoint: unknown version '1'" in lines
    assert "problem: meta.properties: cluster.id is missing" in lines
    assert any(line.startswith("note: old-1.") and line.endswith("the next start removes it") for line in lines)
    assert any(line.startswith("problem: coordination/coordination.journal byte 0: a record") for line in lines)
    assert sum("the broker does not start" in line for line in lines) == 2


def test_a_directory_without_meta_properties(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data / file_names.META_PROPERTIES).unlink()
    assert verify(capsys, data, 0)[0].startswith("note: meta.properties: missing")


def test_checkpoints_of_missing_partitions_and_offsets(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = {TP: 10**6, TP._replace(partition=5): 3}
    checkpoint_files.write_offsets(RealDisk(), str(data), file_names.RECOVERY_POINTS, points)
    lines = verify(capsys, data, 1)
    assert "note: recovery-point-offset-checkpoint: contains t-5, which has no directory" in lines
    assert any("recovery-point-offset-checkpoint has 1000000, beyond the end of the log" in line for line in lines)


def test_findings_of_a_file_are_limited_and_counted(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = data / "t-0" / "00000000000000000000.index"
    path.write_bytes(path.read_bytes() + path.read_bytes()[:8] * 50)
    lines = verify(capsys, data, 1)
    assert sum(line.startswith("problem") for line in lines) == 20
    assert "and 30 more findings in t-0/00000000000000000000.index" in lines
    assert lines[-1].endswith("50 problems, 0 notes")


def test_the_ends_of_logs_of_a_running_broker_are_not_verified(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    last = max((data / "t-0").glob("*.log"))
    last.write_bytes(last.read_bytes()[:-3])
    lock = RealDisk().lock(str(data / ".lock"))
    try:
        assert main(["log", "verify", str(data)]) == 0
        assert "a broker is running on" in capsys.readouterr().err
    finally:
        lock.close()
    assert main(["log", "verify", str(data)]) == 1


def test_as_json(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(first_log(data), 70)
    assert main(["log", "verify", "--json", str(data)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["problems"], report["partition_count"], report["clean_stop"], report["next_start"]) == (
        1,
        1,
        True,
        [],
    )
    (finding,) = report["findings"]
    assert finding == {
        "path": str(first_log(data)),
        "what": "a batch: its CRC is wrong",
        "position": 0,
        "offset": 0,
        "is_problem": True,
    }


def test_the_directory_of_several_brokers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its parts are named like partitions of a topic `broker`; a report of no problems would be wrong."""
    for name in ("broker-1", "broker-2", "coordination"):
        (tmp_path / name).mkdir()
    assert main(["log", "verify", str(tmp_path)]) == 2
    expected = f"kbroker: {tmp_path} has the data of several brokers: verify {tmp_path}/broker-1 and the others\n"
    assert capsys.readouterr() == ("", expected)


def test_a_directory_that_no_broker_has_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("not a broker's file")
    (tmp_path / "release-1").mkdir()
    (tmp_path / "release-1" / "README").write_text("named like a partition")
    for path in (tmp_path, tmp_path / "release-1"):
        assert main(["log", "verify", str(path)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err == f"kbroker: {path} is neither a broker's data directory nor a partition's directory\n"


def test_a_partition_without_files(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A crash right after the directory was created leaves it empty."""
    (data / "new-0").mkdir()
    lines = verify(capsys, data, 0)
    assert lines[-1].startswith("2 partitions, 40 batches")


@pytest.mark.parametrize("removed", ["coordination.journal", "coordination.snapshot"])
def test_metadata_that_is_missing(data: Path, capsys: pytest.CaptureFixture[str], removed: str) -> None:
    if removed == "coordination.snapshot":
        journal = Journal(RealDisk(), str(data / "coordination"))
        journal.load()
        journal.append([Create("/c", b"")])
        journal.close()
    (data / "coordination" / removed).unlink()
    lines = verify(capsys, data, 1)
    assert any(line.startswith("problem: coordination: ") for line in lines)
    assert any(line.startswith("next start: coordination: the broker does not start: ") for line in lines)


def test_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["log", "verify", str(tmp_path / "x")]) == 1
    assert capsys.readouterr().err.endswith("x: no such directory\n")
