"""Archives in an object store: what writers, readers and other engines see, and stores that fail."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import polars as pl
import pytest
from pyiceberg.table import StaticTable
from pyiceberg.utils.config import Config

from kbroker.archive.archive import ConflictError
from kbroker.archive.catalogs import create_archive, open_archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.errors import ArchiveError
from kbroker.archive.offset_ranges import OffsetRange
from tests.compat.archive.rest_catalogue import TOKEN, rest_catalogue
from tests.compat.archive.s3_server import BUCKET, CREDENTIALS, s3_server
from tests.unit.support.archive_tables import append_rows, make_rows

pytestmark = [pytest.mark.feature("archive catalogues"), pytest.mark.client("cli")]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of an S3 server with an empty bucket."""
    with s3_server() as url:
        yield url


@pytest.fixture
def location(server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A prefix of its own; AWS_* say how to reach it."""
    for name, text in {**CREDENTIALS, "AWS_ENDPOINT_URL": server}.items():
        monkeypatch.setenv(name, text)
    return f"s3://{BUCKET}/{request.node.name}/a b"


def test_an_archive_in_an_object_store(location: str) -> None:
    """Settings, topics, commits, a conflict and a replacement, as of two processes."""
    with pytest.raises(ArchiveError, match=f"^{location}: no archive found; create one"):
        open_archive(location)
    archive = create_archive(location, {"period": "hour"})
    first = archive.create_table("t.u-v_w")
    assert first.location == f"{location}/topics/t.u-v_w"
    second = open_archive(location.replace("s3:", "s3a:") + "/").table("t.u-v_w")
    files = [append_rows(first, first=10 * number, count=10) for number in range(3)]
    with pytest.raises(ConflictError, match="another process has changed the table"):
        append_rows(second, count=10)
    assert second.refresh().covered == {0: (OffsetRange(0, 30),)}
    merged = write_rows(second.write_target(), [make_rows(0, 0, 20)])
    second.commit("compact", second.state, add=merged, remove=files[:2])
    first.refresh()
    assert sorted((file.first, file.last) for file in first.files()) == [(0, 19), (20, 29)]
    archive.create_table("another")
    assert open_archive(location).topics() == ["another", "t.u-v_w"]
    assert open_archive(location).settings.period == "hour"
    properties = json.dumps([dict(first.iceberg.properties), str(first.iceberg.metadata)])
    assert "my-secret" not in properties


def test_other_engines_read_it(location: str, server: str) -> None:
    """pyiceberg and Polars by the latest metadata file, DuckDB through Arrow."""
    table = create_archive(location, {}).create_table("t")
    for number in range(3):
        append_rows(table, first=10 * number, count=10)
    latest = table.iceberg.metadata_location
    assert latest == f"{location}/topics/t/metadata/v4.metadata.json"
    properties = {
        "s3.endpoint": server, "s3.region": "us-east-1", "s3.access-key-id": "me", "s3.secret-access-key": "my-secret"
    }  # fmt: skip
    rows = StaticTable.from_metadata(latest, properties).scan(row_filter="offset >= 25").to_arrow()
    assert rows["offset"].to_pylist() == [25, 26, 27, 28, 29]
    assert duckdb.sql('SELECT count(*), sum("offset") FROM rows').fetchall() == [(5, 135)]
    frame = pl.scan_iceberg(StaticTable.from_metadata(latest, properties), reader_override="pyiceberg")
    assert frame.select(pl.col("offset").sum()).collect().item() == sum(range(30))


WRITER = """
import sys
from kbroker.archive.archive import ConflictError
from kbroker.archive.catalogs import open_archive
from tests.compat.archive.rest_catalogue import TOKEN, rest_catalogue
from tests.compat.archive.s3_server import BUCKET, CREDENTIALS, s3_server
from tests.unit.support.archive_tables import append_rows

location, count = sys.argv[1], int(sys.argv[2])
table = open_archive(location).table("t")
conflicts = 0
while (offset := table.state.resume_offsets().get(0, 0)) < count:
    try:
        append_rows(table, first=offset, count=1)
    except ConflictError:
        conflicts += 1
        table.refresh()
print(conflicts)
"""


@pytest.mark.parametrize("kind", ["s3", "sqlite"])
def test_competing_processes_archive_each_offset_once(kind: str, location: str, tmp_path: Path) -> None:
    """Two write the same offsets as fast as they can."""
    where = location if kind == "s3" else str(tmp_path)
    create_archive(where, {}).create_table("t")
    command = [sys.executable, "-c", WRITER, where, "12"]
    root = Path(__file__).parents[3]
    writers = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    conflicts = [int(writer.communicate(timeout=120)[0]) for writer in writers]
    table = open_archive(where).table("t")
    assert sorted(table.iceberg.scan().to_arrow()["offset"].to_pylist()) == list(range(12))
    assert sorted(file.first for file in table.files()) == list(range(12))
    assert table.state.covered == {0: (OffsetRange(0, 12),)}
    assert sum(conflicts) > 0


def test_a_bucket_that_does_not_exist(location: str) -> None:
    """The message has the location, and what the store says."""
    for call in (open_archive, lambda name: create_archive(name, {})):
        with pytest.raises(ArchiveError, match=r"^s3://absent/x/\S+: NoSuchBucket: The specified bucket does"):
            call("s3://absent/x")


class Gate:
    """A TCP proxy that can stop to forward, or refuse connections."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            upstream = socket.create_connection(self._target)
            self._sockets += [client, upstream]
            for pair in ((client, upstream), (upstream, client)):
                threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._open.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def stall(self) -> None:
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.set()
        self._server.close()
        for each in self._sockets:
            each.close()


@pytest.mark.timeout(120)
def test_a_store_that_does_not_respond(location: str, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit ends with one sentence after a bounded time, and what was archived stays readable."""
    gate = Gate(server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", gate.url)
    for name, text in {"S3__REQUEST-TIMEOUT": "1", "S3__CONNECT-TIMEOUT": "1", "S3__MAX-RETRIES": "2"}.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__KBROKER__{name}", text)
    table = create_archive(location, {}).create_table("t")
    append_rows(table, count=10)
    gate.stall()
    start_s = time.monotonic()
    with pytest.raises(ArchiveError, match="s3://") as failure:
        table.commit("observe", replace(table.state, groups_ms=1))
    assert time.monotonic() - start_s < 60
    assert "my-secret" not in str(failure.value)
    assert "\n" not in str(failure.value)
    gate.resume()
    other = open_archive(location).table("t")
    assert [file.rows for file in other.files()] == [10]
    append_rows(other, first=10, count=5)
    gate.close()
    with pytest.raises(ArchiveError, match=r"cannot be reached|connect"):
        other.refresh()


def test_a_rest_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue decides where tables are; conflicts, a wrong token and a server that is away are told."""

    def configure(**properties: str) -> None:
        for name, text in {"TYPE": "rest", **properties}.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__OFFICE__{name}", text)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which it reads when it is imported

    with rest_catalogue(tmp_path) as url:
        configure(URI=url, TOKEN=TOKEN)
        with pytest.raises(ArchiveError, match=r"^catalog:office/kafka: no archive found"):
            open_archive("catalog:office/kafka")
        first = create_archive("catalog:office/kafka", {"period": "hour"}).create_table("t.u")
        second = open_archive("catalog:office/kafka").table("t.u")
        append_rows(first, count=10)
        with pytest.raises(ConflictError, match="another process has changed the table"):
            append_rows(second, count=10)
        assert second.refresh() == first.state
        files = second.files()
        merged = write_rows(second.write_target(), [make_rows(0, 0, 10)])
        second.commit("compact", second.state, add=merged, remove=files)
        assert first.refresh().commit == 2
        assert [file.path for file in first.files()] == [file.path for file in merged]
        assert first.location == f"file://{tmp_path}/warehouse/kafka/t.u"
        assert open_archive("catalog:office/kafka").topics() == ["t.u"]
        configure(URI=url, TOKEN="wrong-secret")
        with pytest.raises(ArchiveError, match=r"^catalog:office: .*no such token") as failure:
            open_archive("catalog:office/kafka")
        assert "wrong-secret" not in str(failure.value)
    with pytest.raises(ArchiveError, match=f"{first.location}: .*[Cc]onnection") as failure:
        first.refresh()
    assert "\n" not in str(failure.value)
