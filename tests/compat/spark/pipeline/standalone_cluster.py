"""A Spark cluster of its own on this machine: a master and a worker from pyspark's jars, on loopback."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.compat.spark.pipeline.processes import descendants
from tests.compat.support import DEADLINE_S, eventually

JARS = Path(pyspark.__file__).with_name("jars")
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_SMALL_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class StandaloneCluster:
    """A master, and a worker with two cores."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def start(self) -> None:
        log = self._run("master", "org.apache.spark.deploy.master.Master", "--port", "0", "--webui-port", "0")
        eventually(lambda: _MASTER_URL.search(log.read_text()), "the master's address", DEADLINE_S)
        match = _MASTER_URL.search(log.read_text())
        assert match is not None
        self.url = match[1]
        worker = ("org.apache.spark.deploy.worker.Worker", "--webui-port", "0", "--cores", "2", "--memory", "2g")
        log = self._run("worker", *worker, "--work-dir", str(self._directory / "work"), self.url)
        eventually(lambda: "Successfully registered with master" in log.read_text(), "a registered worker", DEADLINE_S)

    def executors(self) -> list[int]:
        """Return the ids of the executors' processes."""
        return [
            pid
            for process in self._processes
            for pid in descendants(process.pid)
            if "CoarseGrainedExecutorBackend" in _command_line(pid)
        ]

    def kill_executor(self) -> None:
        """Kill one executor (kill -9); the master starts another one."""
        os.kill(self.executors()[0], signal.SIGKILL)

    def end(self) -> None:
        pids = [pid for process in self._processes for pid in descendants(process.pid)]
        for process in self._processes:
            process.kill()
            process.wait(DEADLINE_S)
        for pid in pids:
            if _command_line(pid):
                os.kill(pid, signal.SIGKILL)

    def _run(self, name: str, *arguments: str) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        log = self._directory / f"{name}.log"
        command = ["java", *_SMALL_JVM, "-cp", f"{JARS}/*", arguments[0], "--host", "127.0.0.1", *arguments[1:]]
        environment = {**os.environ, "SPARK_HOME": str(JARS.parent), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_SCALA_VERSION": "2.13"}
        with log.open("wb") as output:
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
            )
        return log


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.end()
