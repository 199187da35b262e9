"""What `kbroker console` and `kbroker start --console` refuse, each with one line."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cli import main
from kbroker.cli.start import console_process


@pytest.mark.parametrize(
    ("args", "status", "error"),
    [
        (["console", "--listen", "0.0.0.0:1"], 2, "can be reached from other machines: add --allow-remote"),
        (["console", "--listen", "[::]:1"], 2, "can be reached from other machines: add --allow-remote"),
        (["console", "--listen", "console.example:1"], 2, "can be reached from other machines: add --allow-remote"),
        (["console", "--listen", "8080"], 2, "--listen must be HOST:PORT, not '8080'"),
        (["console", "-b", ","], 2, "--bootstrap is empty"),
        (["start", "--console", "0.0.0.0:1"], 2, "can be reached from other machines: use 127.0.0.1"),
        (["start", "--console", "8080"], 2, "--console must be HOST:PORT, not '8080'"),
        (["start", "--dev", "--console", "127.0.0.1:0"], 2, "--console goes without --dev"),
    ],
)
def test_wrong_usage(args: list[str], status: int, error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == status
    printed = capsys.readouterr().err
    assert error in printed
    assert printed.count("\n") == 1


def test_an_address_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["console", "--listen", address]) == 1
    assert capsys.readouterr().err == f"kbroker: cannot listen on {address}: Address already in use\n"


def test_a_token_that_can_be_guessed_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KBROKER_CONSOLE_TOKEN", "short")
    assert main(["console", "--listen", "0.0.0.0:0", "--allow-remote"]) == 2
    assert "KBROKER_CONSOLE_TOKEN must have at least 16 characters" in capsys.readouterr().err


def test_without_the_packages_the_command_says_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # An import of None fails.
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "kbroker.console.server", raising=False)
    monkeypatch.setattr(console_process, "find_spec", lambda name: None)
    for args in (["console"], ["start", "--data-dir", str(tmp_path), "--console", "127.0.0.1:0"]):
        assert main(args) == 1
        error = capsys.readouterr().err
        assert error.startswith("kbroker: the console needs packages: pip install ")
        assert error.count("\n") == 1


def test_no_other_command_imports_the_packages() -> None:
    program = (
        "import sys; from kbroker.cli.commands import COMMANDS; from kbroker.cli.app import load_command; "
        "[load_command(name) for name in COMMANDS]; print({'starlette', 'uvicorn', 'jinja2'} & {*sys.modules})"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"
