"""Which Spark is installed, and whether it is one that this pipeline works with."""

import importlib.util
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kbroker.pipeline.errors import PipelineError

SUPPORTED = "4.0"
INSTALL = "pip install 'kbroker[spark]'"

_CORE = re.compile(r"spark-core_(\d+\.\d+)-(\d+\.\d+\.\d+\S*)\.jar")


class Spark(NamedTuple):
    """An installation of Spark."""

    home: Path
    version: str  # 4.0.5
    scala: str  # 2.13

    @property
    def jars(self) -> Path:
        return self.home / "jars"


def require_spark(environ: Mapping[str, str]) -> Spark:
    """The Spark that pyspark starts: that of SPARK_HOME, else its own.

    Raises PipelineError, one sentence, where there is none or it is of another version than is supported.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise PipelineError(f"needs Spark: {INSTALL}")
    from pyspark import __version__ as version

    if release(version) != SUPPORTED:
        raise PipelineError(f"pyspark {version} is installed, and kbroker works with {SUPPORTED}: {INSTALL}")
    named = environ.get("SPARK_HOME", "")
    home = Path(named or os.path.dirname(spec.origin))
    core = next((match for match in map(_CORE.fullmatch, _names(home / "jars")) if match), None)
    if core is None:
        where = f"SPARK_HOME is {home}, where" if named else f"pyspark is in {home}, and"
        raise PipelineError(f"{where} there is no jars/spark-core: {INSTALL}")
    if release(core[2]) != SUPPORTED:
        raise PipelineError(f"SPARK_HOME is {home}, a Spark {core[2]}, and pyspark is {version}: unset SPARK_HOME")
    return Spark(home, core[2], core[1])


def release(version: str) -> str:
    """Major and minor, within which Spark's parts fit each other: 4.0 of 4.0.5."""
    return ".".join(version.split(".")[:2])


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
