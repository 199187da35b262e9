"""Which Java is taken, and what is said of one that does not do. No JVM is started."""

import os
from pathlib import Path

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.java import require_java


def installation(directory: Path, release: str | None, says: str = "") -> Path:
    """A directory like a JDK's, whose java prints `says` as `java -version` does."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\nprintf '%s\\n' '{says}' >&2\n")
    java.chmod(0o755)
    if release is not None:
        (directory / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{release}"\nOS_NAME="Linux"\n')
    return directory


def refused(environ: dict[str, str]) -> str:
    with pytest.raises(PipelineError) as caught:
        require_java(environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("release", "version"), [("17.0.15", 17), ("21", 21), ("22.0.1", 22)])
def test_java_home_goes_before_path(tmp_path: Path, release: str, version: int):
    home, other = installation(tmp_path / "home", release), installation(tmp_path / "other", "11.0.2")
    environ = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert require_java(environ) == (str(home / "bin" / "java"), version)


def test_a_link_in_path_is_followed_to_its_installation(tmp_path: Path):
    home = installation(tmp_path / "home", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert require_java({"PATH": str(tmp_path / "bin")}).version == 17


@pytest.mark.parametrize("release", ["1.8.0_402", "11.0.22", "16.0.2", "23.0.1", "25.0.3"])
def test_a_version_that_spark_does_not_run_on_is_refused(tmp_path: Path, release: str):
    home = installation(tmp_path, release)
    told = refused({"JAVA_HOME": str(home), "PATH": ""})
    assert told == (
        f"Spark needs Java 17 to 22, and {home}/bin/java (of JAVA_HOME) is Java {release}: "
        "let JAVA_HOME name another installation"
    )


def test_no_java_at_all(tmp_path: Path):
    told = refused({"PATH": str(tmp_path)})
    assert told == "Spark needs Java 17 to 22, and there is none: no java in PATH, and JAVA_HOME is not set"


def test_a_java_home_without_java_is_told_though_path_has_one(tmp_path: Path):
    good = installation(tmp_path / "good", "17")
    told = refused({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(good / "bin")})
    assert told == f"Spark needs Java 17 to 22, and JAVA_HOME is {tmp_path}/gone, where there is no bin/java"


def test_a_program_without_a_release_file_is_asked(tmp_path: Path):
    home = installation(tmp_path / "a", None, says='openjdk version "17.0.9" 2023-10-17')
    environ = {"JAVA_HOME": str(home), "PATH": os.environ["PATH"]}
    assert require_java(environ).version == 17
    silent = installation(tmp_path / "b", None)
    assert refused({"JAVA_HOME": str(silent)}).endswith("(of JAVA_HOME) does not say its version")
