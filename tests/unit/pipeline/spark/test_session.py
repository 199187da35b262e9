"""What a session is set to, which Spark it takes, and how its failures are told. No JVM is started."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark import installed
from kbroker.pipeline.spark.explain import explain, is_sparks
from kbroker.pipeline.spark.jvm import telling_line
from kbroker.pipeline.spark.settings import is_local, parse_conf, settings

GIB = 1 << 30


def made(master: str | None = None, memory: int = 8 * GIB, cores: int = 2, **conf: str) -> dict[str, str]:
    named = {name.replace("_", "."): value for name, value in conf.items()}
    return settings("job", master, ["/jars/a.jar", "/jars/b.jar"], named, memory, cores)


def test_on_this_machine_nobody_else_is_listened_to():
    chosen = made()
    assert chosen["spark.master"] == "local[*]"
    assert chosen["spark.driver.host"] == chosen["spark.driver.bindAddress"] == "127.0.0.1"
    assert chosen["spark.jars"] == "/jars/a.jar,/jars/b.jar"
    assert (chosen["spark.ui.enabled"], chosen["spark.sql.session.timeZone"]) == ("false", "UTC")


@pytest.mark.parametrize(("gib", "mib"), [(1, 1024), (3, 1536), (8, 4096), (64, 4096)])
def test_the_driver_has_half_of_the_memory_within_bounds(gib: int, mib: int):
    assert made(memory=gib * GIB)["spark.driver.memory"] == f"{mib}m"


def test_shuffles_have_as_many_parts_as_there_are_cores():
    assert made(cores=2)["spark.sql.shuffle.partitions"] == "4"
    assert made(cores=16)["spark.sql.shuffle.partitions"] == "16"


def test_a_cluster_keeps_its_own_settings():
    chosen = made("spark://host:7077")
    assert chosen["spark.master"] == "spark://host:7077"
    for name in ("spark.driver.host", "spark.driver.memory", "spark.sql.shuffle.partitions"):
        assert name not in chosen


@pytest.mark.parametrize(
    ("master", "local"),
    [("local", True), ("local[4]", True), ("local[*]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_masters(master: str, local: bool):
    assert is_local(master) is local


def test_every_setting_gives_way_to_conf_and_the_option_to_none():
    conf = {"spark.driver.memory": "9g", "spark.sql.session.timeZone": "CET", "spark.ui.enabled": "true"}
    chosen = settings("job", None, [], {**conf, "spark.master": "local[3]"}, GIB, 1)
    assert conf.items() <= chosen.items()
    assert chosen["spark.master"] == "local[3]"
    assert made("local[1]", spark_master="local[3]")["spark.master"] == "local[1]"


def test_jars_and_java_options_are_joined():
    chosen = made(spark_jars="/mine.jar")
    assert chosen["spark.jars"] == "/jars/a.jar,/jars/b.jar,/mine.jar"
    options = made(spark_driver_extraJavaOptions="-XX:+UseSerialGC")["spark.driver.extraJavaOptions"].split()
    assert len(options) == 2
    assert options[0].startswith("-Dlog4j2.configurationFile=file:///")
    assert options[1] == "-XX:+UseSerialGC"


def test_the_log_settings_are_there():
    option = made()["spark.driver.extraJavaOptions"].split()[0]
    assert Path(option.partition("=file://")[2]).is_file()


@pytest.mark.parametrize("option", ["spark.x", "x=1", "=", ""])
def test_conf_that_is_no_setting_is_refused(option: str):
    with pytest.raises(PipelineError, match="NAME=VALUE is wanted"):
        parse_conf([option])


def test_conf_is_taken_apart_at_the_first_equals_sign():
    assert parse_conf(["spark.a=1", "spark.b=x=y", "spark.a=", "spark.a=2"]) == {"spark.a": "2", "spark.b": "x=y"}


# Which Spark.


def spark_home(directory: Path, version: str) -> Path:
    (directory / "jars").mkdir(parents=True)
    (directory / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return directory


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PipelineError) as caught:
        installed.require_spark({})
    assert str(caught.value) == "needs Spark: pip install 'kbroker[spark]'"


def test_pyspark_of_another_version(monkeypatch: pytest.MonkeyPatch):
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    with pytest.raises(PipelineError) as caught:
        installed.require_spark({})
    assert str(caught.value) == ("pyspark 3.5.1 is installed, and kbroker works with 4.0: pip install 'kbroker[spark]'")


def test_spark_home_of_another_version_or_of_nothing(tmp_path: Path):
    pyspark = pytest.importorskip("pyspark")
    old = spark_home(tmp_path / "old", "3.5.1")
    with pytest.raises(PipelineError) as caught:
        installed.require_spark({"SPARK_HOME": str(old)})
    assert str(caught.value) == (
        f"SPARK_HOME is {old}, a Spark 3.5.1, and pyspark is {pyspark.__version__}: unset SPARK_HOME"
    )
    with pytest.raises(PipelineError, match="where there is no jars/spark-core"):
        installed.require_spark({"SPARK_HOME": str(tmp_path)})
    good = spark_home(tmp_path / "good", "4.0.9")
    assert installed.require_spark({"SPARK_HOME": str(good)}) == (good, "4.0.9", "2.13")


def test_pysparks_own_spark():
    pyspark = pytest.importorskip("pyspark")
    found = installed.require_spark({})
    assert (found.version, found.scala) == (pyspark.__version__, "2.13")
    assert found.jars.is_dir()


# How failures are told.


class Throwable:
    """A Java exception, as py4j gives it."""

    def __init__(self, text: str, cause: "Throwable | None" = None) -> None:
        self._text, self._cause = text, cause

    def toString(self) -> str:
        return self._text

    def getCause(self) -> "Throwable | None":
        return self._cause


class Failure(Exception):
    def __init__(self, text: str, *chain: str) -> None:
        super().__init__(text)
        origin = None
        for told in reversed(chain):
            origin = Throwable(told, origin)
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
    ("chain", "told"),
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
         "foo is no master that Spark knows"),
        (["[TABLE_OR_VIEW_NOT_FOUND] The table `t` cannot be found. SQLSTATE: 42P01; line 1 pos 14;\n'Project [*]"],
         "[TABLE_OR_VIEW_NOT_FOUND] The table `t` cannot be found."),
        (["x", "java.lang.ArithmeticException: long overflow"],
         "a record's timestamp is later than Spark can tell (the year 294247)"),
        (["[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 6."],
         "another run goes on from the same checkpoint, and only one may"),
        (["a" * 2000], "a" * 500 + " ..."),
        ([""], "Failure"),
    ],
)  # fmt: skip
def test_the_innermost_cause_is_told(chain: list[str], told: str):
    assert explain(Failure(*chain)) == told


def test_a_dead_jvm_does_not_keep_the_failure_from_being_told():
    class Gone:
        def toString(self) -> str:
            raise ConnectionRefusedError

    error = Failure("what was said")
    error.java_exception = Gone()
    assert explain(error) == "what was said"


def test_a_cause_that_is_its_own_cause_ends():
    error = Failure("outside", "java.lang.Error: round and round")
    error.java_exception._cause = error.java_exception
    assert explain(error) == "round and round"


def test_only_sparks_failures_are_explained():
    assert not is_sparks(ValueError("mine"))
    errors = pytest.importorskip("pyspark.errors")
    assert is_sparks(errors.AnalysisException("x"))


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["Invalid maximum heap size: -Xmxabc", "Error: Could not create the Java Virtual Machine."],
         "Invalid maximum heap size: -Xmxabc"),
        (["WARNING: x", 'Exception in thread "main" org.apache.spark.SparkException: Master must be', "\tat a.B"],
         "Master must be"),
        (["something", "java.lang.OutOfMemoryError: Java heap space"], "Java heap space"),
        ([], "it said nothing"),
    ],
)  # fmt: skip
def test_what_a_jvm_said_at_its_end(lines: list[str], told: str):
    assert telling_line(lines) == told
