"""Committed files whose columns or types are not those of an archive: schema drift."""

import io
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline.archive.manifest.model import File, Part, State
from kbroker.pipeline.archive.verification import files as verification_files
from kbroker.pipeline.storage.local import LocalStorage

pyarrow: Any = pytest.importorskip("pyarrow", reason="not run: pyarrow is not installed (extra `spark`)")
parquet: Any = pytest.importorskip("pyarrow.parquet")

PATH = "topic=t/date=2026-01-01/a.parquet"


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
    header = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
    columns = {
        "key": pyarrow.binary(),
        "value": pyarrow.binary(),
        "headers": pyarrow.list_(header),
        "partition": pyarrow.int32(),
        "offset": pyarrow.int64(),
        "timestamp": pyarrow.timestamp("us", tz="UTC"),
        "timestampType": pyarrow.int32(),
    }
    if column and kind is None:
        del columns[column]
    elif column:
        columns[column] = kind
    storage = LocalStorage(str(tmp_path))
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.schema(columns.items()).empty_table(), buffer)
    storage.create(PATH, buffer.getvalue())
    part = Part(0, 0, 0, 1, 0, 0, 0, 0)
    one = File(PATH, "t", "2026-01-01", storage.size(PATH), storage.sha256(PATH), (part,))
    seen = verification_files.look_at(storage, State(files={PATH: one}), [one], lambda size: None)
    assert seen.intact == [one]
    assert [(finding.kind, finding.file, finding.what) for finding in seen.findings] == (
        [("columns", PATH, told)] if told else []
    )
