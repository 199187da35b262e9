"""Finds the installed Spark, and checks that kbroker supports its version."""

import importlib.util
import os
import re
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
