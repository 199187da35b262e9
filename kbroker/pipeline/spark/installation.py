"""Finds the installed Spark and the Java that runs it, and checks that kbroker supports their versions.

Spark itself would fail with stack traces.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kbroker.pipeline.errors import PipelineError

SUPPORTED = "4.0"
INSTALL = "pip install 'kbroker[spark]'"

_CORE_JAR = re.compile(r"spark-core_(\d+\.\d+)-(\d+\.\d+\.\d+\S*)\.jar")


class SparkInstallation(NamedTuple):
    home: Path
    version: str  # 4.0.5
    scala: str  # 2.13

    @property
    def jars(self) -> Path:
        return self.home / "jars"


def require_spark(environ: Mapping[str, str]) -> SparkInstallation:
    """Return the Spark that pyspark starts: that of SPARK_HOME, else pyspark's own.

    Raises PipelineError if there is none, or if its version is not supported.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise PipelineError(f"Spark is not installed: {INSTALL}")
    from pyspark import __version__ as version

    if minor_version(version) != SUPPORTED:
        raise PipelineError(f"pyspark {version} is installed, but kbroker requires {SUPPORTED}: {INSTALL}")
    spark_home = environ.get("SPARK_HOME", "")
    home = Path(spark_home or os.path.dirname(spec.origin))
    core_jar = next((match for match in map(_CORE_JAR.fullmatch, _list_names(home / "jars")) if match), None)
    if core_jar is None:
        source = "SPARK_HOME" if spark_home else "the directory of pyspark"
        raise PipelineError(f"{source} is {home}, which has no jars/spark-core: {INSTALL}")
    scala, home_version = core_jar.groups()
    if minor_version(home_version) != SUPPORTED:
        raise PipelineError(f"SPARK_HOME has Spark {home_version}, but pyspark is {version}: unset SPARK_HOME")
    return SparkInstallation(home, home_version, scala)


def minor_version(version: str) -> str:
    """Return 4.0 for 4.0.5. Spark and its connector must have the same minor version."""
    return ".".join(version.split(".")[:2])


def _list_names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


# Spark 4.0 is compiled for Java 17. Java 23 removed Subject.getSubject, which its Hadoop needs.
OLDEST, NEWEST = 17, 22
REQUIRED = f"Spark requires Java {OLDEST} to {NEWEST}"
_VERSION_TIMEOUT_S = 30

_QUOTED = re.compile(r'"([^"]+)"')
_VERSION = re.compile(r"(?:1\.)?(\d+)")


class JavaInstallation(NamedTuple):
    executable: str
    version: int  # 17, 21, ...


def require_java(environ: Mapping[str, str]) -> JavaInstallation:
    """Return the Java that Spark's scripts use: that of JAVA_HOME, else the first in PATH.

    Raises PipelineError if there is none, or if its version is not supported.
    """
    executable, variable = _find_executable(environ)
    text = _version_text(executable)
    match = _VERSION.match(text)
    if match is None:
        raise PipelineError(f"{REQUIRED}, but {executable} (from {variable}) does not print its version")
    version = int(match[1])
    if not OLDEST <= version <= NEWEST:
        raise PipelineError(
            f"{REQUIRED}, but {executable} (from {variable}) is Java {text}: set JAVA_HOME to another installation"
        )
    return JavaInstallation(executable, version)


def _find_executable(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the executable, and the environment variable that names it."""
    home = environ.get("JAVA_HOME", "")
    if home:
        executable = os.path.join(home, "bin", "java")
        if not os.access(executable, os.X_OK):
            raise PipelineError(f"{REQUIRED}, but JAVA_HOME is {home}, which has no bin/java")
        return executable, "JAVA_HOME"
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise PipelineError(f"{REQUIRED}, but there is none: no java in PATH, and JAVA_HOME is not set")
    return found, "PATH"


def _version_text(executable: str) -> str:
    """Return the version in the installation's `release` file, which is faster than starting the program."""
    try:
        release_file = Path(os.path.realpath(executable)).parents[1] / "release"
        for line in release_file.read_text().splitlines():
            if line.startswith("JAVA_VERSION="):
                return line.partition("=")[2].strip('" ')
    except (OSError, UnicodeDecodeError):
        pass
    return _printed_version(executable)


def _printed_version(executable: str) -> str:
    try:
        process = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = _QUOTED.search(process.stderr)
    return match[1] if match else ""
