"""What `kbroker archive run` does in quiet moments, so that an archive stays as fast as it was on its first day."""

import time
from contextlib import suppress
from dataclasses import dataclass

from kbroker.archive.archive import ArchiveTable, ConflictError
from kbroker.archive.data_files import PERIOD_US
from kbroker.archive.errors import ArchiveError
from kbroker.archive.maintenance.compaction import MergeResult, compact_topic, require_own
from kbroker.archive.maintenance.compaction_plan import TARGET_BYTES, MergeBin, plan_due_merges, plan_merges
from kbroker.archive.maintenance.snapshots import delete_orphans, expire_snapshots, expired_snapshots, keep_ms

# Once a day all neighbouring small files of past periods are merged, and orphans older than a day are deleted.
DAY_MS = 86_400_000
SWEPT = "kbroker.swept-ms"
# What one call merges, so that it ends within seconds.
MAX_BYTES, MAX_FILES = 256 << 20, 2000
# Below these numbers an expiry or a merge of manifests costs more than it saves.
EXPIRED_SNAPSHOTS, MANIFESTS, SMALL_MANIFEST_BYTES = 10, 100, 512 << 10
_MAX_CONFLICTS = 20


@dataclass(frozen=True)
class MaintenanceSummary:
    """What one call of `maintain` did."""

    merged: int = 0  # data files that were replaced
    written: int = 0  # data files that replaced them
    expired: int = 0  # snapshots
    deleted: int = 0  # files of any kind
    damaged: tuple[str, ...] = ()  # data files that cannot be merged
    seconds: float = 0.0


def maintain(table: ArchiveTable, now_ms: int, target_bytes: int = TARGET_BYTES) -> MaintenanceSummary:
    """Do what is due for a table that is up to date, within seconds; return at once if nothing is.

    Raises ArchiveError if the storage fails or another program has changed the table. What conflicts with another
    process is left for the next call.
    """
    begin = time.monotonic()
    require_own(table)
    result = MergeResult()
    expired = deleted = 0
    with suppress(ConflictError):
        is_daily = now_ms - int(table.iceberg.metadata.properties.get(SWEPT, 0)) >= DAY_MS
        bins, is_all = _due_merges(table, now_ms, is_daily, target_bytes)
        compact_topic(table, bins, result)
        _merge_manifests(table)
        ids = expired_snapshots(table, now_ms, keep_ms(table))
        is_swept = is_daily and is_all
        if len(ids) >= EXPIRED_SNAPSHOTS or is_swept:
            deleted = expire_snapshots(table, ids, {SWEPT: str(now_ms)} if is_swept else {})
            expired = len(ids)
        if is_swept:
            deleted += delete_orphans(table, now_ms - DAY_MS)
    seconds = time.monotonic() - begin
    return MaintenanceSummary(result.merged, result.written, expired, deleted, tuple(result.damaged), seconds)


def _due_merges(table: ArchiveTable, now_ms: int, is_daily: bool, target_bytes: int) -> tuple[list[MergeBin], bool]:
    """Return what this call merges, and whether that is all that is due."""
    files = table.files()
    bins = plan_due_merges(files, target_bytes)
    if is_daily:
        current = now_ms * 1000 // PERIOD_US[table.write_target().period]
        bins = plan_merges([file for file in files if file.period < current], target_bytes)
        bins += plan_due_merges([file for file in files if file.period >= current], target_bytes)
    selected: list[MergeBin] = []
    size = count = 0
    for each in bins:
        size += each.size
        count += len(each.files)
        if selected and (size > MAX_BYTES or count > MAX_FILES):
            return selected, False
        selected.append(each)
    return selected, True


def _merge_manifests(table: ArchiveTable) -> None:
    """Merge small manifests if a commit must list many."""
    snapshot = table.iceberg.current_snapshot()
    if snapshot is None:
        return
    manifests = snapshot.manifests(table.iceberg.io)
    if sum(each.manifest_length < SMALL_MANIFEST_BYTES for each in manifests) >= MANIFESTS:
        table.commit("compact", table.state, merge_manifests=True)


def clean_up(table: ArchiveTable, now_ms: int, keep_replaced_ms: int | None = None) -> int:
    """Delete what no reader needs any more, also if it is little; return the number of files.

    These are the files of snapshots that were replaced more than `keep_replaced_ms` ago (by default what the table
    says, an hour), and orphans older than a day. Raises ArchiveError.
    """
    for _ in range(_MAX_CONFLICTS):
        try:
            _merge_manifests(table)
            keep = keep_ms(table) if keep_replaced_ms is None else keep_replaced_ms
            deleted = expire_snapshots(table, expired_snapshots(table, now_ms, keep))
            return deleted + delete_orphans(table, now_ms - DAY_MS)
        except ConflictError:
            table.refresh()
    raise ArchiveError(f"{table.location}: other writers committed first {_MAX_CONFLICTS} times in a row; try again")
