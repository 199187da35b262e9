"""Other engines read a topic's table while it is written and compacted: only committed records, and each once."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable, Table

from kbroker.archive.catalogs import create_archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.maintenance.compaction import MergeResult, compact_topic
from kbroker.archive.maintenance.compaction_plan import plan_merges
from kbroker.archive.offset_ranges import OffsetRange
from scripts.benchmark.peers import CACHE, maven
from tests.compat.spark.session import IVY, connector_packages
from tests.compat.support import DEADLINE_S
from tests.unit.support.archive_tables import make_rows

pytestmark = [pytest.mark.feature("archive readers"), pytest.mark.client("cli")]

TOPIC = "orders"
PARTITIONS, ROWS = 2, 50  # of one commit
READS = 4
COMPACT_EVERY = 5
JARS = CACHE.parent / "iceberg-jars"
RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.0", "org.xerial:sqlite-jdbc:3.50.3.0"

Pair = tuple[int, int]  # partition and offset


class Writer:
    """Commits rows of two partitions at a time, and compacts the table, until it is stopped."""

    def __init__(self, directory: Path) -> None:
        self.table = create_archive(str(directory), {}).create_table(TOPIC)
        self.commits = 0
        self.compactions = 0
        self.error: BaseException | None = None
        self.stop = threading.Event()
        self.commit()

    def commit(self) -> None:
        start, end = self.commits * ROWS, (self.commits + 1) * ROWS
        rows = [make_rows(partition, start, ROWS) for partition in range(PARTITIONS)]
        state = self.table.state.with_covered((partition, OffsetRange(start, end)) for partition in range(PARTITIONS))
        self.table.commit("append", state, write_rows(self.table.write_target(), rows))
        self.commits += 1

    def run(self) -> None:
        try:
            while not self.stop.is_set():
                self.commit()
                if self.commits % COMPACT_EVERY == 0:
                    result = MergeResult()
                    compact_topic(self.table, plan_merges(self.table.files()), result)
                    self.compactions += result.merged > 0
        except BaseException as error:
            self.error = error


@contextmanager
def writing(directory: Path) -> Iterator[Writer]:
    writer = Writer(directory)
    thread = threading.Thread(target=writer.run)
    thread.start()
    try:
        yield writer
    finally:
        writer.stop.set()
        thread.join(DEADLINE_S)
    assert writer.error is None
    assert writer.commits > COMPACT_EVERY
    assert writer.compactions


def load(directory: Path) -> Table:
    """Load the table as a user does, by the SQLite catalogue in the archive."""
    return SqlCatalog("kbroker", uri=f"sqlite:///{directory}/catalog.db").load_table(f"topics.{TOPIC}")


def columns(rows: Any) -> list[Pair]:
    return list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def by_pyiceberg(table: Table) -> list[Pair]:
    return columns(table.scan(selected_fields=("partition", "offset")).to_arrow())


def by_pyarrow(table: Table) -> list[Pair]:
    paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    return columns(ds.dataset(paths).to_table(columns=["partition", "offset"]))


def by_duckdb(table: Table) -> list[Pair]:
    with table.scan().to_duckdb(TOPIC) as connection:
        return connection.sql(f'SELECT partition, "offset" FROM {TOPIC}').fetchall()


def by_duckdb_stream(table: Table) -> list[Pair]:
    """The rows are not all in memory at a time."""
    rows = table.scan(row_filter="offset >= 0").to_arrow_batch_reader()
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        return connection.sql('SELECT partition, "offset" FROM rows').fetchall()


def by_polars(table: Table) -> list[Pair]:
    return pl.scan_iceberg(table).select("partition", "offset").collect().rows()


def by_polars_metadata(table: Table) -> list[Pair]:
    return pl.scan_iceberg(table.metadata_location).select("partition", "offset").collect().rows()


def by_metadata_file(table: Table) -> list[Pair]:
    return by_pyiceberg(StaticTable.from_metadata(table.metadata_location))


@pytest.fixture(autouse=True)
def _plans_of_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polars warns that a package of its own would plan faster."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


ENGINES: list[Callable[[Table], list[Pair]]] = [
    by_pyiceberg,
    by_metadata_file,
    by_pyarrow,
    by_duckdb,
    by_duckdb_stream,
    by_polars,
    by_polars_metadata,
]


def require_prefix(counts: Iterable[tuple[int, int, int, int]], at_least: int) -> None:
    """Check (partition, rows, distinct offsets, last offset): complete commits, at least those before the read."""
    read = sorted(counts)
    assert [partition for partition, *_ in read] == list(range(PARTITIONS))
    (rows,) = {tuple(numbers) for _, *numbers in read}
    count, distinct, last = rows
    assert count == distinct == last + 1
    assert count % ROWS == 0
    assert count >= at_least * ROWS


def count_pairs(pairs: list[Pair]) -> list[tuple[int, int, int, int]]:
    result = []
    for partition in {partition for partition, _ in pairs}:
        offsets = [offset for number, offset in pairs if number == partition]
        result.append((partition, len(offsets), len(set(offsets)), max(offsets)))
    return result


def test_python_engines_read_committed_records_once_while_the_table_is_written(tmp_path: Path) -> None:
    """DuckDB, Polars, pyarrow and pyiceberg, by the catalogue and by the metadata file."""
    with writing(tmp_path / "archive") as writer:
        for _ in range(READS):
            for read in ENGINES:
                before = writer.commits
                require_prefix(count_pairs(read(load(tmp_path / "archive"))), before)


def test_all_columns_have_the_types_of_the_records(tmp_path: Path) -> None:
    """Binary keys and values, timestamps with a time zone, headers as a list of structs."""
    writer = Writer(tmp_path / "archive")
    table = load(tmp_path / "archive")
    with table.scan().to_duckdb(TOPIC) as connection:
        rows = connection.sql(
            "SELECT decode(key), decode(value), epoch_ms(timestamp), headers[1].key, headers[1].value "
            f'FROM {TOPIC} WHERE partition = 1 AND "offset" = 7'
        ).fetchall()
    assert rows == [("key-7", "value", 7, "h", b"x")]
    frame = pl.scan_iceberg(table).filter((pl.col("partition") == 1) & (pl.col("offset") == 7)).collect()
    assert frame["key"].to_list() == [b"key-7"]
    assert frame["headers"].to_list() == [[{"key": "h", "value": b"x"}]]
    assert frame["timestamp"].dt.epoch("ms").to_list() == [7]
    assert writer.commits == 1


SPARK_READER = """
import json, sys
from pyspark.sql import SparkSession
directory, topic, reads, jars = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
conf = {
    "spark.jars": jars,
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
    "spark.sql.catalog.kbroker": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.kbroker.type": "jdbc",
    "spark.sql.catalog.kbroker.uri": f"jdbc:sqlite:{directory}/catalog.db",
    "spark.sql.catalog.kbroker.warehouse": f"file://{directory}",
    "spark.sql.catalog.kbroker.cache-enabled": "false",
}
spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
counts = "SELECT partition, count(*), count(DISTINCT offset), max(offset) FROM {rows} GROUP BY partition"
print("ready", flush=True)
for _ in range(reads):
    sys.stdin.readline()
    rows = spark.sql(counts, rows=spark.table(f"kbroker.topics.{topic}")).collect()
    print(json.dumps([list(row) for row in rows]), flush=True)
