"""`kbroker doctor`: every check fails once, on a host with the faults that a test sets."""

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli import main
from kbroker.cli.common.values import format_size
from kbroker.cli.doctor.doctor import run_checks
from kbroker.cli.doctor.host import OK, PROBLEM, WARNING, CheckResult, FileSystem, Host, RunningCluster, _write_caches
from kbroker.cli.start.options import StartOptions
from kbroker.runtime.real_disk import RealDisk, RealFile
from kbroker.storage import checkpoint_files, file_names, metadata_files
from kbroker.storage.metadata_files import write_clean_shutdown_file
from tests.unit.support.log_lab import TP, Lab, fill

NOW = 1_800_000_000_000
CONNECTION_REFUSED = OSError(111, "Connection refused")
IN_USE = OSError(98, "Address already in use")
CLUSTER = RunningCluster("cluster", (1,), 3, ())


# The methods of a host, by the name of a fault, and what they return on a healthy one.
HEALTHY: dict[str, tuple[str, Any]] = {
    "bind": ("bind_error", None),
    "addresses": ("resolve", ["127.0.0.1"]),
    "connect": ("connect_error", None),
    "cluster": ("describe_cluster", CLUSTER),
    "is_writable": ("is_writable", True),
    "file_system": ("file_system", FileSystem("ext4", "/", "8:1")),
    "write_caches": ("write_caches", {"sda": "write through"}),
    "now": ("now_ms", NOW),
    "synchronized": ("is_clock_synchronized", True),
    "max_open_files": ("max_open_files", 100_000),
    "memory": ("memory", {"MemTotal": 8 << 30, "MemAvailable": 4 << 30}),
    "java": ("find_program", "/usr/bin/java"),
}


class FaultyHost(Host):
    """A healthy host but for the faults that are set."""

    def __init__(self, modules: tuple[str, ...] = ("uvloop",), **faults: Any) -> None:
        self.modules = modules
        assert faults.keys() <= HEALTHY.keys()
        for fault, (method, healthy) in HEALTHY.items():
            setattr(self, method, partial(self._respond, faults.get(fault, healthy)))

    def _respond(self, found: Any, *_: Any) -> Any:
        if isinstance(found, OSError) and (found.errno or 0) < 0:
            raise found  # the error of a name
        return found

    def has_module(self, name: str) -> bool:
        return name in self.modules


