"""Spark's JVM as a child of this process: how it is started, what of its talk is passed on, how it ends."""

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
from kbroker.pipeline.spark.explain import sentence

# What Spark's launcher and the JVM say at every start, and nobody can act on.
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
# What of its threads says that they were ended before they were done.
_ENDING_NOISE = ("Exception in thread", "Caused by:", "\tat ", "\t... ")
_SAYS_NOTHING = ("Error: Could not create the Java", "Error: A fatal exception", "WARNING:", "\tat ")
_THREAD = re.compile(r'^Exception in thread ".*?" ')
_KEPT_LINES = 100
_END_S = 30
_DEATH_S = 0.5
# The launcher's own JVM, which only puts a command line together.
_LAUNCHER_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


class Jvm:
    """A JVM with a gateway for py4j. It ends when this process does, in whatever way: its standard input closes."""

    def __init__(self, settings: Mapping[str, str], environ: Mapping[str, str], prints: bool) -> None:
        """Starts it. `environ` is laid over this process's for the start. With `prints` its standard output is ours.

        Raises PipelineError with what the JVM said when it does not come up.
        """
        from pyspark import SparkConf, java_gateway
        from pyspark.errors import PySparkRuntimeError

        self._told: deque[str] = deque(maxlen=_KEPT_LINES)
        self._is_up = self._ending = False
        self.gateway: Any = None
        reading, writing = os.pipe()
        outputs: dict[str, Any] = {"stderr": writing} if prints else {"stderr": writing, "stdout": writing}
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(settings.items()))
        self._reader = threading.Thread(target=self._pass_on, args=(os.fdopen(reading, "rb"),), daemon=True)
        self._reader.start()
        try:
            with _environment({"SPARK_LAUNCHER_OPTS": _LAUNCHER_OPTIONS, **environ}):
                launch: Any = java_gateway.launch_gateway
                self.gateway = launch(conf, outputs)
                self._is_up = True
        except PySparkRuntimeError:
            self._reader.join(_END_S)
            raise PipelineError(f"Spark's JVM did not start: {self.last_words()}") from None
        finally:
            os.close(writing)

    def last_words(self) -> str:
        """Why it ended, as far as it said."""
        status = self.gateway.proc.poll() if self.gateway is not None else None
        if status is not None and status < 0:
            return f"it was killed by {signal.Signals(-status).name}"
        return telling_line(self._told)

    def is_alive(self) -> bool:
        """Whether the process runs. After a call has failed: one that dies has a moment for it."""
        try:
            self.gateway.proc.wait(_DEATH_S)
        except TimeoutExpired:
            return True
        return False

    def end(self) -> None:
        """Ends it, and waits until it has removed its temporary files and is gone.

        It is not asked over py4j, where a call may hang or wait for an answer of ours: its standard input is closed.
        """
        process = self.gateway.proc
        self._ending = True
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_END_S)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, TimeoutExpired):
                raise
        # Only now: to close a connection while another thread reads of it would wait for that thread.
        with suppress(Exception):
            self.gateway.shutdown()
        self._reader.join(_END_S)

    def _pass_on(self, output: BinaryIO) -> None:
        with output:
            for raw in output:
                line = raw.decode(errors="replace").rstrip("\n")
                if line.startswith(NOISE) or (self._ending and line.startswith(_ENDING_NOISE)):
                    continue
                self._told.append(line)
                if self._is_up:
                    with suppress(OSError, ValueError):
                        print(line, file=sys.stderr, flush=True)


def telling_line(lines: Iterable[str]) -> str:
    """The line that says most about a JVM's end, without its decoration."""
    said = [line for line in lines if line.strip() and not line.startswith(_SAYS_NOTHING)]
    exceptions = [line for line in said if "Exception" in line or "Error" in line]
    told = (exceptions or said or ["it said nothing"])[0]
    return sentence(_THREAD.sub("", told))


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
