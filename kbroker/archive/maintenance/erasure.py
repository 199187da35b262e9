"""Erases the records of keys: their files are written anew without them, and the old ones are deleted at once."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.data_files import DataFile
from kbroker.archive.errors import ArchiveError
from kbroker.archive.maintenance.compaction import replace_files, require_own
from kbroker.archive.maintenance.compaction_plan import ROUND_BYTES
from kbroker.archive.maintenance.gaps import ERASED, with_gaps
from kbroker.archive.maintenance.rewriting import DamagedFileError, find_damage, read_rows, write_rows_as_file
from kbroker.archive.offset_ranges import OffsetRange, ranges_of
from kbroker.archive.topic_state import TopicState


@dataclass
class ErasureResult:
    """What an erasure did, in all topics. `kbroker archive erase --json` prints these fields."""

    records: int = 0  # that were erased
    files: int = 0  # that had some of them
    searched: int = 0  # files
    deleted: int = 0  # files of any kind that nothing references any more
    damaged: dict[str, str] = field(default_factory=dict)  # problem by path; these files may still have the records
    # Branches and tags of a table that keep files with the records; other programs have created them.
    kept_by: list[str] = field(default_factory=list)


@dataclass
class _Rewrites:
    """Files of one commit, and the offsets that it erases."""

    old: list[DataFile] = field(default_factory=list)
    new: list[DataFile] = field(default_factory=list)
    erased: dict[int, tuple[OffsetRange, ...]] = field(default_factory=dict)
    records: int = 0

    def change(self, state: TopicState) -> TopicState:
        return replace(state, gaps=tuple(with_gaps(state, ERASED, self.erased)))


def erase_keys(
    table: ArchiveTable,
    keys: Collection[bytes],
    result: ErasureResult,
    advance: Callable[[int], None] = lambda size: None,
) -> None:
    """Remove all records with these keys from the table, and add what was done to `result`.

    Files that are added meanwhile are searched too. Expire the table's snapshots afterwards: they still have the
    records. `advance` is called with the bytes of the files that were searched. Raises ArchiveError; earlier commits
    remain.
    """
    require_own(table)
    searched: set[str] = set()
    while files := [file for file in table.files() if file.path not in searched]:
        rewrites = _Rewrites()
        for file in files:
            if sum(each.size for each in rewrites.old) > ROUND_BYTES:
                break
            searched.add(file.path)
            try:
                _erase_from_file(table, file, keys, rewrites)
            except DamagedFileError as error:
                result.damaged[error.path] = error.problem
            result.searched += 1
            advance(file.size)
        if rewrites.old:
            if replace_files(table, "erase", rewrites.old, rewrites.new, rewrites.change):
                result.records += rewrites.records
                result.files += len(rewrites.old)
            else:
                searched -= {file.path for file in rewrites.old}  # search those again that are still there
        table.refresh()
    result.kept_by += [name for name in table.iceberg.metadata.refs if name != "main"]


def _erase_from_file(table: ArchiveTable, file: DataFile, keys: Collection[bytes], rewrites: _Rewrites) -> None:
    """Write the file without the keys, if it has any, and add it to `rewrites`. Raises DamagedFileError."""
    problem = find_damage(table.iceberg.io, file)
    if problem:
        raise DamagedFileError(file, problem)
    wanted = pa.array(sorted(keys), pa.large_binary())
    offsets = [
        offset
        for piece in read_rows(table, file, ["offset", "key"])
        for offset in piece["offset"].filter(_is_in(piece, wanted)).to_pylist()
    ]
    if not offsets:
        return
    kept = (piece.filter(pc.invert(_is_in(piece, wanted))) for piece in read_rows(table, file))
    new = write_rows_as_file(table, kept, file.partition, file.period)
    if (0 if new is None else new.rows) != file.rows - len(offsets):
        raise ArchiveError(f"{file.path}: the new file would not have the remaining rows; nothing was replaced")
    rewrites.old.append(file)
    if new is not None:
        rewrites.new.append(new)
    rewrites.records += len(offsets)
    before = rewrites.erased.get(file.partition, ())
    rewrites.erased[file.partition] = (*before, *ranges_of(offsets))


def _is_in(piece: pa.Table, keys: pa.Array) -> pa.ChunkedArray:
    return pc.is_in(piece["key"].cast(pa.large_binary()), value_set=keys)