metadata = sys.stdin.readline().strip()
rows = spark.sql(counts, rows=spark.read.format("iceberg").load(metadata)).collect()
print(json.dumps([list(row) for row in rows]), flush=True)
of_kafka = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1").option("subscribe", topic)
print(json.dumps(of_kafka.load().columns), flush=True)
"""


def spark_jars() -> str:
    """Return Iceberg's runtime, SQLite's driver and the Kafka connector, downloaded once with Maven."""
    for artifact in RUNTIME:
        _, name, version = artifact.split(":")
        if not (JARS / f"{name}-{version}.jar").exists():
            maven("dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={JARS}")
    with connector_packages():
        return ",".join(map(str, [*JARS.glob("*.jar"), *(IVY / "jars").glob("*.jar")]))


@pytest.mark.spark
def test_spark_reads_committed_records_once_while_the_table_is_written(tmp_path: Path) -> None:
    """By the SQLite catalogue through JDBC and by the metadata file, in a session with the Kafka connector."""
    directory = tmp_path / "archive"
    arguments = [sys.executable, "-c", SPARK_READER, str(directory), TOPIC, str(READS), spark_jars()]
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    create_archive(str(directory), {})
    with (
        (tmp_path / "stderr").open("w") as errors,
        subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(line: str) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            response = process.stdout.readline()
            assert response, (tmp_path / "stderr").read_text()[-4000:]
            return json.loads(response)

        try:
            assert process.stdout.readline() == "ready\n", (tmp_path / "stderr").read_text()[-4000:]
            with writing(directory) as writer:
                for _ in range(READS):
                    before = writer.commits
                    require_prefix(map(tuple, ask("")), before)
            location = load(directory).metadata_location
            require_prefix(map(tuple, ask(location)), writer.commits)
            assert "value" in json.loads(process.stdout.readline())
        finally:
            process.kill()
