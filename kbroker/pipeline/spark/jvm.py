"""Spark's JVM as a child process: starts it, passes on its output without the usual noise, and ends it."""

import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from subprocess import TimeoutExpired
from typing import Any, BinaryIO

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.error_text import shorten

# Lines that Spark's launcher and the JVM print at every start.
NOISE = (
    "WARNING: Using incubator modules",
    "Picked up JAVA_TOOL_OPTIONS",
    "Picked up JDK_JAVA_OPTIONS",
    "NOTE: Picked up JDK_JAVA_OPTIONS",
    "NOTE: SPARK_PREPEND_CLASSES",
    "Using Spark's default log4j profile",
    "Setting default log level to",
    "To adjust logging level use",
    "Setting Spark log level to",
)
# Stack traces of threads that were interrupted when the JVM ended.
_ENDING_NOISE = ("Exception in thread", "Caused by:", "\tat ", "\t... ")
_UNSPECIFIC = ("Error: Could not create the Java", "Error: A fatal exception", "WARNING:", "\tat ")
_THREAD = re.compile(r'^Exception in thread ".*?" ')
_KEPT_LINES = 100
_END_TIMEOUT_S = 30
# A JVM that is crashing closes its connections shortly before its process ends.
_CRASH_TIMEOUT_S = 0.5
# Options of the launcher's own short-lived JVM, which only builds a command line.
_LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


class Jvm:
    """A JVM with a py4j gateway. It ends when its standard input closes, so it never outlives this process."""

    def __init__(self, conf: Mapping[str, str], environ: Mapping[str, str], prints: bool) -> None:
        """Start the JVM, with `environ` added to the environment. With `prints` it inherits standard output.

        Raises PipelineError with the JVM's own message if it does not start.
        """
        from pyspark import SparkConf, java_gateway
        from pyspark.errors import PySparkRuntimeError

        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._is_up = self._ending = False
        self.gateway: Any = None
        read_end, write_end = os.pipe()
        outputs: dict[str, Any] = {"stderr": write_end} if prints else {"stderr": write_end, "stdout": write_end}
        spark_conf = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        self._reader = threading.Thread(target=self._forward_output, args=(os.fdopen(read_end, "rb"),), daemon=True)
        self._reader.start()
        try:
            with _environment({"SPARK_LAUNCHER_OPTS": _LAUNCHER_OPTIONS, **environ}):
                launch: Any = java_gateway.launch_gateway
                self.gateway = launch(spark_conf, outputs)
                self._is_up = True
        except PySparkRuntimeError:
            self._reader.join(_END_TIMEOUT_S)
            raise PipelineError(f"Spark's JVM did not start: {self.end_reason()}") from None
        finally:
            os.close(write_end)

    def end_reason(self) -> str:
        """Return why the process ended: a signal, or the most specific line of its output."""
        status = self.gateway.proc.poll() if self.gateway is not None else None
        if status is not None and status < 0:
            return f"it was killed by {signal.Signals(-status).name}"
        return failure_line(self._last_lines)

    def is_alive(self) -> bool:
        """Return whether the process still runs after a py4j call failed. Waits briefly, because it may be crashing."""
        try:
            self.gateway.proc.wait(_CRASH_TIMEOUT_S)
        except TimeoutExpired:
            return True
        return False

    def end(self) -> None:
        """Close the JVM's standard input and wait until it has deleted its temporary files and ended.

        A py4j call could hang, or wait for a callback into this process.
        """
        process = self.gateway.proc
        self._ending = True
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_END_TIMEOUT_S)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, TimeoutExpired):
                raise
        # Only after the JVM has ended: closing a connection waits for a thread that reads from it.
        with suppress(Exception):
            self.gateway.shutdown()
        self._reader.join(_END_TIMEOUT_S)

    def _forward_output(self, output: BinaryIO) -> None:
        with output:
            for raw in output:
                line = raw.decode(errors="replace").rstrip("\n")
                if line.startswith(NOISE) or (self._ending and line.startswith(_ENDING_NOISE)):
                    continue
                self._last_lines.append(line)
                if self._is_up:
                    with suppress(OSError, ValueError):
                        print(line, file=sys.stderr, flush=True)


def failure_line(lines: Iterable[str]) -> str:
    """Return the line of a JVM's output that best explains its end."""
    specific = [line for line in lines if line.strip() and not line.startswith(_UNSPECIFIC)]
    exceptions = [line for line in specific if "Exception" in line or "Error" in line]
    return shorten(_THREAD.sub("", (exceptions or specific or ["it printed nothing"])[0]))


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
