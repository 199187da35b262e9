"""Helpers of the tests of all clients: wait for a condition, choose unique names, run a broker process."""

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self, TypeVar

import pytest

from scripts.ports import free_ports

T = TypeVar("T")

# host:port of the broker under test; empty when the suite starts its own.
EXTERNAL_BOOTSTRAP = os.environ.get("KBROKER_COMPAT_BOOTSTRAP", "")

# Seconds after which a wait fails. A wait ends as soon as its condition holds, so this only bounds a test that has
# failed; it is long enough for a slow machine with other work.
DEADLINE_S = 120.0

_PAUSE = threading.Event()  # never set; unlike time.sleep, a wait on it ends with a signal


class Sampler(ABC):
    """Calls `sample` every `interval_s` seconds in a thread while the context is open."""

    interval_s = 0.01

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_S)

    @abstractmethod
    def sample(self) -> None: ...

    def _run(self) -> None:
        while not self._stopping.wait(self.interval_s):
            self.sample()


def eventually(
    condition: Callable[[], T],
    description: str,
    timeout: float = DEADLINE_S,
    interval: float = 0.05,
    progress: Callable[[], object] | None = None,
) -> T:
    """Call `condition` until its result is true, and return that result.

    Fails with `description` after `timeout` seconds. With `progress` it fails only when the value that `progress`
    returns has not changed for `timeout` seconds: work of any length on a machine of any speed.

    It sleeps for `interval` seconds, and up to 20 times as long after a condition that takes much of the processor:
    what is waited for needs the processor more.
    """
    last = progress() if progress else None
    deadline = time.monotonic() + timeout
    while True:
        begin_s = time.thread_time()
        result = condition()
        if result:
            return result
        used_s = time.thread_time() - begin_s
        if progress and (value := progress()) != last:
            last = value
            deadline = time.monotonic() + timeout
        elif time.monotonic() > deadline:
            state = f"; last progress: {last!r}" if progress else ""
            raise AssertionError(f"not within {timeout:g} s: {description}; last result: {result!r}{state}")
        _PAUSE.wait(max(interval, min(20 * interval, 5 * used_s)))


