"""Spark properties of a session, the choice of a Spark installation, and error texts. No JVM is started."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark import installation
from kbroker.pipeline.spark.error_text import error_text, is_spark_error
from kbroker.pipeline.spark.jvm import failure_line
from kbroker.pipeline.spark.session_conf import is_local, parse_conf, session_conf

GIB = 1 << 30


def make_conf(master: str | None = None, memory: int = 8 * GIB, cores: int = 2, **conf: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in conf.items()}
    return session_conf("job", master, ["/jars/a.jar", "/jars/b.jar"], named, memory, cores)


def test_a_local_session_listens_on_the_loopback_address_only():
    properties = make_conf()
    assert properties["spark.master"] == "local[*]"
    assert properties["spark.driver.host"] == properties["spark.driver.bindAddress"] == "127.0.0.1"
    assert properties["spark.jars"] == "/jars/a.jar,/jars/b.jar"
    assert (properties["spark.ui.enabled"], properties["spark.sql.session.timeZone"]) == ("false", "UTC")


@pytest.mark.parametrize(("gib", "mib"), [(1, 1024), (3, 1536), (8, 4096), (64, 4096)])
def test_the_driver_gets_half_of_the_memory_within_bounds(gib: int, mib: int):
    assert make_conf(memory=gib * GIB)["spark.driver.memory"] == f"{mib}m"


def test_shuffle_partitions_follow_the_cores():
    assert make_conf(cores=2)["spark.sql.shuffle.partitions"] == "4"
    assert make_conf(cores=16)["spark.sql.shuffle.partitions"] == "16"


def test_a_cluster_keeps_its_own_settings():
    properties = make_conf("spark://host:7077")
    assert properties["spark.master"] == "spark://host:7077"
    for name in ("spark.driver.host", "spark.driver.memory", "spark.sql.shuffle.partitions"):
        assert name not in properties


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[4]", True), ("local[*]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_is_local(master: str, local: bool):
    assert is_local(master) is local


def test_conf_overrides_defaults_and_the_master_option_overrides_conf():
    conf = {"spark.driver.memory": "9g", "spark.sql.session.timeZone": "CET", "spark.ui.enabled": "true"}
    properties = session_conf("job", None, [], {**conf, "spark.master": "local[3]"}, GIB, 1)
    assert conf.items() <= properties.items()
    assert properties["spark.master"] == "local[3]"
    assert make_conf("local[1]", spark_master="local[3]")["spark.master"] == "local[1]"


def test_jars_and_java_options_of_conf_are_added():
    properties = make_conf(spark_jars="/mine.jar")
    assert properties["spark.jars"] == "/jars/a.jar,/jars/b.jar,/mine.jar"
    options = make_conf(spark_driver_extraJavaOptions="-XX:+UseSerialGC")["spark.driver.extraJavaOptions"].split()
    assert len(options) == 2
    assert options[0].startswith("-Dlog4j2.configurationFile=file:///")
    assert options[1] == "-XX:+UseSerialGC"


def test_the_log_configuration_exists():
    option = make_conf()["spark.driver.extraJavaOptions"].split()[0]
    assert Path(option.partition("=file://")[2]).is_file()


@pytest.mark.parametrize("option", ["spark.x", "x=1", "=", ""])
def test_conf_that_is_no_spark_property_is_an_error(option: str):
    with pytest.raises(PipelineError, match="--conf must be NAME=VALUE"):
        parse_conf([option])


def test_conf_is_split_at_the_first_equals_sign():
    assert parse_conf(["spark.a=1", "spark.b=x=y", "spark.a=", "spark.a=2"]) == {"spark.a": "2", "spark.b": "x=y"}


# The choice of a Spark installation.


def spark_home(directory: Path, version: str) -> Path:
    (directory / "jars").mkdir(parents=True)
    (directory / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return directory


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PipelineError) as caught:
        installation.require_spark({})
    assert str(caught.value) == "Spark is not installed: pip install 'kbroker[spark]'"


def test_pyspark_of_another_version(monkeypatch: pytest.MonkeyPatch):
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    with pytest.raises(PipelineError) as caught:
        installation.require_spark({})
    assert str(caught.value) == "pyspark 3.5.1 is installed, but kbroker requires 4.0: pip install 'kbroker[spark]'"


def test_spark_home_with_another_version_or_without_spark(tmp_path: Path):
    pyspark = pytest.importorskip("pyspark")
    old = spark_home(tmp_path / "old", "3.5.1")
    with pytest.raises(PipelineError) as caught:
        installation.require_spark({"SPARK_HOME": str(old)})
    assert str(caught.value) == (f"SPARK_HOME has Spark 3.5.1, but pyspark is {pyspark.__version__}: unset SPARK_HOME")
    with pytest.raises(PipelineError, match="which has no jars/spark-core"):
        installation.require_spark({"SPARK_HOME": str(tmp_path)})
    good = spark_home(tmp_path / "good", "4.0.9")
    assert installation.require_spark({"SPARK_HOME": str(good)}) == (good, "4.0.9", "2.13")


def test_pysparks_own_spark():
    pyspark = pytest.importorskip("pyspark")
    found = installation.require_spark({})
    assert (found.version, found.scala) == (pyspark.__version__, "2.13")
    assert found.jars.is_dir()


# Error texts.


class Throwable:
    """A Java exception as py4j represents it."""

    def __init__(self, text: str, cause: "Throwable | None" = None) -> None:
        self._text, self._cause = text, cause

    def toString(self) -> str:
        return self._text

    def getCause(self) -> "Throwable | None":
        return self._cause


class JavaError(Exception):
    def __init__(self, text: str, *chain: str) -> None:
        super().__init__(text)
        origin = None
        for text in reversed(chain):
            origin = Throwable(text, origin)
        self.java_exception: Any = origin


TASK = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, "
    "most recent failure: Lost task 0.0 in stage 0.0 (TID 0) (localhost executor driver): "
    "java.lang.IllegalStateException: odd\n"
    "\tat a.B.c(B.scala:1)\nDriver stacktrace:"
)
BATCH = (
    "py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: "
    "Traceback (most recent call last):\n"
    '  File "x.py", line 1, in call\n    f()\n'
    "kbroker.pipeline.errors.PipelineError: /data: no space left on device; archived records stay readable\n"
)
WORKER = (
    "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
    '  File "worker.py", line 1, in main\n    process()\n'
    '  File "job.py", line 3, in f\n    return 1 / x\n           ~~^~~\nZeroDivisionError: division by zero\n'
)


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (["outer", "org.apache.spark.SparkException: Job aborted.", "java.io.IOException: No space left on device"],
         "no space left on device"),
        (["x", "java.lang.RuntimeException: a", "java.lang.OutOfMemoryError: Java heap space"],
         "Spark ran out of memory: give it more with --conf spark.driver.memory=8g"),
        (["x", "java.net.ConnectException: Connection refused to host"], "Connection refused to host"),
        (["x", "java.io.FileNotFoundException: /a/b"], "FileNotFoundException: /a/b"),
        (["x", "java.lang.NullPointerException"], "NullPointerException"),
        ([TASK], "IllegalStateException: odd"),
        (["query failed", BATCH], "/data: no space left on device; archived records stay readable"),
        (["query failed", WORKER], "ZeroDivisionError: division by zero"),
        (["x", "org.apache.spark.SparkException: Could not parse Master URL: 'foo'"],
         "Spark does not know the master foo"),
        (["[TABLE_OR_VIEW_NOT_FOUND] The table `t` cannot be found. SQLSTATE: 42P01; line 1 pos 14;\n'Project [*]"],
         "[TABLE_OR_VIEW_NOT_FOUND] The table `t` cannot be found."),
        (["x", "java.lang.ArithmeticException: long overflow"],
         "a record's timestamp is later than Spark supports (the year 294247)"),
        (["[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 6."],
         "another run uses the same checkpoint"),
        (["a" * 2000], "a" * 500 + " ..."),
        ([""], "JavaError"),
    ],
)  # fmt: skip
def test_error_text_is_the_innermost_cause(chain: list[str], expected: str):
    assert error_text(JavaError(*chain)) == expected


def test_error_text_after_the_jvm_has_ended():
    class DeadThrowable:
        def toString(self) -> str:
            raise ConnectionRefusedError

    error = JavaError("the message")
    error.java_exception = DeadThrowable()
    assert error_text(error) == "the message"


def test_error_text_of_a_cyclic_cause():
    error = JavaError("outside", "java.lang.Error: a cyclic cause")
    error.java_exception._cause = error.java_exception
    assert error_text(error) == "a cyclic cause"


def test_is_spark_error():
    assert not is_spark_error(ValueError("mine"))
    errors = pytest.importorskip("pyspark.errors")
    assert is_spark_error(errors.AnalysisException("x"))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["Invalid maximum heap size: -Xmxabc", "Error: Could not create the Java Virtual Machine."],
         "Invalid maximum heap size: -Xmxabc"),
        (["WARNING: x", 'Exception in thread "main" org.apache.spark.SparkException: Master must be', "\tat a.B"],
         "Master must be"),
        (["something", "java.lang.OutOfMemoryError: Java heap space"], "Java heap space"),
        ([], "it printed nothing"),
    ],
)  # fmt: skip
def test_the_failure_line_of_a_jvm(lines: list[str], expected: str):
    assert failure_line(lines) == expected
