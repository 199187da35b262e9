"""The process: its frames, failures of one call only, partitions that do not wait for others, its end."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from queue import Queue
from struct import Struct
from typing import Any

import pyarrow.parquet as pq
import pytest

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.catalogs import create_archive
from kbroker.archive.data_files import DataFile
from kbroker.archive.history.file_reader import FileReader
from kbroker.archive.history.server import HistoryServer
from protocol.records.batch import parse_header
from tests.unit.support.archive_tables import append_rows

LENGTH = Struct(">I")
DEADLINE_S = 60


@pytest.fixture
def table(tmp_path: Path) -> ArchiveTable:
    return create_archive(str(tmp_path), {"committed_only": True}).create_table("t")


class Responses:
    """Executes calls by a server of this process."""

    def __init__(self, archive: Path, reader: FileReader | None = None) -> None:
        self._archive = str(archive)
        self._responses: Queue[tuple[Mapping[str, Any], bytes]] = Queue()
        self.server = HistoryServer(lambda header, body: self._responses.put((header, b"".join(body))), reader)

    def send(self, **header: object) -> None:
        self.server.submit({"archive": self._archive, "topic": "t", **header})

    def next(self) -> tuple[Mapping[str, Any], bytes]:
        return self._responses.get(timeout=DEADLINE_S)

    def call(self, **header: object) -> tuple[Mapping[str, Any], bytes]:
        self.send(id=1, **header)
        return self.next()

    def fetch(self, partition: int = 0, offset: int = 0) -> tuple[Mapping[str, Any], bytes]:
        return self.call(call="fetch", partition=partition, offset=offset, end=20, max_bytes=1 << 20)


def local_path(file: DataFile) -> Path:
    return Path(file.path.removeprefix("file://"))


def test_calls_over_pipes(table: ArchiveTable, tmp_path: Path) -> None:
    """As a broker calls the process. It ends when its input does."""
    append_rows(table, first=5, count=10, timestamp_ms=1000)
    process = subprocess.Popen(
        [sys.executable, "-m", "kbroker.archive.history"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    place = {"archive": str(tmp_path), "topic": "t", "partition": 0}
    calls = [
        {"id": 1, "call": "bounds", "archive": str(tmp_path), "topic": "t"},
        {"id": 2, "call": "fetch", **place, "offset": 7, "end": 15, "max_bytes": 1000},
        {"id": 3, "call": "offset_for_time", **place, "timestamp": 1003},
        {"id": 4, "call": "offset_for_time", **place, "timestamp": 2000},
        {"id": 5, "call": "fetch", **place, "topic": "absent", "offset": 7, "end": 15, "max_bytes": 1000},
    ]
    for call in calls:
        text = json.dumps(call).encode()
        process.stdin.write(LENGTH.pack(len(text)) + text)
    process.stdin.flush()
    responses = {}
    for _ in calls:
        (length,) = LENGTH.unpack(process.stdout.read(LENGTH.size))
        response = json.loads(process.stdout.read(length))
        responses[response["id"]] = response, process.stdout.read(response.get("body", 0))
    bounds = responses[1][0]
    assert bounds["partitions"] == {"0": {"start": 5, "end": 15}}
    assert (bounds["committed_only"], bounds["topic_id"]) == (True, "")
    assert bounds["commit_ms"] > 0
    header = parse_header(responses[2][1])
    assert (header.base_offset, header.count, responses[2][0]["next_offset"]) == (7, 8, 15)
    assert responses[3][0] == {"id": 3, "offset": 8, "found_timestamp": 1003, "leader_epoch": -1}
    assert responses[4][0] == {"id": 4, "offset": -1}
    assert responses[5][0]["kind"] == "absent"
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0
    assert errors.decode().count("\n") == 1
    assert "fetch of absent" in errors.decode()


def _flip_byte(path: Path) -> None:
    """Change a byte of the values, which are zstd frames: the checksum of the page no longer fits."""
    start = pq.read_metadata(path).row_group(0).column(5).data_page_offset
    data = bytearray(path.read_bytes())
    data[start + 40] ^= 1
    path.write_bytes(data)


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (Path.unlink, "is missing"),
    (_flip_byte, "cannot be read"),
    (lambda path: path.write_bytes(path.read_bytes()[:-100]), "cannot be read"),
    (lambda path: path.write_bytes(b""), "cannot be read"),
    (lambda path: path.write_bytes(b"PAR1" * 100), "cannot be read"),
]


@pytest.mark.parametrize(("damage", "text"), DAMAGES)
def test_damaged_files(table: ArchiveTable, tmp_path: Path, damage: Callable[[Path], object], text: str) -> None:
    """The calls that need the file fail; a file that is whole again is read."""
    damaged, whole = append_rows(table, count=10), append_rows(table, partition=1, count=10)
    path = local_path(damaged)
    content = path.read_bytes()
    damage(path)
    responses = Responses(tmp_path)
    for _ in range(2):
        response, _ = responses.fetch()
        assert response["kind"] == "damaged"
        assert text in response["error"]
        assert path.name in response["error"]
    assert responses.fetch(partition=1)[1]
    assert local_path(whole).exists()
    path.write_bytes(content)
    assert responses.fetch()[0]["next_offset"] == 20


class SlowReader(FileReader):
    """Does not open the files of partition 0 until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_open = threading.Event()

    def _open(self, io: Any, path: str, metadata: Any) -> pq.ParquetFile:
        if "partition=0" in path:
            assert self.may_open.wait(DEADLINE_S)
        return super()._open(io, path, metadata)


@pytest.fixture
def slow_reader() -> Iterator[SlowReader]:
    reader = SlowReader()
    yield reader
    reader.may_open.set()


def test_a_slow_file_delays_only_its_partition(table: ArchiveTable, tmp_path: Path, slow_reader: SlowReader) -> None:
    append_rows(table, count=10)
    append_rows(table, partition=1, count=10)
    responses = Responses(tmp_path, slow_reader)
    for number in range(60):
        responses.send(id=number, call="fetch", partition=0, offset=0, end=20, max_bytes=1 << 20)
    refused = [responses.next()[0] for _ in range(60 - 33)]
    assert {response["kind"] for response in refused} == {"unavailable"}
    assert responses.fetch(partition=1)[1]
    assert responses.call(call="bounds")[0]["partitions"].keys() == {"0", "1"}
    slow_reader.may_open.set()
    assert sorted(responses.next()[0]["id"] for _ in range(33)) == list(range(33))


@pytest.mark.parametrize("header", [{"call": "nothing"}, {"call": "fetch"}, {"call": "fetch", "partition": "x"}, {}])
def test_malformed_calls(table: ArchiveTable, tmp_path: Path, header: dict[str, object]) -> None:
    assert Responses(tmp_path).call(**header)[0]["kind"] == "refused"


def test_bounds_follow_the_table(table: ArchiveTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is read again when it is old."""
    append_rows(table, count=10)
    responses = Responses(tmp_path)
    assert responses.call(call="bounds")[0]["partitions"] == {"0": {"start": 0, "end": 10}}
    append_rows(table, first=10, count=10)
    monkeypatch.setattr("kbroker.archive.history.topic_history.MAX_AGE_S", 0.0)
    assert responses.call(call="bounds")[0]["partitions"] == {"0": {"start": 0, "end": 20}}
