"""`kbroker start --console`: the console logs in to a secured broker, needs a token, and ends with the broker."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, build_opener, urlopen

import pytest

from tests.compat.support import eventually

READY = "kbroker console ready: "


class StartedBroker:
    """`kbroker start --secure --console`. `url`: of the console, with its token."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "kbroker", "start", "--data-dir", str(directory), "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, "--secure", "--console", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = eventually(self._ready_url, "the console is ready")

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(self.process.stderr)

    def _ready_url(self) -> str:
        return next((line.removeprefix(READY).strip() for line in list(self.lines) if line.startswith(READY)), "")

    def is_console_away(self) -> bool:
        host, _, port = self.url.split("/")[2].partition(":")
        try:
            socket.create_connection((host, int(port)), 5).close()
        except OSError:
            return True
        return False


@pytest.fixture
def started(tmp_path: Path) -> Iterator[StartedBroker]:
    broker = StartedBroker(tmp_path / "data")
    yield broker
    broker.process.kill()
    broker.process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_console_of_a_secured_broker(started: StartedBroker, number: signal.Signals) -> None:
    assert started.process.stdout is not None
    # The only line of standard output is that of the broker.
    assert started.process.stdout.readline().startswith("kbroker ready: bootstrap ")
    with pytest.raises(HTTPError, match="401"):
        urlopen(started.url.partition("?")[0])
    page = build_opener(HTTPCookieProcessor(CookieJar())).open(started.url).read().decode()
    assert "<h1>Topics" in page
    assert "read-only" in page
    started.process.send_signal(number)
    assert started.process.wait(60) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    eventually(started.is_console_away, "the console ends")
