"""A Spark session with the Kafka connector, for machines where only pyspark and Java are installed."""

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
from kbroker.pipeline.spark.error_text import error_text, is_spark_error
from kbroker.pipeline.spark.installation import cached_jars, connector_jars, require_java, require_spark
from kbroker.pipeline.spark.jvm import Jvm
from kbroker.pipeline.spark.session_conf import LOCAL_HOST, is_local, session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def partition_keys(spark: "SparkSession", count: int) -> list[int]:
    """Return for each of `count` Spark partitions a bigint that hash partitioning assigns to it.

    `repartition(count, column)` of a column with these numbers puts the rows of each number into a separate partition,
    and so into a separate task. Runs a Spark job.
    """
    numbers = spark.range(30 * count + 100)  # the probability that they miss a partition is count / 10^13
    rows = numbers.selectExpr(f"pmod(hash(id), {count}) AS part", "id").groupBy("part").agg({"id": "min"}).collect()
    keys = {row["part"]: row["min(id)"] for row in rows}
    return [keys.get(part, part) for part in range(count)]


PACKAGES = ("kbroker", "protocol")


@contextmanager
def spark_session(
    name: str,
    *,
    master: str | None = None,
    jars: str | os.PathLike[str] | None = None,
    conf: Mapping[str, str] | None = None,
    note: Callable[[str], None] = lambda message: None,
    prints: bool = False,
) -> "Iterator[SparkSession]":
    """Yield a SparkSession that can read and write Kafka. The session and its JVM end with the context.

    `master`: by default all cores of this machine. `jars`: a directory with the connector, by default the cache, into
    which the connector is downloaded once. `conf`: Spark properties, which override kbroker's. `note` is called with a
    message before the download. With `prints` the JVM inherits standard output.

    A session that already runs in this process is yielded instead, and not stopped.

    Raises PipelineError if something is missing or incompatible, and instead of exceptions of Spark, whose text is lost
    when the JVM ends.
    """
    conf = dict(conf or {})
    spark_home = require_spark(os.environ)
    running = _running_session()
    if running is not None:
        _require_conf(running, master, conf)
        yield running
        return
    java = require_java(os.environ)
    ivy = conf.pop("spark.jars.ivySettings", None) if "spark.jars.packages" not in conf else None
    if jars is not None:
        connector = connector_jars(Path(jars), spark_home)
    else:
        connector = cached_jars(spark_home, java, os.environ, Path(ivy) if ivy else None, note)
    properties = session_conf(name, master, connector, conf, _memory_bytes(), len(os.sched_getaffinity(0)))
    local = is_local(properties["spark.master"])
    with (
        _without_py4j_logs(),
        nullcontext() if local else tempfile.TemporaryDirectory() as directory,
        _start(properties, local, prints) as session,
    ):
        if directory is not None:
            session.sparkContext.addPyFile(_zip_packages(Path(directory) / "kbroker.zip"))
        yield session


def _running_session() -> "SparkSession | None":
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate() if SparkContext._active_spark_context is not None else None


def _require_conf(session: "SparkSession", master: str | None, conf: Mapping[str, str]) -> None:
    required = {**conf, **({"spark.master": master} if master else {})}
    for name, value in required.items():
        if session.conf.get(name, None) != value:
            raise PipelineError(f"the Spark session of this process has another {name} than {value}")


@contextmanager
def _start(properties: Mapping[str, str], local: bool, prints: bool) -> "Iterator[SparkSession]":
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    _set_python(properties, local)
    jvm = Jvm(properties, {"SPARK_LOCAL_IP": LOCAL_HOST} if local else {}, prints)
    try:
        try:
            conf = SparkConf(loadDefaults=False).setAll(list(properties.items()))
            session = SparkSession(SparkContext(conf=conf, gateway=jvm.gateway))
        except Py4JError as error:
            raise PipelineError(f"Spark did not start: {error_text(error)}") from error
        _restore_interrupts()
        yield session
    except Exception as error:
        if (isinstance(error, ConnectionError) or is_spark_error(error)) and not jvm.is_alive():
            raise PipelineError(f"Spark's JVM has ended: {jvm.end_reason()}") from error
        if is_spark_error(error):
            # Before the JVM ends, because pyspark's exceptions get their text from it.
            raise PipelineError(error_text(error)) from error
        raise
    finally:
        _stop(jvm)


def _stop(jvm: Jvm) -> None:
    """End the JVM and clear pyspark's references to it, so that another one can be started."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext._active_spark_context
    if context is not None:
        # Otherwise its thread would report the end of the JVM as an error.
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


def _set_python(properties: Mapping[str, str], local: bool) -> None:
    """Run Python code of jobs with this interpreter; on a cluster, which may not have it, with PYSPARK_PYTHON."""
    if local:
        os.environ["PYSPARK_PYTHON"] = properties.get("spark.pyspark.python", sys.executable)
    else:
        os.environ.setdefault("PYSPARK_PYTHON", properties.get("spark.pyspark.python", "python3"))


class _Py4jFilter(logging.Filter):
    """Rejects records of py4j, which logs stack traces of Ctrl-C and of a lost JVM to the root logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        return f"{os.sep}py4j{os.sep}" not in record.pathname


@contextmanager
def _without_py4j_logs() -> Iterator[None]:
    """Disable logs that repeat a raised exception with its stack trace. Restore the handler of SIGINT at the end."""
    from pyspark.logger import PySparkLogger

    root, py4j_filter = logging.getLogger(), _Py4jFilter()
    # py4j logs connections that the end of the JVM closes; pyspark logs the errors of queries that it raises.
    loggers = [logging.getLogger("py4j"), PySparkLogger.getLogger("SQLQueryContextLogger")]
    levels = [logger.level for logger in loggers]
    in_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    root.addFilter(py4j_filter)
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        root.removeFilter(py4j_filter)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if in_main:
            signal.signal(signal.SIGINT, handler)


def _restore_interrupts() -> None:
    """Restore Python's handler, so that Ctrl-C raises KeyboardInterrupt.

    pyspark's own handler cancels the jobs over the py4j connection, which is already waiting for one of them.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _zip_packages(path: Path) -> str:
    """Write kbroker's code to a zip file for executors on other machines, and return its path."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in PACKAGES:
            root = Path(str(sys.modules["kbroker"].__file__)).parents[1]
            for file in sorted((root / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    archive.write(file, file.relative_to(root))
    return str(path)


def _memory_bytes() -> int:
    """Return the memory of the machine, or the limit of the container."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # "max" means no limit
        return min(physical, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return physical
