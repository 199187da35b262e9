"""A Spark session with the Kafka connector, which needs nothing set up but pyspark and Java."""

import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.connector import connector_jars, kept_jars
from kbroker.pipeline.spark.explain import explain, is_sparks
from kbroker.pipeline.spark.installed import require_spark
from kbroker.pipeline.spark.java import require_java
from kbroker.pipeline.spark.jvm import Jvm
from kbroker.pipeline.spark.settings import LOCAL_HOST, is_local, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["explain", "spark_session"]

PACKAGES = ("kbroker", "protocol")


def _silent(message: str) -> None:
    pass


@contextmanager
def spark_session(
    name: str,
    *,
    master: str | None = None,
    jars: str | os.PathLike[str] | None = None,
    conf: Mapping[str, str] | None = None,
    note: Callable[[str], None] = _silent,
    prints: bool = False,
) -> "Iterator[SparkSession]":
    """A SparkSession that can read and write Kafka; it and its JVM end with the context.

    `master`: where it runs, by default all cores of this machine. `jars`: a directory with the connector, by default
    the cache, which is filled the first time. `conf`: Spark's settings, stronger than ours. `note` is told what takes
    long. With `prints` what the JVM prints reaches standard output.
    A session that this process has already is used as it is, and left running.
    Raises PipelineError, one sentence, for what is missing or does not fit, and for what Spark raises and nobody
    catches within: the text of Spark's exceptions ends with the JVM.
    """
    conf = dict(conf or {})
    spark_home = require_spark(os.environ)
    running = _running()
    if running is not None:
        _require_same(running, master, conf)
        yield running
        return
    java = require_java(os.environ)
    ivy = conf.pop("spark.jars.ivySettings", None) if "spark.jars.packages" not in conf else None
    if jars is not None:
        connector = connector_jars(Path(jars), spark_home)
    else:
        connector = kept_jars(spark_home, java, os.environ, Path(ivy) if ivy else None, note)
    chosen = settings(name, master, connector, conf, _memory(), len(os.sched_getaffinity(0)))
    local = is_local(chosen["spark.master"])
    with (
        _quiet(),
        nullcontext() if local else tempfile.TemporaryDirectory() as directory,
        _started(chosen, local, prints) as session,
    ):
        if directory is not None:
            session.sparkContext.addPyFile(_packed(Path(directory) / "kbroker.zip"))
        yield session


def _running() -> "SparkSession | None":
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate() if SparkContext._active_spark_context is not None else None


def _require_same(session: "SparkSession", master: str | None, conf: Mapping[str, str]) -> None:
    wanted = {**conf, **({"spark.master": master} if master else {})}
    for name, value in wanted.items():
        if session.conf.get(name, None) != value:
            raise PipelineError(f"a Spark session runs in this process already, and its {name} is not {value}")


@contextmanager
def _started(chosen: Mapping[str, str], local: bool, prints: bool) -> "Iterator[SparkSession]":
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    _use_this_python(chosen, local)
    jvm = Jvm(chosen, {"SPARK_LOCAL_IP": LOCAL_HOST} if local else {}, prints)
    try:
        try:
            conf = SparkConf(loadDefaults=False).setAll(list(chosen.items()))
            session = SparkSession(SparkContext(conf=conf, gateway=jvm.gateway))
        except Py4JError as error:
            raise PipelineError(f"Spark did not start: {explain(error)}") from error
        _answer_interrupts()
        yield session
    except Exception as error:
        if (isinstance(error, ConnectionError) or is_sparks(error)) and not jvm.is_alive():
            raise PipelineError(f"Spark's JVM has ended: {jvm.last_words()}") from error
        if is_sparks(error):
            # While there is somebody to ask: pyspark's exceptions get their text from the JVM.
            raise PipelineError(explain(error)) from error
        raise
    finally:
        _stop(jvm)


def _stop(jvm: Jvm) -> None:
    """Ends the JVM, which stops what runs in it, and makes pyspark forget it, so that another may be started."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext._active_spark_context
    if context is not None:
        # Its thread takes the JVM's end for a failure, and prints it.
        context._accumulatorServer.handle_error = lambda *_: None
    try:
        jvm.end()
    finally:
        with warnings.catch_warnings(), suppress(Exception):
            warnings.simplefilter("ignore")
            if context is not None:
                context.stop()
        SparkContext._gateway = SparkContext._jvm = None
        SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None


def _use_this_python(chosen: Mapping[str, str], local: bool) -> None:
    """Python code in jobs runs in this interpreter; on a cluster, where its path means nothing, in PYSPARK_PYTHON."""
    if local:
        os.environ["PYSPARK_PYTHON"] = chosen.get("spark.pyspark.python", sys.executable)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", chosen.get("spark.pyspark.python", "python3"))


class _NotPy4j(logging.Filter):
    """py4j tells the root logger of a Ctrl-C and of a lost JVM, with its frames."""

    def filter(self, record: logging.LogRecord) -> bool:
        return f"{os.sep}py4j{os.sep}" not in record.pathname


@contextmanager
def _quiet() -> Iterator[None]:
    """Ctrl-C is KeyboardInterrupt here and nothing else; a failure is raised, and not logged too with its frames."""
    from pyspark.logger import PySparkLogger

    root, quiet = logging.getLogger(), _NotPy4j()
    # Beside what is raised, py4j tells of connections of a JVM that ends, and pyspark repeats a failure of a frame.
    loggers = [logging.getLogger("py4j"), PySparkLogger.getLogger("SQLQueryContextLogger")]
    levels = [logger.level for logger in loggers]
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    root.addFilter(quiet)
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        root.removeFilter(quiet)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if in_main:
            signal.signal(signal.SIGINT, handler)


def _answer_interrupts() -> None:
    """Spark's own handler asks the JVM to cancel its jobs, over the connection that is waiting for one of them."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _packed(path: Path) -> str:
    """This program as a zip, for executors on other machines."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            root = Path(str(sys.modules["kbroker"].__file__)).parents[1]
            for file in sorted((root / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(root))
    return str(path)


def _memory() -> int:
    """Of the machine, in bytes; in a container that is limited, what it may have."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # "max" is no number
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return physical
