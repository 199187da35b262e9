"""`kbroker pipeline run` as a user runs it: a process with a JVM of its own. And how Spark's own failures are told."""

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
from tests.compat.spark.conftest import IVY
from tests.compat.spark.helpers import load, numbered
from tests.compat.support import eventually

pytestmark = [pytest.mark.spark, pytest.mark.feature("jobs of one's own")]

START_S = 240  # a JVM, an executor, on a machine that does other things too

READS_THEN_WAITS = """
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

RUNS_ON_AN_EXECUTOR = """
def where(rows):
    import kbroker.pipeline.errors, protocol
    yield kbroker.__file__, os.getppid()

import os, time
print(spark.sparkContext.parallelize([1], 1).mapPartitions(where).collect()[0][0], flush=True)
print("waiting", flush=True)
time.sleep(600)
"""


class Job:
    """A running `kbroker pipeline run`, in a session of its own, so that everything it started can be counted."""

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

    def waits(self) -> None:
        def waiting() -> bool:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.errors}"
            return "waiting" in self.out

        eventually(waiting, "the job has done its work", START_S)

    def others(self) -> list[int]:
        """The processes that it started and that are still there."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                pid, rest = stat.parent.name, stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(rest[3]) == self.process.pid != int(pid) and rest[0] != "Z":
                found.append(int(pid))
        return found

    def end(self) -> None:
        for pid in [*([self.process.pid] if self.process.poll() is None else []), *self.others()]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def started(spark: Any, tmp_path: Path) -> Iterator[list[Job]]:
    """Jobs that are ended with the test. The shared session has fetched the connector."""
    jobs: list[Job] = []
    yield jobs
    for job in jobs:
        job.end()


def test_a_job_has_session_connector_and_broker_and_ends_quietly(started, bootstrap, topics, tmp_path):
    name = topics.create()
    topics.fill(name, numbered(range(25)))
    job = Job(
        tmp_path, READS_THEN_WAITS, "--bootstrap", bootstrap, "--conf", "spark.driver.memory=512m", name, "--", "-x"
    )
    started.append(job)
    job.waits()
    assert job.out == ["25 ['-x']", "waiting"]
    os.killpg(job.process.pid, signal.SIGINT)  # as a terminal does
    assert job.process.wait(60) == 130
    assert job.errors == ""
    eventually(lambda: not job.others(), "the JVM is gone", 60)


def test_executors_have_our_package_and_nothing_outlives_a_kill(started, tmp_path):
    import pyspark

    work = Path(pyspark.__file__).parent / "work"
    before = set(work.iterdir()) if work.is_dir() else None
    try:
        job = Job(
            tmp_path, RUNS_ON_AN_EXECUTOR, "--master", "local-cluster[1,1,512]", "--conf", "spark.executor.memory=512m"
        )
        started.append(job)
        job.waits()
        assert job.out[0].endswith("kbroker.zip/kbroker/__init__.py")
        assert len(job.others()) >= 3, "driver, executor, Python on the executor"
        job.process.kill()
        job.process.wait()
        eventually(lambda: not job.others(), "driver and executor are gone", 60)
        assert job.errors == ""
    finally:
        # Spark's standalone workers keep the files of what they ran, in its installation.
        for path in set(work.iterdir()) - (before or set()) if work.is_dir() else ():
            shutil.rmtree(path)
        if before is None and work.is_dir():
            work.rmdir()


def failure(action: Any) -> str:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        action()
    told = error_text(caught.value)
    assert "\n" not in told
    return told


def test_failures_are_told_by_their_cause(spark, bootstrap, streams, tmp_path):
    def divides(rows: Any) -> Any:
        return (1 // row.id for row in rows)

    assert failure(lambda: spark.range(1).rdd.mapPartitions(divides).collect()).startswith("ZeroDivisionError: ")
    missing = f"{tmp_path}/none"
    assert missing in failure(lambda: spark.read.parquet(missing))
    assert "`none`" in failure(lambda: spark.sql("SELECT none FROM range(1)"))
    overflow = failure(lambda: spark.sql("SELECT CAST(id AS INT) + 2147483647 FROM range(3)").collect())
    assert "overflow" in overflow
    patience = {"kafka__request__timeout__ms": 2000, "kafka__default__api__timeout__ms": 3000}
    absent = failure(lambda: load(spark.read, bootstrap, "no-such-topic", **patience).count())
    assert absent == "the topic or partition does not exist on the broker"


def test_what_a_batch_of_ours_raises_is_told_as_it_is(spark, streams):
    def full(batch: Any, number: int) -> None:
        raise PipelineError("/data: no space left on device; archived records stay readable")

    frame = spark.readStream.format("rate").load()
    query = streams.run(frame.writeStream.foreachBatch(full))
    assert failure(lambda: query.awaitTermination(60)) == (
        "/data: no space left on device; archived records stay readable"
    )
