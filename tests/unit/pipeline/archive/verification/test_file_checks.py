"""Checks of files, and of Parquet contents."""

import io
import os
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.manifest import ArchiveState, DataFile, PartitionStats
from kbroker.pipeline.archive.verification.file_checks import (
    FileCheckResult,
    check_files,
    check_spark_metadata,
    split_uncommitted,
)
from kbroker.pipeline.archive.verification.findings import format_finding
from kbroker.pipeline.storage.local import LocalStorage
from tests.unit.support.archives import append_file, create_archive, make_file, new_data_path


def test_the_metadata_of_a_moved_archive_is_reported(tmp_path: Path) -> None:
    archive = create_archive(LocalStorage(str(tmp_path / "old")))
    append_file(archive)
    assert check_spark_metadata(archive.storage, archive.state()) == []
    (tmp_path / "old").rename(tmp_path / "new")
    moved = Archive.open(LocalStorage(str(tmp_path / "new")))
    (finding,) = check_spark_metadata(moved.storage, moved.state())
    assert "because the archive was moved or copied; `kbroker archive compact` corrects it" in format_finding(finding)
    moved.update_spark_metadata()
    assert check_spark_metadata(moved.storage, moved.state()) == []


@pytest.mark.timeout(120)
def test_metadata_that_spark_cannot_read_is_reported(tmp_path: Path) -> None:
    archive = create_archive(LocalStorage(str(tmp_path)))
    append_file(archive)
    latest = max((tmp_path / "_spark_metadata").iterdir(), key=lambda path: int(path.name.partition(".")[0]))

    def check() -> str:
        (finding,) = check_spark_metadata(archive.storage, archive.state())
        return finding.text

    latest.write_bytes(b"v1\n")
    os.truncate(latest, 1 << 40)
    assert check() == f"_spark_metadata/{latest.name}: has a line of more than 65536 bytes"
    latest.unlink()
    os.mkfifo(latest)
    assert check() == f"{latest}: is a FIFO"


def test_uncommitted_files_are_foreign_or_leftovers() -> None:
    committed, committed_copy = new_data_path("a" * 12, 0), new_data_path("a" * 12, 7)
    other = "topic=t/date=2024-02-29/part-0.parquet"
    unknown_writer, writing, replaced = (new_data_path(writer * 12) for writer in "cbd")
    listed = [committed, committed_copy, other, unknown_writer, writing, replaced]
    state = ArchiveState(files={committed: make_file(committed)})
    foreign, notes = split_uncommitted(listed, {"b" * 12}, state, {replaced})
    assert foreign == [committed_copy, other, unknown_writer]
    assert [(note.file, note.is_difference) for note in notes] == [(replaced, False)]


pyarrow: Any = pytest.importorskip("pyarrow", reason="not run: pyarrow is not installed (extra `spark`)")
parquet: Any = pytest.importorskip("pyarrow.parquet")

PATH = "topic=t/date=2026-01-01/a.parquet"
HEADER = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
COLUMNS = {
    "key": pyarrow.binary(),
    "value": pyarrow.binary(),
    "headers": pyarrow.list_(HEADER),
    "partition": pyarrow.int32(),
    "offset": pyarrow.int64(),
    "timestamp": pyarrow.timestamp("us", tz="UTC"),
    "timestampType": pyarrow.int32(),
}


def parquet_file(path: str, size: int, sha256: str = "0" * 64) -> DataFile:
    return DataFile(path, "t", "2026-01-01", size, sha256, (PartitionStats(0, 0, 9, 10, 0, 0, 0, 0),))


def check(storage: LocalStorage, *files: DataFile) -> FileCheckResult:
    return check_files(storage, ArchiveState(files={file.path: file for file in files}), files, lambda size: None)


@pytest.mark.parametrize(
    ("column", "arrow_type", "problem"),
    [
        ("", None, ""),
        ("partition", pyarrow.int64(), "column partition has type int64 instead of int32"),
        (
            "timestamp",
            pyarrow.timestamp("ns"),
            "column timestamp has type timestamp[ns] instead of timestamp[us, tz=UTC]",
        ),
        ("value", None, "column value is missing"),
        ("more", pyarrow.string(), "column more is unexpected"),
    ],
)
def test_a_file_with_other_columns_is_found(tmp_path: Path, column: str, arrow_type: Any, problem: str) -> None:
    columns = dict(COLUMNS)
    if column and arrow_type is None:
        del columns[column]
    elif column:
        columns[column] = arrow_type
    storage = LocalStorage(str(tmp_path))
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.schema(columns.items()).empty_table(), buffer)
    storage.create(PATH, buffer.getvalue())
    file = parquet_file(PATH, storage.size(PATH), storage.sha256(PATH))
    result = check(storage, file)
    assert result.intact == [file]
    assert [(finding.kind, finding.file, finding.text) for finding in result.findings] == (
        [("columns", PATH, problem)] if problem else []
    )


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Append the largest number of bytes that Python allocated within the context."""
    peak: list[int] = []
    tracemalloc.start()
    try:
        yield peak
    finally:
        peak.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


@pytest.mark.timeout(120)
def test_other_kinds_of_files_are_found_and_huge_files_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 1 << 40)
    with open(tmp_path / "huge_footer", "wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write((1 << 31).to_bytes(4, "little") + b"PAR1")
    names = ("fifo", "directory", "device", "huge", "huge_footer")
    with peak_memory() as peak:
        result = check(LocalStorage(str(tmp_path)), *(parquet_file(name, 100) for name in names))
    assert peak[0] < 32 << 20
    assert len(result.unreadable) == len(names)
    findings: dict[str, list[tuple[str, str]]] = {}
    for finding in result.findings:
        findings.setdefault(finding.file, []).append((finding.kind, finding.text))
    assert findings["fifo"] == [("unreadable file", "is a FIFO")]
    assert findings["directory"] == [("unreadable file", "is a directory")]
    assert findings["device"] == [("unreadable file", "is a device")]
    assert findings["huge"][0] == ("changed file", f"has {1 << 40} bytes instead of 100")
    assert findings["huge_footer"][1] == ("unreadable file", f"its footer claims to have {1 << 31} bytes")


def test_a_changed_file_is_read_a_piece_at_a_time(tmp_path: Path) -> None:
    """One row group with incompressible values, in which one byte is changed."""
    noise = random.Random(1).randbytes(32 << 20)
    values = {"value": [noise[at : at + 1024] for at in range(0, len(noise), 1024)]}
    rows = len(values["value"])
    columns = [
        pyarrow.array(
            values.get(name, [0] * rows if pyarrow.types.is_integer(arrow_type) else [None] * rows), arrow_type
        )
        for name, arrow_type in COLUMNS.items()
    ]
    parquet.write_table(pyarrow.table(columns, list(COLUMNS)), tmp_path / "a", use_dictionary=False)
    size = os.path.getsize(tmp_path / "a")
    with open(tmp_path / "a", "r+b") as file:
        file.seek(size // 2)
        (byte,) = file.read(1)
        file.seek(size // 2)
        file.write(bytes([byte ^ 1]))
    changed = parquet_file("a", size)
    with peak_memory() as peak:
        result = check(LocalStorage(str(tmp_path)), changed)
    assert [(finding.kind, finding.text) for finding in result.findings] == [
        ("changed file", "its bytes are not those that were committed")
    ]
    assert result.changed == [changed]
    assert peak[0] < 8 << 20
