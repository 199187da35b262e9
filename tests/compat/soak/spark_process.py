"""The streaming query of spark_query.py as a process, and the check of its result."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from kbroker.pipeline.spark.installation import cached_jars, require_java, require_spark
from tests.compat.support import DEADLINE_S, eventually


def download_connector() -> None:
    """Download what Spark needs, if that has not been done before: a network of our own has no way out."""
    cached_jars(require_spark(os.environ), require_java(os.environ), os.environ, None, print)


class SparkProcess:
    """Copies a topic to Parquet files with a checkpoint, each record exactly once."""

    def __init__(self, bootstrap: str, topic: str, directory: Path) -> None:
        self._command = [
            sys.executable,
            "-m",
            "tests.compat.soak.spark_query",
            bootstrap,
            topic,
            str(directory / "spark"),
        ]
        self._directory = directory
        self._output = directory / "spark-output"
        self._errors = directory / "spark-errors"
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0

    def start(self) -> None:
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=output, stderr=errors)
        eventually(self.rows, "the first rows of the streaming query", 3 * DEADLINE_S, interval=0.5)

    def rows(self) -> int:
        """Return the number of records that the query has copied. Fails if it has ended."""
        assert self._process is not None
        assert self._process.poll() is None, f"the streaming query has ended:\n{self._errors.read_text()[-4000:]}"
        lines = self._output.read_bytes()[-200:].splitlines()
        counts = [int(line.removeprefix(b"rows ")) for line in lines[1:-1] if line.startswith(b"rows ")]
        return max(counts, default=0)

    def finish(self, expected: list[list[bytes]]) -> None:
        """Let the query read the rest of the topic, and compare its files with the topic."""
        process = self._process
        assert process is not None
        process.communicate(b"finish\n", timeout=4 * DEADLINE_S)
        assert process.returncode == 0, f"{process.returncode}:\n{self._errors.read_text()[-4000:]}"
        self._process = None
        rows = Counter((self._directory / "spark" / "result").read_text().splitlines())
        wanted = {
            f"{partition} {offset} {value.decode()}"
            for partition, part in enumerate(expected)
            for offset, value in enumerate(part)
        }
        twice = [row[:60] for row, count in rows.items() if count > 1]
        assert not twice, f"Spark has copied {len(twice)} records more than once: {twice[:3]}"
        lost = sorted(row[:60] for row in wanted - set(rows))
        assert not lost, f"Spark has not copied {len(lost)} records: {lost[:3]}"
        assert set(rows) == wanted, "Spark has copied records that are not in the topic"
        self._count = len(wanted)

    def report(self) -> str:
        return f"{self._count} records copied once by a streaming query of Spark"

    def abandon(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
