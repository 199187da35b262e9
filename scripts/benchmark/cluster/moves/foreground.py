"""Clients that work while replicas are moved: Foreground.java."""

import subprocess
from pathlib import Path
from typing import IO, NamedTuple

from scripts.benchmark.peers import java

END_S = 60


class ForegroundLatency(NamedTuple):
    """Percentiles of one window, in milliseconds: until the acknowledgement (acks=all), and from send to poll."""

    p50: float
    p99: float
    end_to_end_p50: float
    end_to_end_p99: float


class Foreground:
    """A producer at a steady rate and a consumer, in one process, with warm clients when this is created."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        """`rate`: records of 100 bytes per second."""
        command = java(str(Path(__file__).with_name("Foreground.java")), bootstrap, topic, str(rate))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    @property
    def _commands(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the clients ended with {self._process.wait(END_S)}")
        return line

    def begin(self) -> None:
        """Begin a window."""
        self._commands.write("begin\n")
        self._commands.flush()

    def end(self) -> ForegroundLatency:
        """Return the latencies of the window."""
        self._commands.write("end\n")
        self._commands.flush()
        return ForegroundLatency(*(int(micros) / 1000 for micros in self._read().split()))

    def close(self) -> None:
        self._commands.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