class SizedDisk(RealDisk):
    """The real disk with a size and free space of the test."""

    def __init__(self, total: int = 100 << 30, free: int = 50 << 30) -> None:
        super().__init__()
        self.space = total, free

    def usage(self, path: str) -> tuple[int, int]:
        return self.space


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a broker with node.id=1 after a clean shutdown, written before NOW."""
    lab = Lab(tmp_path, segment_bytes=2000)
    log = lab.open()
    fill(log, 40)
    assert lab.close(log)
    directory = str(lab.path.parent)
    metadata_files.write_meta_properties(
        RealDisk(), directory, metadata_files.MetaProperties("cluster", 1, "directory")
    )
    checkpoint_files.write_offsets(RealDisk(), directory, file_names.RECOVERY_POINTS, {TP: log.log_end_offset})
    write_clean_shutdown_file(RealDisk(), directory, 0)
    for path in lab.path.iterdir():
        os.utime(path, ns=((NOW - 1000) * 10**6, (NOW - 1000) * 10**6))
    return lab.path.parent


@pytest.fixture
def _locked(data: Path) -> Iterator[None]:
    """A broker is running on the data directory."""
    lock = RealDisk().lock(str(data / ".lock"))
    yield
    lock.close()


def results(
    data: Path, disk: RealDisk | None = None, options: StartOptions | None = None, **faults: Any
) -> list[CheckResult]:
    options = options or StartOptions()
    return list(run_checks(replace(options, data_dir=str(data)), FaultyHost(**faults), disk or SizedDisk()))


def failure(
    data: Path, disk: RealDisk | None = None, options: StartOptions | None = None, **faults: Any
) -> tuple[str, str, str]:
    """Return the only result that is not ok: its check, status and message."""
    (result,) = (result for result in results(data, disk, options, **faults) if result.status != OK)
    assert result.advice.endswith(".")
    return result.check, result.status, result.message


def test_a_healthy_host(data: Path) -> None:
    healthy = results(data)
    assert {result.status for result in healthy} == {OK}
    assert [result.check for result in healthy] == [
        "configuration", "listener", "advertised address", "security", "data directory", "disk space", "file system",
        "reads", "write cache", "last stop", "clock", "open files", "memory", "programs",
    ]  # fmt: skip
    assert all(result.advice == "" for result in healthy)


def test_a_healthy_host_before_the_first_start(tmp_path: Path) -> None:
    by_check = {result.check: result for result in results(tmp_path / "a" / "b")}
    assert {result.status for result in by_check.values()} == {OK}
    assert by_check["data directory"].message.endswith("will be created")
    assert "is unknown before the first start" in by_check["reads"].message


# Configuration.


def test_an_invalid_configuration_ends_the_checks(data: Path) -> None:
    check, status, message = failure(data, options=StartOptions(set=["num.partitions=x"]))
    assert (check, status) == ("configuration", PROBLEM)
    assert "num.partitions" in message
    assert len(results(data, options=StartOptions(config="/nowhere/x.toml"))) == 1
    assert "cannot use the wildcard" in failure(data, options=StartOptions(advertise=["0.0.0.0:9092"]))[2]


def test_configs_without_effect(data: Path) -> None:
    check, status, message = failure(data, options=StartOptions(set=["log.preallocate=true"]))
    assert (check, status) == ("configuration", WARNING)
    assert message.startswith("log.preallocate=true is accepted, but has no effect")


def test_two_listeners(data: Path) -> None:
    listen = ["127.0.0.1:9092", "HOST://127.0.0.1:19092"]
    checks = [
        (result.check, result.status, result.message) for result in results(data, options=StartOptions(listen=listen))
    ]
    for listener in ("PLAINTEXT://127.0.0.1:9092", "HOST://127.0.0.1:19092"):
        assert ("listener", OK, f"{listener} can be bound") in checks
    assert ("advertised address", OK, "127.0.0.1:19092 is 127.0.0.1") in checks
    options = StartOptions(listen=listen, advertise=["127.0.0.1:9092"])
    check, status, message = failure(data, options=options)
    assert (check, status) == ("configuration", WARNING)
    assert message == "HOST://127.0.0.1:19092 is not advertised: its clients get no address of any broker"


# Network.


def test_a_listener_address_in_use(data: Path) -> None:
    check, status, message = failure(data, bind=IN_USE, connect=CONNECTION_REFUSED)
    assert (check, status) == ("listener", PROBLEM)
    assert message == "PLAINTEXT://127.0.0.1:9092 cannot be bound: Address already in use"
    assert failure(data, bind=IN_USE, cluster=None)[1] == PROBLEM
    assert "its data is not in" in failure(data, bind=IN_USE, cluster=RunningCluster("other", (1,), 0, ()))[2]


@pytest.mark.usefixtures("_locked")
def test_a_running_broker_is_checked(data: Path) -> None:
    messages = {result.check: result.message for result in results(data, bind=IN_USE)}
    assert messages["listener"] == "a broker of cluster cluster serves PLAINTEXT://127.0.0.1:9092: 3 topics"
    assert messages["last stop"] == "a broker is running on the data directory"
    assert failure(data, bind=IN_USE, cluster=replace(CLUSTER, without_leader=("a", "b"))) == (
        "topics", PROBLEM, "without a leader: a, b",
    )  # fmt: skip
    assert failure(data, bind=IN_USE, cluster=replace(CLUSTER, under_replicated=2)) == (
        "replicas", WARNING, "2 partitions with fewer in-sync replicas than replicas",
    )  # fmt: skip
    assert failure(data, bind=IN_USE, cluster=replace(CLUSTER, failing_brokers=(1, 3))) == (
        "disk writes", PROBLEM, "brokers that cannot write to their disks: 1, 3",
    )  # fmt: skip
    ((check, status, message),) = [
        (result.check, result.status, result.message)
        for result in results(data, connect=CONNECTION_REFUSED)
        if result.status != OK
    ]
    assert (check, status) == ("advertised address", PROBLEM)
    assert message == "the broker is running, but 127.0.0.1:9092 cannot be reached: Connection refused"


def test_an_advertised_name_that_cannot_be_resolved(data: Path) -> None:
    options = StartOptions(listen=["0.0.0.0:9092"], advertise=["queue.example:9092"])
    unknown = OSError(-2, "Name or service not known")
    assert failure(data, options=options, addresses=unknown) == (
        "advertised address", PROBLEM, "queue.example cannot be resolved: Name or service not known",
    )  # fmt: skip


def test_a_loopback_address_advertised_on_a_wildcard_listener(data: Path) -> None:
    options = StartOptions(listen=["0.0.0.0:9092"], advertise=["localhost:9092"])
    check, status, message = failure(data, options=options, addresses=["127.0.0.1", "::1"])
    assert (check, status) == ("advertised address", WARNING)
    assert "is reachable from this machine only" in message


# Disk.


def test_stray_logs(data: Path) -> None:
    (data / f"old-0.{'a' * 32}-stray").mkdir()
    assert failure(data)[:2] == ("stray logs", WARNING)
    assert failure(data)[2].startswith(
        "1 log with 0 bytes belonged to no replica of this broker and were set aside, such as old-0."
    )


def test_an_unusable_data_directory(data: Path, tmp_path: Path) -> None:
    assert failure(data, is_writable=False) == ("data directory", PROBLEM, f"{data} is not readable and writable")
    file = tmp_path / "file"
    file.touch()
    assert [result.message for result in results(file) if result.status == PROBLEM] == [f"{file} is not a directory"]
    assert failure(data, options=StartOptions(set=["node.id=7"])) == (
        "data directory", PROBLEM, f"{data} has the data of node.id=1",
    )  # fmt: skip
    (data / file_names.META_PROPERTIES).write_text("version=1\n")
    assert failure(data)[2] == f"{data}/meta.properties is damaged: cluster.id is missing"


def test_a_partition_without_a_segment(data: Path) -> None:
    """A kill has left the directory of a new log empty."""
    (data / "new-0").mkdir()
    (data / file_names.CLEAN_SHUTDOWN).unlink()
    assert failure(data)[:2] == ("last stop", WARNING)


def test_the_directory_of_several_brokers(tmp_path: Path) -> None:
    (tmp_path / "broker-1").mkdir()
    assert [result.message for result in results(tmp_path) if result.status == PROBLEM] == [
        f"{tmp_path} has the data of several brokers"
    ]


def test_disk_space(data: Path) -> None:
    assert failure(data, SizedDisk(100 << 30, 50 << 20)) == ("disk space", PROBLEM, "50.0 MiB of 100.0 GiB free")
    assert failure(data, SizedDisk(100 << 30, 4 << 30))[1] == WARNING
    assert failure(data, SizedDisk(10 << 30, 900 << 20))[1] == WARNING
    options = StartOptions(set=[f"log.retention.bytes={60 << 30}"])
    assert failure(data, options=options) == (
        "disk space", WARNING,
        "50.0 GiB of 100.0 GiB free; log.retention.bytes allows 60.0 GiB in 1 partition",
    )  # fmt: skip


def test_file_systems(data: Path) -> None:
    assert failure(data, file_system=FileSystem("nfs4", "/data", "0:50")) == (
        "file system", WARNING, "nfs4 at /data is a network file system",
    )  # fmt: skip
    assert failure(data, file_system=FileSystem("tmpfs", "/tmp", "0:5"))[2] == "tmpfs at /tmp is in memory"
    messages = {result.check: result.message for result in results(data, file_system=None)}
    assert messages["file system"].startswith("unknown")


def test_reads_of_cached_data(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RealFile, "pread_nowait", lambda *_: None)
    assert failure(data)[:2] == ("reads", WARNING)


def test_write_caches(data: Path) -> None:
    def message(**faults: Any) -> str:
        return next(result.message for result in results(data, **faults) if result.check == "write cache")

    assert message() == "sda is write through"
    assert message(write_caches={"vda": "write back"}).startswith("vda writes back")
    assert message(write_caches={}).startswith("unknown")


def test_disks_under_a_device(tmp_path: Path) -> None:
    for disk, mode in (("sda", "write back"), ("sdb", "write through")):
        (tmp_path / disk / "queue").mkdir(parents=True)
        (tmp_path / disk / "queue" / "write_cache").write_text(mode + "\n")
        (tmp_path / disk / f"{disk}1").mkdir()
    (tmp_path / "dm-0" / "queue").mkdir(parents=True)
    (tmp_path / "dm-0" / "slaves").mkdir()
    for partition in ("sda/sda1", "sdb/sdb1"):
        (tmp_path / "dm-0" / "slaves" / partition[-4:]).symlink_to(tmp_path / partition)
    assert dict(_write_caches(tmp_path / "sda" / "sda1")) == {"sda": "write back"}
    assert dict(_write_caches(tmp_path / "sdb")) == {"sdb": "write through"}
    assert dict(_write_caches(tmp_path / "dm-0")) == {"sda": "write back", "sdb": "write through"}
    assert dict(_write_caches(tmp_path / "nothing")) == {}


# Shutdown, clock, limits, programs.


def test_an_unclean_shutdown_and_the_bytes_to_recover(data: Path) -> None:
    (data / file_names.CLEAN_SHUTDOWN).unlink()
    last = max((data / "t-0").glob("*.log")).stat().st_size
    assert failure(data) == (
        "last stop", WARNING, f"not clean: the next start reads up to {format_size(last)} in 1 partition",
    )  # fmt: skip
    (data / file_names.RECOVERY_POINTS).write_text("?")
    total_bytes = sum(path.stat().st_size for path in (data / "t-0").glob("*.log"))
    damaged, unclean = (result.message for result in results(data) if result.check == "last stop")
    assert "is damaged" in damaged
    assert format_size(total_bytes) in unclean


def test_clocks(data: Path) -> None:
    assert failure(data, synchronized=False)[:2] == ("clock", WARNING)
    assert [result.status for result in results(data, synchronized=None) if result.check == "clock"] == [OK]
    path = data / "t-0" / file_names.LEADER_EPOCHS
    os.utime(path, ns=((NOW + 120_000) * 10**6, (NOW + 120_000) * 10**6))
    assert failure(data) == ("clock", PROBLEM, f"{path} was written 120 s in the future")


def test_open_files(data: Path) -> None:
    assert failure(data, max_open_files=1003) == (
        "open files",
        WARNING,
        "at most 1003, for 1 partition and the connections",
    )
    assert "unlimited" in next(
        result.message for result in results(data, max_open_files=-1) if result.check == "open files"
    )


def test_memory(data: Path) -> None:
    assert failure(data, memory={"MemTotal": 1 << 30, "MemAvailable": 100 << 20})[:2] == ("memory", WARNING)
    assert (
        "container limit 200.0 MiB"
        in failure(data, memory={"MemTotal": 8 << 30, "MemAvailable": 4 << 30, "limit": 200 << 20})[2]
    )
    swapped = {"MemTotal": 8 << 30, "MemAvailable": 4 << 30, "SwapTotal": 4 << 30, "SwapFree": 1 << 30}
    assert "3.0 GiB of 4.0 GiB swap used" in failure(data, memory=swapped)[2]
    assert [result.status for result in results(data, memory={}) if result.check == "memory"] == [OK]


def test_programs(data: Path) -> None:
    assert failure(data, modules=())[:2] == ("programs", WARNING)
    assert failure(data, modules=("uvloop", "pyspark"), java=None)[:2] == ("Spark", WARNING)
    assert [result.message for result in results(data, modules=("uvloop", "pyspark")) if result.check == "Spark"] == [
        "pyspark, and java at /usr/bin/java"
    ]


# The command, on this host.


def test_the_command(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        args = ["doctor", "--data-dir", str(data), "--listen", address]
        assert main(args) == 1
        output = capsys.readouterr().out
        assert f"problem  listener            PLAINTEXT://{address} cannot be bound: Address already in use" in output
        assert "-> Stop the process that listens there" in output
        assert main([*args, "--json"]) == 1
        listed = {result["check"]: result for result in json.loads(capsys.readouterr().out)}
        assert listed["listener"]["status"] == "problem"
        assert listed["data directory"]["status"] == "ok"
    assert "problem  listener" not in (main(args), capsys.readouterr().out)[1]


def test_the_real_host(data: Path) -> None:
    """The real host returns values of the types that FaultyHost returns."""
    host = Host()
    file_system = host.file_system(str(data))
    assert file_system is not None
    assert str(data).startswith(file_system.mount_point)
    assert isinstance(host.write_caches(file_system.device), dict)
    assert host.write_caches("999:999") == {}
    assert host.is_clock_synchronized() in (True, False, None)
    assert host.memory()["MemTotal"] > 0
    assert host.max_open_files() != 0
    assert "127.0.0.1" in host.resolve("127.0.0.1")
    assert host.is_writable(str(data))
    assert not host.is_locked(str(data / "none"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert host.connect_error("127.0.0.1", port) is None
        assert host.bind_error("127.0.0.1", port) is not None
    assert host.connect_error("127.0.0.1", port) is not None
    assert host.describe_cluster("127.0.0.1", port) is None
