"""The choice of a Spark installation."""

import importlib.util
from pathlib import Path

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark import installation


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
    spark = installation.require_spark({})
    assert (spark.version, spark.scala) == (pyspark.__version__, "2.13")
    assert spark.jars.is_dir()
