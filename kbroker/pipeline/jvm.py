"""Spark's JVM as a child of this process: how it is started, what of its talk is passed on, how it ends."""

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO

from kbroker.pipeline.errors import PipelineError

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
_KEPT_LINES = 100
_END_S = 10
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
        reading, writing = os.pipe()
        outputs: dict[str, Any] = {"stderr": writing} if prints else {"stderr": writing, "stdout": writing}
        conf = SparkConf(loadDefaults=False)
        conf.setAll(list(settings.items()))
        self._reader = threading.Thread(target=self._pass_on, args=(os.fdopen(reading, "rb"),), daemon=True)
        self._reader.start()
        try:
            with _environment({"SPARK_LAUNCHER_OPTS": _LAUNCHER_OPTIONS, **environ}):
                launch: Any = java_gateway.launch_gateway
                self.gateway: Any = launch(conf, outputs)
        except PySparkRuntimeError:
            self._reader.join(_END_S)
            raise PipelineError(f"Spark's JVM did not start: {self.last_words()}") from None
        finally:
            os.close(writing)

    def last_words(self) -> str:
        """The line that tells most about why it ended."""
        lines = [line for line in self._told if line.strip()]
        telling = [line for line in lines if "rror" in line or "xception" in line]
        return (telling or lines or ["it said nothing"])[0].strip()

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.gateway.proc.poll() is None

    def end(self) -> None:
        """Ends it, and waits until it has removed its temporary files and is gone."""
        process = self.gateway.proc
        with suppress(Exception):
            self.gateway.shutdown()
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_END_S)
        except Exception:
            process.kill()
            process.wait()
        self._reader.join(_END_S)

    def _pass_on(self, output: BinaryIO) -> None:
        with output:
            for raw in output:
                line = raw.decode(errors="replace").rstrip("\n")
                if line.startswith(NOISE):
                    continue
                self._told.append(line)
                with suppress(OSError, ValueError):
                    print(line, file=sys.stderr, flush=True)


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
