"""`kbroker` commands with a Spark session of their own, as processes that tests kill: Python and its JVM."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.compat.spark.session import IVY, jvm_options
from tests.compat.support import DEADLINE_S, eventually

JARS = IVY / "jars"


def quick_jvm() -> str:
    """Return the value of --conf for processes that live for some seconds."""
    return f"spark.driver.extraJavaOptions={jvm_options()}"


class Command:
    """One kbroker command, which can be started repeatedly. Its output goes to a file per start."""

    def __init__(self, directory: Path, *arguments: str | Path) -> None:
        self.arguments = [str(argument) for argument in arguments]
        self._directory = directory
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._starts += 1
        self._directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "kbroker", *self.arguments]
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
        """Whether it was started and neither killed nor waited for since."""
        return self._process is not None

    def exit_status(self) -> int | None:
        """Return the status of a process that has exited by itself; None while it runs, or if it was not started."""
        return None if self._process is None else self._process.poll()

    def running(self) -> bool:
        """Return True while it runs; fail if it has exited by itself."""
        assert self._process is not None, "not started"
        status = self.exit_status()
        assert status is None, f"{self.arguments[:2]} exited with {status}:\n{self.errors[-4000:]}"
        return True

    def wait(self, timeout: float) -> int:
        """Return the exit status; fail if a child process remains."""
        assert self._process is not None, "not started"
        children = descendants(self._process.pid)
        status = self._process.wait(timeout)
        self._process = None
        _wait_for_end(children)
        return status

    def stop(self, timeout: float = DEADLINE_S) -> int:
        """Send SIGTERM, and return the exit status."""
        assert self._process is not None, "not started"
        self._process.terminate()
        return self.wait(timeout)

    def kill(self, with_jvm: bool = True) -> None:
        """Kill (kill -9) Python and its JVM, or Python alone: then the JVM must exit by itself."""
        if self._process is None:
            return
        process, self._process = self._process, None
        children = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE_S)
        if with_jvm:
            _kill(children)
        try:
            _wait_for_end(children)
        finally:
            _kill(children)

    def kill_jvm(self, timeout: float = DEADLINE_S) -> None:
        """Kill the JVM (kill -9) if there is one: Python must then exit with an error. Otherwise kill everything."""
        assert self._process is not None, "not started"
        jvm = next((pid for pid in descendants(self._process.pid) if _name(pid) == "java"), 0)
        if not jvm:
            self.kill()
            return
        os.kill(jvm, signal.SIGKILL)
        assert self.wait(timeout) != 0, f"{self.arguments[:2]} reports success without its JVM:\n{self.errors}"

    def _file(self, stream: str) -> Path:
        return self._directory / f"{stream}-{self._starts}"


def descendants(pid: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    pids = [pid]
    for parent in pids:
        for children in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                pids += map(int, children.read_text().split())
            except OSError:
                continue
    return pids[1:]


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        if _is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def _wait_for_end(pids: Sequence[int]) -> None:
    eventually(lambda: not any(map(_is_alive, pids)), f"the end of the processes {pids}")


def _is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
