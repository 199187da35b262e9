"""Spark, Java and the JVM on this machine."""

import importlib.util
import os
from pathlib import Path

import pytest

from kbroker.common import install_command
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark import installation
from kbroker.pipeline.spark.installation import require_java
from kbroker.pipeline.spark.jvm import failure_line


def spark_home(directory: Path, version: str) -> Path:
    (directory / "jars").mkdir(parents=True)
    (directory / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return directory


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PipelineError) as caught:
        installation.require_spark({})
    assert str(caught.value) == f"Spark is not installed: {install_command('spark')}"


def test_pyspark_of_another_version(monkeypatch: pytest.MonkeyPatch):
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    with pytest.raises(PipelineError) as caught:
        installation.require_spark({})
    assert (
        str(caught.value) == f"pyspark 3.5.1 is installed, but kbroker requires 4.0 or 4.1: {install_command('spark')}"
    )


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
    spark = installation.require_spark({})
    assert (spark.version, spark.scala) == (pyspark.__version__, "2.13")
    assert spark.jars.is_dir()


def make_installation(directory: Path, release: str | None, version_output: str = "") -> Path:
    """Create a JDK's directory with a `java` that prints `version_output` to stderr, as `java -version` does."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\nprintf '%s\\n' '{version_output}' >&2\n")
    java.chmod(0o755)
    if release is not None:
        (directory / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{release}"\nOS_NAME="Linux"\n')
    return directory


def error_of(environ: dict[str, str]) -> str:
    with pytest.raises(PipelineError) as caught:
        require_java(environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("release", "version"), [("17.0.15", 17), ("21", 21), ("22.0.1", 22)])
def test_java_home_precedes_path(tmp_path: Path, release: str, version: int):
    home, other = make_installation(tmp_path / "home", release), make_installation(tmp_path / "other", "11.0.2")
    environ = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert require_java(environ) == (str(home / "bin" / "java"), version)


def test_a_link_in_path_is_followed_to_its_installation(tmp_path: Path):
    home = make_installation(tmp_path / "home", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert require_java({"PATH": str(tmp_path / "bin")}).version == 17


@pytest.mark.parametrize("release", ["1.8.0_402", "11.0.22", "16.0.2", "23.0.1", "25.0.3"])
def test_an_unsupported_version_is_an_error(tmp_path: Path, release: str):
    home = make_installation(tmp_path, release)
    message = error_of({"JAVA_HOME": str(home), "PATH": ""})
    assert message == (
        f"Spark requires Java 17 to 22, but {home}/bin/java (from JAVA_HOME) is Java {release}: "
        "set JAVA_HOME to another installation"
    )


def test_no_java_at_all(tmp_path: Path):
    message = error_of({"PATH": str(tmp_path)})
    assert message == "Spark requires Java 17 to 22, but there is none: no java in PATH, and JAVA_HOME is not set"


def test_java_home_without_java_is_an_error_even_if_path_has_one(tmp_path: Path):
    good = make_installation(tmp_path / "good", "17")
    message = error_of({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(good / "bin")})
    assert message == f"Spark requires Java 17 to 22, but JAVA_HOME is {tmp_path}/gone, which has no bin/java"


def test_without_a_release_file_java_prints_its_version(tmp_path: Path):
    home = make_installation(tmp_path / "a", None, version_output='openjdk version "17.0.9" 2023-10-17')
    environ = {"JAVA_HOME": str(home), "PATH": os.environ["PATH"]}
    assert require_java(environ).version == 17
    silent = make_installation(tmp_path / "b", None)
    assert error_of({"JAVA_HOME": str(silent)}).endswith("(from JAVA_HOME) does not print its version")


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
