"""Merges small data files into large ones while other processes read the archive and write to it.

The merged rows are written to new files, compared with what the table's metadata says of the old files, and exchanged
for them in one commit. Readers of earlier snapshots find the old files until maintenance expires those snapshots. If
the process is killed, the table has either the old or the new files; the others are orphans.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from kbroker.archive.archive import ArchiveTable, ConflictError
from kbroker.archive.data_files import DataFile
from kbroker.archive.errors import ArchiveError
from kbroker.archive.maintenance.compaction_plan import MergeBin, split_rounds
from kbroker.archive.maintenance.rewriting import DamagedFileError, find_damage, merge_rows, write_rows_as_file
from kbroker.archive.topic_state import TopicState

_THREADS = 2
# How often other writers may commit first. Each time the state is read again, which takes less time than a commit.
_MAX_CONFLICTS = 20


@dataclass
class MergeResult:
    """The result of a compaction. `kbroker archive compact --json` prints these fields."""

    merged: int = 0  # files that were replaced
    written: int = 0  # files that replaced them
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    commits: int = 0
    deleted: int = 0  # files that only expired snapshots used, and orphans
    damaged: dict[str, str] = field(default_factory=dict)  # problem by path; these files were not merged


def require_own(table: ArchiveTable) -> None:
    """Raise ArchiveError if another program has changed the table since kbroker's last commit."""
    change = table.foreign_change()
    if change is not None:
        raise ArchiveError(
            f"{table.location}: another program has changed the table: {change}; see: kbroker archive verify"
        )


def compact_topic(
    table: ArchiveTable,
    bins: Iterable[MergeBin],
    result: MergeResult,
    advance: Callable[[int], None] = lambda size: None,
) -> None:
    """Merge these files of the table, and add what was done to `result`.

    `advance` is called with the bytes of the files that were replaced. A damaged file is not merged but reported in
    `result`; bins that another compaction has changed are left out. Raises ArchiveError if the merged files would not
    have the same rows, or if the storage fails. Earlier commits remain.
    """
    require_own(table)
    for round_bins in split_rounds(bins):
        old: list[DataFile] = []
        new: list[DataFile] = []
        for each in round_bins:
            files = _exclude_damaged(table, each.files, result)
            if len(files) < 2:
                continue
            try:
                merged = write_rows_as_file(table, merge_rows(table, files), each.partition, each.period)
            except DamagedFileError as error:
                result.damaged[error.path] = error.problem
                continue
            assert merged is not None  # a data file has at least one row
            _require_same_rows(files, merged)
            old += files
            new.append(merged)
        if old and replace_files(table, "compact", old, new):
            result.commits += 1
            result.merged += len(old)
            result.written += len(new)
            result.rows += sum(file.rows for file in new)
            result.bytes_before += sum(file.size for file in old)
            result.bytes_after += sum(file.size for file in new)
        advance(sum(each.size for each in round_bins))


def _exclude_damaged(table: ArchiveTable, files: Sequence[DataFile], result: MergeResult) -> list[DataFile]:
    with ThreadPoolExecutor(_THREADS) as pool:
        problems = list(pool.map(lambda file: find_damage(table.iceberg.io, file), files))
    result.damaged |= {file.path: problem for file, problem in zip(files, problems, strict=True) if problem}
    return [file for file, problem in zip(files, problems, strict=True) if not problem]


def _require_same_rows(old: Sequence[DataFile], new: DataFile) -> None:
    rows = sum(file.rows for file in old)
    bounds = min(file.first for file in old), max(file.last for file in old)
    times = min(file.from_ms for file in old), max(file.to_ms for file in old)
    if (rows, bounds, times) != (new.rows, (new.first, new.last), (new.from_ms, new.to_ms)):
        raise ArchiveError(
            f"{new.path}: the merged file has {new.rows} rows with offsets {new.first} to {new.last}, but its sources "
            f"have {rows} with {bounds[0]} to {bounds[1]}; nothing was replaced"
        )


def replace_files(
    table: ArchiveTable,
    kind: str,
    old: Sequence[DataFile],
    new: Sequence[DataFile],
    change: Callable[[TopicState], TopicState] = lambda state: state,
) -> bool:
    """Exchange files in one commit, after those of other writers; return False if an old one is no longer there.

    `change` returns the state after the commit from the one before. Raises ArchiveError.
    """
    for _ in range(_MAX_CONFLICTS):
        present = {file.path for file in table.files()}
        if not all(file.path in present for file in old):
            return False
        try:
            table.commit(kind, change(table.state), add=new, remove=old)
            return True
        except ConflictError:
            table.refresh()
            require_own(table)
    raise ArchiveError(
        f"{table.location}: other writers committed first {_MAX_CONFLICTS} times in a row; earlier commits remain; "
        f"try again"
    )
