"""One Spark for all tests of this folder, with the Kafka connector that its users load; topics and a client."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.spark.helpers import Streams, Topics

HERE = Path(__file__).parent
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
IVY = HERE.parents[2] / ".cache" / "ivy"

# Spark starts on its own; these come with pyspark, so a second copy would only be downloaded.
ALREADY_THERE = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime"
# The tests are many small jobs on two cores: the quick compiler and no helper threads that take turns with them.
JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A SparkSession on two threads of this machine. Its first start downloads the connector into .cache/ivy."""
    sql = pytest.importorskip("pyspark.sql", reason="not run: pyspark is not installed (extra `spark`)")
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    directory = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.jars.packages": CONNECTOR,
        "spark.jars.excludes": ALREADY_THERE,
        "spark.jars.ivySettings": HERE / "ivysettings.xml",
        "spark.jars.ivy": IVY,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": JVM,
        "spark.local.dir": directory / "local",
        "spark.log.level": "ERROR",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 2,
        # As kbroker's own sessions: many small files are not worth a task each.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": 100_000,
        "spark.sql.streaming.numRecentProgressUpdates": 1000,
        "spark.sql.warehouse.dir": directory / "warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = sql.SparkSession.builder.master("local[2]").appName("kbroker-compat")
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def topics(bootstrap: str, request: pytest.FixtureRequest) -> Iterator[Topics]:
    """Topics of this test, which are deleted after it."""
    made = Topics(bootstrap, request.node.originalname.removeprefix("test_"))
    yield made
    made.delete()


@pytest.fixture
def streams(spark: Any, tmp_path: Path) -> Iterator[Streams]:
    """Streaming queries of this test, which are stopped after it."""
    running = Streams(spark, tmp_path)
    yield running
    running.stop()
