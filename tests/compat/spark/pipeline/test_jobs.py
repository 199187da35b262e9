"""`kbroker pipeline run` as a process with its own JVM, and texts of Spark's errors."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.error_text import error_text
from tests.compat.spark.helpers import load, numbered
from tests.compat.spark.pipeline.processes import quick_jvm
from tests.compat.spark.session import IVY
from tests.compat.support import eventually

pytestmark = [pytest.mark.spark, pytest.mark.feature("user jobs")]

START_TIMEOUT_S = 240  # of a JVM and an executor on a busy machine

READ_AND_WAIT = """
import os, sys, time
from pyspark.sql import SparkSession

session = SparkSession.builder.appName("mine").getOrCreate()
assert session is spark
assert session.conf.get("spark.kbroker.bootstrap") == os.environ["KBROKER_BOOTSTRAP"]
frame = session.read.format("kafka").option("kafka.bootstrap.servers", os.environ["KBROKER_BOOTSTRAP"])
print(frame.option("subscribe", sys.argv[1]).load().count(), sys.argv[2:], flush=True)
query = session.readStream.format("rate").load().writeStream.foreachBatch(lambda batch, number: batch.count()).start()
print("waiting", flush=True)
query.awaitTermination()
"""

RUN_ON_EXECUTOR = """
def package_location(rows):
    import kbroker.pipeline.errors, protocol
    yield kbroker.__file__, os.getppid()

import os, time
print(spark.sparkContext.parallelize([1], 1).mapPartitions(package_location).collect()[0][0], flush=True)
print("waiting", flush=True)
time.sleep(600)
"""


class Job:
    """A running `kbroker pipeline run` in its own process session, so that all its child processes can be found."""

    def __init__(self, tmp_path: Path, text: str, *args: str) -> None:
        (tmp_path / "job.py").write_text(text)
        environ = {**os.environ, "KBROKER_SPARK_JARS": str(IVY / "jars"), "PYTHONSAFEPATH": "1"}
        command = [sys.executable, "-m", "kbroker", "pipeline", "run", str(tmp_path / "job.py"), *args]
        self._out, self._err = tmp_path / "out", tmp_path / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=environ, start_new_session=True)

    @property
    def out(self) -> list[str]:
        return self._out.read_text().splitlines()

    @property
    def errors(self) -> str:
        return self._err.read_text()

    def wait_for_output(self) -> None:
        def waiting() -> bool:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.errors}"
            return "waiting" in self.out

        eventually(waiting, "the output of the job", START_TIMEOUT_S)

    def child_processes(self) -> list[int]:
        """Return the ids of its running child processes."""
        children = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                pid, rest = stat.parent.name, stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(rest[3]) == self.process.pid != int(pid) and rest[0] != "Z":
                children.append(int(pid))
        return children

    def end(self) -> None:
        for pid in [*([self.process.pid] if self.process.poll() is None else []), *self.child_processes()]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def started(spark: Any, tmp_path: Path) -> Iterator[list[Job]]:
    """A list of jobs to kill after the test. The shared session has downloaded the connector."""
    jobs: list[Job] = []
    yield jobs
    for job in jobs:
        job.end()


def test_a_job_has_session_connector_and_broker_and_prints_nothing_at_its_end(started, bootstrap, topics, tmp_path):
    name = topics.create()
    topics.fill(name, numbered(range(25)))
    confs = ("--conf", "spark.driver.memory=512m", "--conf", quick_jvm())
    job = Job(tmp_path, READ_AND_WAIT, "--bootstrap", bootstrap, *confs, name, "--", "-x")
    started.append(job)
    job.wait_for_output()
    assert job.out == ["25 ['-x']", "waiting"]
    os.killpg(job.process.pid, signal.SIGINT)  # as a terminal does
    assert job.process.wait(START_TIMEOUT_S) == 130
    assert job.errors == ""
    eventually(lambda: not job.child_processes(), "the end of the JVM")


def test_executors_import_kbroker_and_end_after_a_kill(started, tmp_path):
    import pyspark

    work = Path(pyspark.__file__).parent / "work"
    before = set(work.iterdir()) if work.is_dir() else None
    try:
        properties = (quick_jvm(), quick_jvm().replace("driver", "executor"), "spark.executor.memory=512m")
        confs = [argument for conf in properties for argument in ("--conf", conf)]
        job = Job(tmp_path, RUN_ON_EXECUTOR, "--master", "local-cluster[1,1,512]", *confs)
        started.append(job)
        job.wait_for_output()
        assert job.out[0].endswith("kbroker.zip/kbroker/__init__.py")
        assert len(job.child_processes()) >= 3, "driver, executor, Python on the executor"
        job.process.kill()
        job.process.wait()
        eventually(lambda: not job.child_processes(), "the end of driver and executor")
        assert job.errors == ""
    finally:
        # Spark's standalone workers keep the files of their executors in Spark's installation.
        for path in set(work.iterdir()) - (before or set()) if work.is_dir() else ():
            shutil.rmtree(path)
        if before is None and work.is_dir():
            work.rmdir()


def error_of(action: Any) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        action()
    text = error_text(caught.value)
    assert "\n" not in text
    return text


def test_error_texts_are_the_innermost_cause(spark, bootstrap, streams, tmp_path):
    def divide_by_zero(rows: Any) -> Any:
        return (1 // row.id for row in rows)

    assert error_of(lambda: spark.range(1).rdd.mapPartitions(divide_by_zero).collect()).startswith(
        "ZeroDivisionError: "
    )
    missing = f"{tmp_path}/none"
    assert missing in error_of(lambda: spark.read.parquet(missing))
    assert "`none`" in error_of(lambda: spark.sql("SELECT none FROM range(1)"))
    overflow = error_of(lambda: spark.sql("SELECT CAST(id AS INT) + 2147483647 FROM range(3)").collect())
    assert "overflow" in overflow
    timeouts = {"kafka__request__timeout__ms": 2000, "kafka__default__api__timeout__ms": 3000}
    missing_topic = error_of(lambda: load(spark.read, bootstrap, "no-such-topic", **timeouts).count())
    assert missing_topic == "the topic or partition does not exist on the broker"


def test_an_error_in_a_batch_function_has_the_text_of_the_pipeline_error(spark, streams):
    def fail(batch: Any, number: int) -> None:
        raise PipelineError("/data: no space left on device; archived records stay readable")

    frame = spark.readStream.format("rate").load()
    query = streams.run(frame.writeStream.foreachBatch(fail))
    assert error_of(lambda: query.awaitTermination(START_TIMEOUT_S)) == (
        "/data: no space left on device; archived records stay readable"
    )
