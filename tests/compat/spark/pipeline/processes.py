"""`kbroker` commands with a Spark of their own, as processes that tests kill: Python and the JVM under it."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.compat.spark.conftest import IVY
from tests.compat.support import eventually

JARS = IVY / "jars"
# Quick to start, for processes that live some seconds.
SMALL = ("spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto",)


class Command:
    """One command of kbroker, its output in files; `kill` leaves nothing of it."""

    def __init__(self, directory: Path, *arguments: str | Path) -> None:
        self._arguments = [str(argument) for argument in arguments]
        self._directory = directory
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._starts += 1
        self._directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "kbroker", *self._arguments]
        environment = {**os.environ, "KBROKER_SPARK_JARS": str(JARS), "SPARK_LOCAL_IP": "127.0.0.1"}
        with self._file("stdout").open("wb") as stdout, self._file("stderr").open("wb") as stderr:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment
            )

    @property
    def starts(self) -> int:
        return self._starts

    @property
    def output(self) -> str:
        return self._file("stdout").read_text()

    @property
    def errors(self) -> str:
        return self._file("stderr").read_text()

    @property
    def started(self) -> bool:
        """Whether it was started since it was last killed or waited for."""
        return self._process is not None

    def ended(self) -> int | None:
        """The exit code of a process that has ended by itself; None while it runs, or where it was not started."""
        return None if self._process is None else self._process.poll()

    def running(self) -> bool:
        """True while it runs; fails when it has ended by itself."""
        assert self._process is not None, "not started"
        code = self.ended()
        assert code is None, f"{self._arguments[:2]} ended with {code}:\n{self.errors[-4000:]}"
        return True

    def wait(self, timeout: float) -> int:
        """Its exit code; it has left no process behind."""
        assert self._process is not None, "not started"
        tree = descendants(self._process.pid)
        code = self._process.wait(timeout)
        self._process = None
        _gone(tree)
        return code

    def stop(self, timeout: float = 60) -> int:
        """SIGTERM, and the exit code."""
        assert self._process is not None, "not started"
        self._process.terminate()
        return self.wait(timeout)

    def kill(self, whole: bool = True) -> None:
        """kill -9 of Python and its JVM at once, or of Python alone: then the JVM has to end by itself."""
        if self._process is None:
            return
        process, self._process = self._process, None
        tree = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        if whole:
            _kill(tree)
        try:
            _gone(tree)
        finally:
            _kill(tree)

    def kill_jvm(self, timeout: float = 60) -> None:
        """kill -9 of its JVM, where it has one: Python then ends by itself, and not with success. Otherwise a kill."""
        assert self._process is not None, "not started"
        jvm = next((pid for pid in descendants(self._process.pid) if _name(pid) == "java"), 0)
        if not jvm:
            self.kill()
            return
        os.kill(jvm, signal.SIGKILL)
        assert self.wait(timeout) != 0, f"{self._arguments[:2]} takes the end of its JVM for success:\n{self.errors}"

    def _file(self, what: str) -> Path:
        return self._directory / f"{what}-{self._starts}"


def descendants(pid: int) -> list[int]:
    """The processes under this one, without itself."""
    found = [pid]
    for parent in found:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, children.read_text().split())
            except OSError:
                continue
    return found[1:]


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        if _alive(pid):
            os.kill(pid, signal.SIGKILL)


def _gone(pids: Sequence[int]) -> None:
    eventually(lambda: not any(map(_alive, pids)), f"the end of the processes {pids}", 30)


def _alive(pid: int) -> bool:
    """Whether it runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
