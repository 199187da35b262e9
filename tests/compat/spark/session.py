"""The Spark session of the tests, with the Kafka connector."""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.benchmark.peers import maven
from tests.compat.java_programs import QUICK_JVM, class_archive

HERE = Path(__file__).parent
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
IVY = HERE.parents[2] / ".cache" / "ivy"
PACKAGES = IVY / "packages"

# Dependencies of the connector that are part of pyspark.
PROVIDED = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime"
# A session that loads the classes of most tests: a job with a shuffle, and files.
TRAINING = """
import sys
from pyspark.sql import SparkSession
conf = {"spark.driver.extraJavaOptions": sys.argv[1], "spark.sql.shuffle.partitions": 2, "spark.ui.enabled": False}
spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
rows = spark.range(100).selectExpr("id % 7 AS k", "CAST(id AS STRING) AS v").groupBy("k").count()
rows.write.parquet(sys.argv[2] + "/rows")
spark.read.parquet(sys.argv[2] + "/rows").orderBy("count").collect()
spark.stop()
"""


def jvm_options() -> str:
    """Return the options of a driver's JVM."""
    import pyspark

    def train(option: str) -> None:
        with tempfile.TemporaryDirectory() as directory:
            command = [sys.executable, "-c", TRAINING, " ".join([*QUICK_JVM, "-Xlog:disable", option]), directory]
            environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
            subprocess.run(command, cwd=directory, env=environment, capture_output=True, check=True)

    return " ".join([*QUICK_JVM, *class_archive("spark", Path(pyspark.__file__).with_name("jars"), train)])


@contextmanager
def connector_packages() -> Iterator[None]:
    """Let a session resolve `CONNECTOR` with ivysettings.xml. Others wait: two would damage each other's files.

    Maven downloads the packages, since Ivy waits for ever for a registry that does not answer.
    """
    IVY.mkdir(parents=True, exist_ok=True)
    with (IVY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not PACKAGES.is_dir():
            with tempfile.TemporaryDirectory(dir=IVY) as directory:
                maven(
                    "-f", HERE / "connector-pom.xml", "dependency:resolve", f"-Dmaven.repo.local={directory}/packages"
                )
                Path(directory, "packages").rename(PACKAGES)
        yield


def new_session(directory: Path) -> Any:
    """Start a SparkSession with two threads. The first start downloads the connector."""
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
        "spark.driver.extraJavaOptions": jvm_options(),
        # What Spark records of jobs, which must not have secrets.
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": directory / "events",
        "spark.eventLog.enabled": "true",
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
    (directory / "events").mkdir()
    builder = SparkSession.builder.master("local[2]").appName("kbroker-compat")
    for name, value in properties.items():
        builder = builder.config(name, str(value))
    with connector_packages():
        return builder.getOrCreate()
