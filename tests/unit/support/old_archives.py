"""Archives of format 1, as the versions wrote them that had a manifest of their own."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.unit.support.archive_tables import make_rows

_ORDER = ["key", "value", "headers", "partition", "offset", "timestamp", "timestampType"]


class OldArchiveFixture:
    """Writes data files and the commits that add them."""

    def __init__(self, directory: Path, committed_only: bool = False) -> None:
        self.directory = directory
        self._previous = ""
        self._number = 0
        settings = {"format": "kbroker-archive", "format_version": 1, "id": "x", "committed_only": committed_only}
        self.commit("create", settings=settings)

    def commit(self, kind: str, **fields: Any) -> None:
        document = {"version": 1, "number": self._number, "kind": kind, "time_ms": 1000 + self._number, **fields}
        self._previous = self._write(f"{self._number:020d}.json", document)
        self._number += 1

    def write_state(self, **fields: Any) -> None:
        """Write the file of the state after the last commit."""
        number = self._number - 1
        document = {"version": 1, "number": number, "kind": "state", "time_ms": 1000 + number, **fields}
        self._write(f"{number:020d}.state.json", document)

    def _write(self, name: str, document: dict[str, Any]) -> str:
        text = json.dumps(document | {"previous": self._previous}, separators=(",", ":")).encode()[:-1]
        digest = hashlib.sha256(text).hexdigest()
        path = self.directory / "_manifest" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text + b',"sha256":"' + digest.encode() + b'"}\n')
        return digest

    def write_file(
        self, name: str, *parts: pa.RecordBatch, topic: str = "t", date: str = "1970-01-01"
    ) -> dict[str, Any]:
        """Write a data file; return what a commit says of it."""
        table = pa.Table.from_batches(parts).select(_ORDER)
        path = self.directory / f"topic={topic}/date={date}/{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, compression="zstd")
        return {
            "path": str(path.relative_to(self.directory)),
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "parts": [_part(part) for part in parts],
        }


def _part(rows: pa.RecordBatch) -> dict[str, Any]:
    offsets = rows["offset"].to_pylist()
    times = [time.timestamp() * 1000 for time in rows["timestamp"].to_pylist()]
    return {
        "partition": rows["partition"][0].as_py(),
        "first": min(offsets),
        "last": max(offsets),
        "rows": len(offsets),
        "bytes": rows.nbytes,
        "from_ms": int(min(times)),
        "to_ms": int(max(times)),
        "checksum": "00000000000000ff",
    }


def write_old_archive(directory: Path) -> OldArchiveFixture:
    """Write an archive with a compaction, gaps, groups, two topics, leftovers and what Spark needs."""
    old = OldArchiveFixture(directory, committed_only=True)
    small = [
        old.write_file(
            f"aaaaaaaaaaaa-0000{number}.parquet", make_rows(0, 10 * number + 5, 10), make_rows(1, 10 * number, 10)
        )
        for number in range(2)
    ]
    covered = [
        {"topic": "t", "partition": 0, "start": 5, "end": 25},
        {"topic": "t", "partition": 1, "start": 0, "end": 21},
    ]
    info = {"topic_id": "abc", "partitions": 2, "configs": {"retention.ms": "5"}}
    groups = {"g": {"t": {"0": 7, "1": 9}, "u": {"0": 1}}}
    gaps = [{"topic": "t", "partition": 0, "start": 0, "end": 5, "reason": "retention"}]
    old.commit("append", add=small, covered=covered, gaps=gaps, topics={"t": info})
    merged = old.write_file(
        "bbbbbbbbbbbb-00000.parquet",
        make_rows(0, 5, 20),
        pa.concat_batches([make_rows(1, 0, 10), make_rows(1, 10, 10)]),
    )
    old.commit("compact", add=[merged], remove=[file["path"] for file in small])
    spans = [
        {"topic": item["topic"], "partition": item["partition"], "spans": [[item["start"], item["end"]]]}
        for item in covered
    ]
    old.write_state(
        settings={"format": "kbroker-archive", "format_version": 1, "id": "x", "committed_only": True},
        files=[merged],
        covered=spans,
        gaps=gaps,
        queries={},
        topics={"t": info},
        groups={},
        groups_ms=0,
    )
    days = old.write_file(
        "cccccccccccc-00000.parquet", make_rows(0, 0, 3, timestamp_ms=86_400_000), topic="u", date="1970-01-02"
    )
    old.commit("append", add=[days], covered=[{"topic": "u", "partition": 0, "start": 0, "end": 3}])
    old.commit("observe", groups=groups, topics={"u": {"topic_id": "def", "partitions": 1, "configs": {}}})
    for name in ("_spark_metadata/0", "_checkpoint/offsets/0", "_staging/aaaaaaaaaaaa/owner.json"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(b"v1")
    return old
