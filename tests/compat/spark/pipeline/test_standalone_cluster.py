"""`kbroker archive run` on a standalone Spark cluster (spark://), whose executors and driver are killed."""

import json
import sys

import pytest

from tests.compat.spark.helpers import numbered
from tests.compat.spark.pipeline.archiver import Archiver
from tests.compat.spark.pipeline.processes import Command
from tests.compat.spark.pipeline.standalone_cluster import standalone_cluster
from tests.compat.support import eventually

pytestmark = [pytest.mark.spark, pytest.mark.feature("archive on a standalone cluster")]

TIMEOUT_S = 240


@pytest.mark.timeout(900)
def test_records_survive_kills_of_executor_and_driver(topics, tmp_path, monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    name = topics.create(partitions=2)
    topics.fill(name, numbered(range(1000), partitions=2))
    archiver = Archiver(None, topics.bootstrap, tmp_path / "archive")
    with standalone_cluster(tmp_path / "cluster") as cluster:
        command = Command(
            tmp_path / "command", "archive", "run", tmp_path / "archive", name, "--every", "500ms",
            "--bootstrap", topics.bootstrap, "--master", cluster.url,
            "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1",
            "--conf", "spark.executor.memory=512m", "--conf", "spark.executor.cores=1",
        )  # fmt: skip
        last = Command(tmp_path / "last", *command.arguments, "--once", "--json")

        def wait_for(count):
            has_rows = lambda: command.running() and len(archiver.rows(name)) >= count  # noqa: E731
            eventually(has_rows, f"{count} rows", TIMEOUT_S)

        try:
            command.start()
            wait_for(1000)
            assert cluster.executors()
            cluster.kill_executor()
            topics.fill(name, numbered(range(1000, 2000), partitions=2))
            wait_for(2000)
            topics.fill(name, numbered(range(2000, 3000), partitions=2))
            command.kill()
            last.start()
            assert last.wait(TIMEOUT_S) == 0, last.errors
            assert json.loads(last.output)["gaps"] == []
        finally:
            command.kill()
            last.kill()
    assert archiver.numbers(name) == list(range(3000))
