"""Converts an archive of format 1 into Iceberg tables in the same place.

The rows of some files are written and committed together; the table's commit counter says which of them a conversion
that was killed has done. The old files are deleted when everything has been committed and compared. Until then other
commands refuse the archive, because its `_manifest` exists.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kbroker.archive.archive import Archive, ArchiveTable
from kbroker.archive.data_files import DataFile, FileWriter
from kbroker.archive.errors import ArchiveError
from kbroker.archive.maintenance.old_archive import MANIFEST, OldFile, OldTopic, lost_ranges, read_old_archive
from kbroker.archive.maintenance.rewriting import find_damage_of
from kbroker.archive.rows import SCHEMA
from kbroker.archive.storage.storage import Storage, walk

_ROUND_BYTES = 1 << 30
_BATCH_ROWS = 8192
_CONVERTED = f"{MANIFEST}/converted"
_WRITER_FILE = re.compile(r"[0-9a-f]{12}-\d{5,}\.parquet")
_COLUMNS = [column.name for column in SCHEMA.fields]
# Rows, the lowest and the highest offset, by partition.
_Contents = dict[int, tuple[int, int, int]]


@dataclass
class ConversionResult:
    """What a conversion did. `kbroker archive convert --json` prints these fields."""

    topics: int = 0
    rows: int = 0
    files_before: int = 0
    files_after: int = 0
    damaged: dict[str, str] = field(default_factory=dict)  # problem by path: kept, their offsets are gaps


def convert(
    storage: Storage,
    create: Callable[[bool], Archive],
    advance: Callable[[int], None] = lambda size: None,
) -> ConversionResult:
    """Convert the archive of a storage, or continue a conversion that was killed.

    `create` opens or creates the new archive in the same place, with this value of `committed_only`. `advance` is
    called with the bytes of the files that were converted. The offsets of damaged files become gaps with the reason
    "lost". Raises ArchiveError, above all if the manifest is damaged; the old archive is then as it was.
    """
    result = ConversionResult()
    if not storage.list_directory(MANIFEST):
        raise ArchiveError(f"{storage.root}: is not an archive of the old format")
    if not storage.exists(_CONVERTED):
        old = read_old_archive(storage)
        archive = create(bool(old.settings.get("committed_only", False)))
        for name, topic in sorted(old.topics.items()):
            table = archive.create_table(name)
            _convert_topic(storage, table, topic, old.groups_ms, result, advance)
            _compare(table, topic)
            result.topics += 1
            result.files_before += len(topic.files)
            result.files_after += len(table.files())
            result.rows += sum(file.rows for file in table.files())
        _delete_data(storage, old.files.values(), result)
        storage.create(_CONVERTED, b"")
    for entry in storage.list_directory(MANIFEST):
        if entry.name != "converted":
            storage.delete(f"{MANIFEST}/{entry.name}")
    storage.delete(MANIFEST, recursive=True)
    return result


def _convert_topic(
    storage: Storage,
    table: ArchiveTable,
    topic: OldTopic,
    groups_ms: int,
    result: ConversionResult,
    advance: Callable[[int], None],
) -> None:
    rounds = list(_rounds(topic.files))
    for number, files in enumerate(rounds):
        if number >= table.state.commit:
            damaged, added = _rewrite(storage, table, files)
            result.damaged |= damaged
            lost = lost_ranges(file for file in files if file.path in damaged)
            state = replace(table.state, gaps=(*table.state.gaps, *lost))
            table.commit("convert", state, add=added)
        elif any(gap.reason == "lost" for gap in table.state.gaps):
            # Found by a conversion that was killed.
            problems = {file.path: _find_damage(storage, table, file) for file in files}
            result.damaged |= {path: problem for path, problem in problems.items() if problem}
        advance(sum(file.size for file in files))
    if table.state.commit == len(rounds):
        state = replace(
            table.state,
            topic=topic.info,
            covered=topic.covered,
            gaps=(*table.state.gaps, *topic.gaps),
            groups=topic.groups,
            groups_ms=groups_ms,
        )
        table.commit("convert", state)


def _rounds(files: Iterable[OldFile]) -> Iterator[list[OldFile]]:
    """Divide files among commits, always in the same way."""
    result: list[OldFile] = []
    size = 0
    for file in sorted(files, key=lambda file: file.path):
        if result and size + file.size > _ROUND_BYTES:
            yield result
            result, size = [], 0
        result.append(file)
        size += file.size
    if result:
        yield result


def _rewrite(
    storage: Storage, table: ArchiveTable, files: Sequence[OldFile]
) -> tuple[dict[str, str], Sequence[DataFile]]:
    """Write the rows of old files as new ones; return the problems of the damaged ones, and the new files."""
    damaged: dict[str, str] = {}
    writer = FileWriter(table.write_target())
    for file in files:
        problem = _find_damage(storage, table, file)
        if problem:
            damaged[file.path] = problem
            continue
        for batch in _read(storage, table, file):
            writer.add(batch)
    added = writer.close()
    expected = _merge(part for file in files if file.path not in damaged for part in file.partitions)
    _require_equal(storage.uri(files[0].path), expected, _contents(added))
    return damaged, added


def _find_damage(storage: Storage, table: ArchiveTable, file: OldFile) -> str:
    return find_damage_of(table.iceberg.io, storage.uri(file.path), file.size, file.sha256)


def _read(storage: Storage, table: ArchiveTable, file: OldFile) -> Iterator[pa.RecordBatch]:
    with table.iceberg.io.new_input(storage.uri(file.path)).open() as source:
        for batch in pq.ParquetFile(source).iter_batches(_BATCH_ROWS, columns=_COLUMNS):
            index = batch.schema.get_field_index("timestamp")
            utc = pc.cast(batch.column(index), pa.timestamp("us", "UTC"))
            yield batch.set_column(index, "timestamp", utc)


def _merge(parts: Iterable[Sequence[int]]) -> _Contents:
    """Return the contents of parts: partition, lowest and highest offset, rows."""
    result: _Contents = {}
    for partition, first, last, rows in parts:
        before = result.get(partition, (0, first, last))
        result[partition] = before[0] + rows, min(before[1], first), max(before[2], last)
    return result


def _contents(files: Iterable[DataFile]) -> _Contents:
    return _merge((file.partition, file.first, file.last, file.rows) for file in files)


def _require_equal(location: str, expected: _Contents, found: _Contents) -> None:
    if expected != found:
        partition = min(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
        raise ArchiveError(
            f"{location}: partition {partition} would have (rows, first, last offset) {found.get(partition)} instead "
            f"of {expected.get(partition)}; the old archive was not deleted"
        )


def _compare(table: ArchiveTable, topic: OldTopic) -> None:
    """Raise ArchiveError if the table does not have the rows of the old files, except of partitions with losses."""
    expected = _merge(part for file in topic.files for part in file.partitions)
    found = _contents(table.files())
    for partition in {gap.partition for gap in table.state.gaps if gap.reason == "lost"}:
        expected.pop(partition, None)
        found.pop(partition, None)
    _require_equal(table.location, expected, found)
    if table.state.covered != topic.covered:
        raise ArchiveError(f"{table.location}: does not cover the offsets of the old archive, which was not deleted")


def _delete_data(storage: Storage, files: Iterable[OldFile], result: ConversionResult) -> None:
    """Delete what format 1 had beside its manifest, except damaged files and those of other programs."""
    for file in files:
        if file.path not in result.damaged:
            storage.delete(file.path)
    for name in ("_spark_metadata", "_staging", "_checkpoint", "_replays"):
        storage.delete(name, recursive=True)
    for entry in storage.list_directory(""):
        if entry.is_directory and entry.name.startswith("topic="):
            # Those that a writer that was killed has not committed.
            for left in list(walk(storage, entry.name)):
                if _WRITER_FILE.fullmatch(left.name.rpartition("/")[2]) and left.name not in result.damaged:
                    storage.delete(left.name)
            if not any(walk(storage, entry.name)):
                storage.delete(entry.name, recursive=True)
