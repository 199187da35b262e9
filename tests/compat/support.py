"""What the tests of every client share: waiting with a deadline, fresh names, a broker process."""

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

# The broker that the suite is pointed at, host:port; empty when it starts its own.
OUTSIDE = os.environ.get("KBROKER_COMPAT_BOOTSTRAP", "")

_PAUSE = threading.Event()  # never set: waiting on it is a pause that a signal interrupts


def eventually(condition: Callable[[], T], what: str, timeout: float = 20.0, interval: float = 0.05) -> T:
    """Calls `condition` until its result is true, and returns that result.

    Fails with `what` and the last result when `timeout` seconds have passed.
    """
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what}; last seen: {result!r}")
        _PAUSE.wait(interval)


def while_moving(
    condition: Callable[[], T], what: str, progress: Callable[[], object], stalled: float, interval: float = 0.05
) -> T:
    """Call `condition` until its result is true, and return that result; on a slow machine this takes longer.

    Fails with `what` when `progress` has returned the same value for `stalled` seconds.
    """
    last, since = progress(), time.monotonic()
    while True:
        result = condition()
        if result:
            return result
        if (now := progress()) != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > stalled:
            raise AssertionError(f"no progress for {stalled:g} s: {what}; last seen: {result!r}, {last!r}")
        _PAUSE.wait(interval)


def raises_eventually(
    attempt: Callable[[], object], error: type[BaseException], what: str, timeout: float = 20.0
) -> None:
    """Repeats `attempt` until it fails with `error`; any other exception is the test's failure."""

    def failed() -> bool:
        try:
            attempt()
        except error:
            return True
        return False

    eventually(failed, what, timeout)


def unique(stem: str) -> str:
    """A topic, group or producer name that no other test and no earlier run has used."""
    return f"{re.sub(r'[^A-Za-z0-9-]', '-', stem)}-{secrets.token_hex(4)}"


def need_own_broker() -> None:
    """For tests that kill a broker or read its files: not run against somebody else's."""
    if OUTSIDE:
        pytest.skip("not run: needs a broker of its own, and the suite was pointed at one")


def free_port() -> int:
    """A port that nobody listens on, below the range that outgoing connections take theirs from.

    A broker that is killed and restarted must get its port back, so no client may own it meanwhile.
    """
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class BrokerProcess:
    """A broker as an operator runs it: a process with a data directory, killed and restarted at will.

    `KBROKER_COMPAT_COMMAND` names another program that takes the same arguments as `kbroker` and prints the
    same line when it is ready; this is how the tests that kill the broker are checked themselves.
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
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self.starts = 0
        self._advertise = advertise
        self._file_limit = file_limit
        # Without this Kafka waits three seconds for more members whenever an empty group is joined.
        self._settings = {"group.initial.rebalance.delay.ms": "0", **(settings or {})}
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    def partition_dir(self, topic: str, partition: int) -> Path:
        """Where this partition's segment files lie."""
        found = [path for path in self.data_dir.rglob(f"{topic}-{partition}") if path.is_dir()]
        assert len(found) == 1, f"directories of {topic}-{partition} under {self.data_dir}: {found}"
        return found[0]

    @property
    def errors(self) -> str:
        """What the process wrote to its log since its latest start."""
        return (self._directory / f"stderr-{self.starts}").read_text()

    def start(self, timeout: float = 60.0) -> None:
        """Starts the process and returns when it has said that it is ready."""
        self.launch()
        eventually(self.ready, f"the broker's ready line ({' '.join(self._command())})", timeout)

    def ready(self) -> bool:
        """Whether it has said that it is ready; fails when it has ended instead."""
        code = self._process.poll() if self._process else None
        if code is not None:
            raise AssertionError(f"the broker ended with {code} at its start:\n{self.errors[-4000:]}")
        return self.READY.search((self._directory / f"stdout-{self.starts}").read_text()) is not None

    def launch(self) -> None:
        """Starts the process and does not wait for it."""
        self.starts += 1
        output = self._directory / f"stdout-{self.starts}"
        errors = self._directory / f"stderr-{self.starts}"
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            self._process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)

    def _command(self) -> list[str]:
        command = os.environ.get("KBROKER_COMPAT_COMMAND", "").split() or [sys.executable, "-m", "kbroker"]
        command += ["start", "--data-dir", str(self.data_dir), "--listen", self.bootstrap]
        if self._advertise is not None:
            command += ["--advertise", self._advertise]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        if self._file_limit is not None:
            command = ["sh", "-c", f'ulimit -n {self._file_limit}; exec "$@"', "sh", *command]
        return command

    def freeze(self) -> None:
        """SIGSTOP: from here to the kill it does nothing, so that what it leaves undone can be counted."""
        os.kill(self.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """kill -9: no handler runs, nothing is flushed."""
        self._end(signal.SIGKILL, 10)

    def stop(self) -> None:
        """SIGTERM, and the exit code of a clean shutdown."""
        code = self._end(signal.SIGTERM, 30)
        assert code in (0, 128 + signal.SIGTERM), f"the broker's clean shutdown ended with {code}"

    def restart(self) -> None:
        """kill -9 and start again over the same data, on the same port."""
        self.kill()
        self.start()

    def end(self) -> None:
        """Leaves no process behind, whatever state the test left it in."""
        if self._process is not None:
            self._end(signal.SIGKILL, 10)

    def _end(self, how: signal.Signals, timeout: float) -> int:
        assert self._process is not None, "the broker is not running"
        process, self._process = self._process, None
        process.send_signal(how)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the broker did not end within {timeout:g} s of {how.name}") from None


@contextmanager
def running_broker(
    directory: Path,
    settings: Mapping[str, str] | None = None,
    advertise: str | None = None,
    file_limit: int | None = None,
) -> Iterator[BrokerProcess]:
    """A started broker; whatever is left of it is killed at the end."""
    broker = BrokerProcess(directory, settings, advertise, file_limit)
    try:
        broker.start()
        yield broker
    finally:
        broker.end()


def by_partition(records: Iterable[tuple[int, T]]) -> dict[int, list[T]]:
    """(partition, item) pairs, in order, as a list of items for each partition."""
    grouped: dict[int, list[T]] = {}
    for partition, item in records:
        grouped.setdefault(partition, []).append(item)
    return grouped
