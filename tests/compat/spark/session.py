"""The Spark session of the tests, with the Kafka connector."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
IVY = HERE.parents[2] / ".cache" / "ivy"

# Dependencies of the connector that are part of pyspark.
PROVIDED = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime"
# For many small jobs on two cores: no optimizing compiler, no threads for garbage collection.
JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"


@contextmanager
def ivy_lock() -> Iterator[None]:
    """Let no other process download jars: two at the same time would damage each other's files."""
    IVY.mkdir(parents=True, exist_ok=True)
    with (IVY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def new_session(directory: Path) -> Any:
    """Start a SparkSession with two threads. The first start downloads the connector into .cache/ivy."""
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    properties = {
        "spark.jars.packages": CONNECTOR,
        "spark.jars.excludes": PROVIDED,
        "spark.jars.ivySettings": HERE / "ivysettings.xml",
        "spark.jars.ivy": IVY,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": JVM_OPTIONS,
        "spark.local.dir": directory / "local",
        "spark.log.level": "ERROR",
        # Compiling a query takes longer than interpreting it for a few hundred rows.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 2,
        # As in kbroker's own sessions: listing many small files needs no job.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": 100_000,
        "spark.sql.streaming.numRecentProgressUpdates": 1000,
        "spark.sql.warehouse.dir": directory / "warehouse",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("kbroker-compat")
    for name, value in properties.items():
        builder = builder.config(name, str(value))
    with ivy_lock():
        return builder.getOrCreate()
