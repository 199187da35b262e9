"""The two servers that are compared: kbroker from this tree, and Apache Kafka 4.4.0 from Maven."""

import base64
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from scripts.ports import free_ports

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "kafka-4.4.0"
QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
# The characters of a server's log that are shown when it does not start.
LOG_TAIL = 4_000
MAVEN_S, MAVEN_ATTEMPTS = 200, 3
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class ProcessorTime(NamedTuple):
    """Seconds of all threads of a process and its children."""

    user: float
    system: float

    @property
    def total(self) -> float:
        return self.user + self.system


def kafka_classpath() -> str:
    """Return the classpath of Apache Kafka's jars, which are downloaded once."""
    return downloaded_classpath(HERE / "kafka-pom.xml", CACHE)


def downloaded_classpath(pom: Path, directory: Path) -> str:
    """Return the classpath of the dependencies in a file of Maven, which are downloaded once."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with (directory.parent / f"{directory.name}.lock").open("w") as lock:
        # Another process may be downloading them: it has some of the jars before all.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(directory.glob("*.jar")):
            print(f"downloading {directory.name} with Maven ...", file=sys.stderr, flush=True)
            maven("-f", pom, "dependency:copy-dependencies", f"-DoutputDirectory={directory}")
    return f"{directory}/*"


def maven(*arguments: str | Path) -> None:
    """Run Maven. After a download that stalls, it starts again and downloads what is missing.

    Its own limit is half an hour for each read from the network.
    """
    for attempts_left in reversed(range(MAVEN_ATTEMPTS)):
        try:
            subprocess.run(["mvn", "-q", "-B", *map(str, arguments)], check=True, timeout=MAVEN_S)
            return
        except subprocess.TimeoutExpired:
            if not attempts_left:
                raise


# How long a server may take until it listens, by default. One with thousands of logs reads them first.
START_S = 120.0


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path, deadline_s: float = START_S) -> None:
    """Wait until a server listens. Raises SystemExit with the end of its log if it does not."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode} before it listened:\n{_tail(log)}")
        try:
            socket.create_connection(("127.0.0.1", port), 0.5).close()
            return
        except OSError:
            time.sleep(0.005)
    raise SystemExit(f"the server did not listen at port {port} in {deadline_s:g} s:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-LOG_TAIL:]


def resident_kib(pid: int) -> int:
    return _figure(Path(f"/proc/{pid}/status"), "VmRSS:")


def _proportional_kib(pid: int) -> int:
    return _figure(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def _figure(path: Path, name: str) -> int:
    """Return a number from a file of /proc; 0 for a process that has ended."""
    with suppress(OSError):
        for line in path.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    return 0


class Peer:
    """A server with its own directory; `name` is its column in the table."""

    name = "?"
    # The working directory. Python imports from it first.
    tree = ROOT
    start_s = START_S

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = free_ports()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """What the server has written to standard output and standard error."""
        return self.directory / "server.log"

    def ports(self) -> list[int]:
        """Return the ports for clients."""
        return [self.port]

    def command(self) -> list[str]:
        raise AssertionError("each peer has its own command")

    def prepare(self) -> None:
        """Called before the first start."""

    def start(self) -> None:
        """Start, and return as soon as all ports accept connections. Raises SystemExit with the end of the log."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.tree
            )
        try:
            for port in self.ports():
                wait_for_port(port, self.process, self.log, self.start_s)
        except SystemExit:
            self.kill()
            raise

    def stop(self, how: int = signal.SIGTERM) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(how)
            process.wait(timeout=120)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def processes(self) -> list[int]:
        """Return the process ids of the server and its child processes."""
        assert self.process is not None
        pids = [self.process.pid]
        for pid in pids:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                with suppress(OSError):
                    pids += map(int, children.read_text().split())
        return pids

    def resident_mib(self) -> float:
        """Return the resident memory of the server and its child processes."""
        return sum(map(resident_kib, self.processes())) / 1024

    def proportional_mib(self) -> float:
        """Return the memory of the server and its child processes, with what several of them share counted once."""
        return sum(map(_proportional_kib, self.processes())) / 1024

    def processor_time(self) -> ProcessorTime:
        """Return the processor time that the server and its child processes have used since it was started."""
        user = system = 0
        for pid in self.processes():
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                # Its own, then those of children that have ended.
                user += int(fields[11]) + int(fields[13])
                system += int(fields[12]) + int(fields[14])
        return ProcessorTime(user * _TICK_S, system * _TICK_S)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class Kbroker(Peer):
    name = "kbroker"

    def __init__(self, directory: Path, tree: Path = ROOT) -> None:
        """`tree`: the source tree that is measured; it runs in this environment."""
        super().__init__(directory)
        self.tree = tree

    def command(self) -> list[str]:
        return [
            sys.executable, "-m", "kbroker", "start", "--data-dir", str(self.directory / "data"), "--listen",
            self.bootstrap, "--set", "group.initial.rebalance.delay.ms=0",
        ]  # fmt: skip


class Kafka(Peer):
    name = "Apache Kafka"

    def __init__(self, directory: Path, heap: str = "1g") -> None:
        super().__init__(directory)
        self.heap = heap

    def prepare(self) -> None:
        controller = free_ports()
        (self.directory / "server.properties").write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://{self.bootstrap}\n"
            "controller.listener.names=CONTROLLER\n"
            f"log.dirs={self.directory}/data\n"
            "offsets.topic.replication.factor=1\n"
            "transaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\n"
            "share.coordinator.state.topic.replication.factor=1\n"
            "share.coordinator.state.topic.min.isr=1\n"
            "group.initial.rebalance.delay.ms=0\n"
        )
        # The tool takes an id that begins with a dash for an option.
        cluster = "k" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        subprocess.run(
            java("kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster, "-c",
                 str(self.directory / "server.properties")),
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def command(self) -> list[str]:
        heap = [f"-Xmx{self.heap}", f"-Xms{self.heap}"]
        return java("kafka.Kafka", str(self.directory / "server.properties"), options=heap)


def java(main: str, *args: str, options: list[str] | None = None) -> list[str]:
    return ["java", QUIET, *(options or ["-Xmx1g"]), "-cp", kafka_classpath(), main, *args]


def environment() -> dict[str, str]:
    """Describe the machine, for the footer of the table."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30
    return {"cores": str(os.cpu_count()), "memory_gib": str(memory), "python": sys.version.split()[0]}
