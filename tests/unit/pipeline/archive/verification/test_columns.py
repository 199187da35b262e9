"""Committed files as they are found: columns and types that are not an archive's, and what is no file of ours."""

import io
import os
import random
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile, PartitionStats
from kbroker.pipeline.archive.verification import files as verification_files
from kbroker.pipeline.storage.local import LocalStorage

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


@pytest.mark.parametrize(
    ("column", "kind", "told"),
    [
        ("", None, ""),
        ("partition", pyarrow.int64(), "column partition is int64 instead of int32"),
        ("timestamp", pyarrow.timestamp("ns"), "column timestamp is timestamp[ns] instead of timestamp[us, tz=UTC]"),
        ("value", None, "it has no column value"),
        ("more", pyarrow.string(), "it has a column more, which an archive's files do not have"),
    ],
)
def test_a_file_of_other_columns_is_named(tmp_path: Path, column: str, kind: Any, told: str) -> None:
    columns = dict(COLUMNS)
    if column and kind is None:
        del columns[column]
    elif column:
        columns[column] = kind
    storage = LocalStorage(str(tmp_path))
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.schema(columns.items()).empty_table(), buffer)
    storage.create(PATH, buffer.getvalue())
    part = PartitionStats(0, 0, 0, 1, 0, 0, 0, 0)
    one = DataFile(PATH, "t", "2026-01-01", storage.size(PATH), storage.sha256(PATH), (part,))
    seen = verification_files.look_at(storage, ArchiveState(files={PATH: one}), [one], lambda size: None)
    assert seen.intact == [one]
    assert [(finding.kind, finding.file, finding.what) for finding in seen.findings] == (
        [("columns", PATH, told)] if told else []
    )


@contextmanager
def memory() -> Iterator[list[int]]:
    """How many bytes Python held at most, when it is left."""
    peak: list[int] = []
    tracemalloc.start()
    try:
        yield peak
    finally:
        peak.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


def committed(path: str, size: int) -> DataFile:
    return DataFile(path, "t", "2026-01-01", size, "0" * 64, (PartitionStats(0, 0, 9, 10, 0, 0, 0, 0),))


def found(storage: LocalStorage, *files: DataFile) -> dict[str, list[tuple[str, str]]]:
    """Kind and text of the findings, by file."""
    seen = verification_files.look_at(
        storage, ArchiveState(files={one.path: one for one in files}), files, lambda size: None
    )
    told: dict[str, list[tuple[str, str]]] = {}
    for finding in seen.findings:
        told.setdefault(finding.file, []).append((finding.kind, finding.what))
    assert len(seen.broken) == len(files)
    return told


@pytest.mark.timeout(30)
def test_what_is_no_file_is_named_and_a_huge_one_is_not_read(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "huge").touch()
    os.truncate(tmp_path / "huge", 1 << 40)
    # What a footer says of its own length is not believed.
    with open(tmp_path / "lying", "wb") as file:
        file.truncate(1 << 40)
        file.seek(0, os.SEEK_END)
        file.write((1 << 31).to_bytes(4, "little") + b"PAR1")
    with memory() as peak:
        told = found(storage, *(committed(name, 100) for name in ("fifo", "directory", "device", "huge", "lying")))
    assert peak[0] < 32 << 20
    assert told["fifo"] == [("unreadable file", "is a FIFO")]
    assert told["directory"] == [("unreadable file", "is a directory")]
    assert told["device"] == [("unreadable file", "is a device")]
    assert told["huge"][0] == ("changed file", f"has {1 << 40} bytes instead of 100")
    assert told["lying"][1] == ("unreadable file", f"its footer is said to have {1 << 31} bytes")


def test_a_changed_file_is_read_a_piece_at_a_time(tmp_path: Path) -> None:
    """One row group, whose values are not to be compressed, with a byte changed in its middle."""
    storage = LocalStorage(str(tmp_path))
    noise = random.Random(1).randbytes(32 << 20)
    values = {"value": [noise[at : at + 1024] for at in range(0, len(noise), 1024)]}
    rows = len(values["value"])
    columns = [
        pyarrow.array(values.get(name, [0] * rows if pyarrow.types.is_integer(kind) else [None] * rows), kind)
        for name, kind in COLUMNS.items()
    ]
    parquet.write_table(pyarrow.table(columns, list(COLUMNS)), tmp_path / "a", use_dictionary=False)
    size = os.path.getsize(tmp_path / "a")
    with open(tmp_path / "a", "r+b") as file:
        file.seek(size // 2)
        (byte,) = file.read(1)
        file.seek(size // 2)
        file.write(bytes([byte ^ 1]))
    one = committed("a", size)
    with memory() as peak:
        seen = verification_files.look_at(storage, ArchiveState(files={"a": one}), [one], lambda size: None)
    assert [(finding.kind, finding.what) for finding in seen.findings] == [
        ("changed file", "its bytes are not those that were committed")
    ]
    assert seen.changed == [one]
    assert peak[0] < 8 << 20