def fill(path: Path) -> None:
    """Write to a file until its file system has no free byte."""
    with path.open("ab", buffering=0) as file:
        for size in (1 << 16, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    continue
    assert os.statvfs(path).f_bavail == 0


def raises_eventually(attempt: Callable[[], object], error: type[BaseException], description: str) -> None:
    """Repeat `attempt` until it raises `error`; any other exception fails the test."""

    def failed() -> bool:
        try:
            attempt()
        except error:
            return True
        return False

    eventually(failed, description)


def unique(stem: str) -> str:
    """Return a topic, group or producer name that no other test and no earlier run has used."""
    return f"{re.sub(r'[^A-Za-z0-9-]', '-', stem)}-{secrets.token_hex(4)}"


def need_own_broker() -> None:
    """Skip a test that kills a broker or reads its files when the suite runs against an external broker."""
    if EXTERNAL_BOOTSTRAP:
        pytest.skip("not run: needs a broker of its own, and the suite was pointed at one")


class BrokerProcess:
    """A broker process with a data directory of its own, which a test may kill and restart.

    `KBROKER_COMPAT_COMMAND` names another program with the arguments and the ready line of `kbroker`; it is used to
    check that the tests which kill the broker detect a broker that loses records. `program` is the command of the next
    start.
    """

    READY = re.compile(r"^kbroker ready: bootstrap (\S+)$", re.MULTILINE)

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        advertise: str | None = None,
        file_limit: int | None = None,
    ) -> None:
        """`file_limit`: the file descriptors that the process may have; None: as many as this one."""
        self.data_dir = directory / "data"
        self.bootstrap = f"127.0.0.1:{free_ports()}"
        self.starts = 0
        self.program = os.environ.get("KBROKER_COMPAT_COMMAND", "").split() or [sys.executable, "-m", "kbroker"]
        self._advertise = advertise
        self._file_limit = file_limit
        # By default Kafka waits three seconds for more members whenever an empty group is joined. Without any delay,
        # kafka-python 3.0.12 may assign no partitions: docs/troubleshooting.md.
        self._settings = {"group.initial.rebalance.delay.ms": "200", **(settings or {})}
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_launched(self) -> bool:
        """Return whether there is a process, which may have ended by itself."""
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def partition_dir(self, topic: str, partition: int) -> Path:
        """Return the partition's log directory."""
        directories = [path for path in self.data_dir.rglob(f"{topic}-{partition}") if path.is_dir()]
        assert len(directories) == 1, f"directories of {topic}-{partition} under {self.data_dir}: {directories}"
        return directories[0]

    @property
    def errors(self) -> str:
        """The log lines of the process since its latest start."""
        return (self._directory / f"stderr-{self.starts}").read_text()

    @property
    def all_errors(self) -> str:
        """The log lines of all starts."""
        return "".join((self._directory / f"stderr-{start + 1}").read_text() for start in range(self.starts))

    def start(self) -> None:
        """Start the process and wait for its ready line."""
        self.launch()
        eventually(self.ready, f"the broker's ready line ({' '.join(self._command())})", interval=0.02)

    def ready(self) -> bool:
        """Return whether the ready line was printed. Fails if the process has ended."""
        code = self._process.poll() if self._process else None
        if code is not None:
            raise AssertionError(f"the broker ended with {code} during its start:\n{self.errors[-4000:]}")
        return self.READY.search((self._directory / f"stdout-{self.starts}").read_text()) is not None

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self.starts += 1
        output = self._directory / f"stdout-{self.starts}"
        errors = self._directory / f"stderr-{self.starts}"
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            self._process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)

    def _command(self) -> list[str]:
        command = [*self.program, "start", "--data-dir", str(self.data_dir), "--listen", self.bootstrap]
        if self._advertise is not None:
            command += ["--advertise", self._advertise]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        if self._file_limit is not None:
            command = ["sh", "-c", f'ulimit -n {self._file_limit}; exec "$@"', "sh", *command]
        return command

    def freeze(self) -> None:
        """Send SIGSTOP: the broker does nothing until it is killed, so a test can count requests without responses."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT after `freeze`."""
        os.kill(self.pid, signal.SIGCONT)

    def wait(self) -> int:
        """Wait until the process ends by itself, and return its exit status."""
        assert self._process is not None, "the broker is not running"
        process, self._process = self._process, None
        return process.wait(DEADLINE_S)

    def kill(self) -> None:
        """Kill the broker (kill -9): no handler runs, nothing is flushed."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Send SIGTERM. Fails unless the shutdown is clean."""
        code = self._end(signal.SIGTERM)
        assert code in (0, 128 + signal.SIGTERM), f"the broker's clean shutdown ended with {code}"

    def restart(self) -> None:
        """Kill the broker (kill -9) and start it again with the same data and port."""
        self.kill()
        self.start()

    def end(self) -> None:
        """Kill the process if it is running."""
        if self._process is not None:
            self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None, "the broker is not running"
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            return process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the broker did not end within {DEADLINE_S:g} s of {number.name}") from None


@contextmanager
def running_broker(
    directory: Path,
    settings: Mapping[str, str] | None = None,
    advertise: str | None = None,
    file_limit: int | None = None,
) -> Iterator[BrokerProcess]:
    """A started broker, killed at the end if it is still running."""
    broker = BrokerProcess(directory, settings, advertise, file_limit)
    try:
        broker.start()
        yield broker
    finally:
        broker.end()


def by_partition(records: Iterable[tuple[int, T]]) -> dict[int, list[T]]:
    """Group (partition, item) pairs by partition, in order."""
    grouped: dict[int, list[T]] = {}
    for partition, item in records:
        grouped.setdefault(partition, []).append(item)
    return grouped
