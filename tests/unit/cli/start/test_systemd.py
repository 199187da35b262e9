"""The units of systemd, and what it learns from a broker with Type=notify."""

import configparser
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cli.start.options import load_properties, parse_options
from kbroker.runtime.system import notify_service_manager

UNITS = Path(__file__).parents[4] / "systemd"


@pytest.mark.parametrize("name", ["kbroker.service", "kbroker@.service"])
def test_a_unit_starts_a_broker_with_a_data_directory_that_it_may_write(name: str) -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNITS / name)
    service = unit["Service"]
    program, command, *args = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("kbroker", "start")
    options = parse_options(args)
    assert options is not None
    assert options.config is not None
    assert options.data_dir == f"/var/lib/{service['StateDirectory']}"
    options.config = None
    properties, _ = load_properties(options, {})
    assert properties["log.dirs"].text == options.data_dir
    assert (service["Type"], service["TimeoutStartSec"]) == ("notify", "infinity")


@pytest.mark.parametrize("abstract", [False, True])
def test_a_state_is_sent_to_the_socket_of_systemd(
    abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"kbroker-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}" if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}" if abstract else name)
        notify_service_manager("READY=1")
        assert manager.recv(100) == b"READY=1"


def test_nobody_is_notified_without_a_service_manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify_service_manager("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "absent"))
    notify_service_manager("READY=1")


@pytest.mark.parametrize("brokers", [[], ["--brokers", "2"]], ids=["one broker", "two brokers"])
def test_a_start_and_a_stop_are_reported_once(brokers: list[str], tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        options = ["--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", *brokers]
        with subprocess.Popen(
            [sys.executable, "-m", "kbroker", "start", *options],
            env=os.environ | {"NOTIFY_SOCKET": address}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as broker:  # fmt: skip
            assert manager.recv(100) == b"READY=1"
            broker.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert broker.wait(60) == 0
        manager.settimeout(0)
        with pytest.raises(BlockingIOError):
            manager.recv(100)
