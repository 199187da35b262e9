"""Expires snapshots, and deletes what nothing references any more.

A snapshot keeps the files of an earlier state for readers that began with it. It also makes every commit slower, by
milliseconds, because pyiceberg copies the list of snapshots several times for each commit.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)

from kbroker.archive.archive import ArchiveTable, ConflictError, as_archive_errors
from kbroker.archive.storage import open_storage
from kbroker.archive.storage.storage import walk

# How long the files of an earlier state are kept for its readers, unless the table has Iceberg's own property.
KEEP_MS = 3_600_000
_KEEP_PROPERTY = "history.expire.max-snapshot-age-ms"
# Of the snapshots after which no file was removed only the newest are kept: a later snapshot has all their files.
RECENT_SNAPSHOTS = 10
# The names of files that kbroker and pyiceberg write. Other files are not deleted as orphans.
_OWN_NAME = re.compile(
    r"[0-9a-f]{12}-[0-9a-f]{64}\.parquet|[0-9a-f-]{36}-m\d+\.avro|snap-\d+-\d+-[0-9a-f-]{36}\.avro"
    r"|\d{5,}-[0-9a-f-]{36}\.metadata\.json"
)


class SnapshotAge(NamedTuple):
    """What decides whether a snapshot is kept."""

    id: int
    replaced_ms: int  # when the next snapshot was committed
    is_last_with_files: bool  # the next snapshot removed data files


class StoredFile(NamedTuple):
    """A file in a table's directory, whether it is referenced or not."""

    path: str  # a URI, as the table's metadata has it
    size: int
    modified_ms: int


def keep_ms(table: ArchiveTable) -> int:
    return int(table.iceberg.metadata.properties.get(_KEEP_PROPERTY, KEEP_MS))


def expired_snapshots(table: ArchiveTable, now_ms: int, keep_ms: int) -> list[int]:
    """Return the ids of the snapshots that may expire."""
    metadata = table.iceberg.metadata
    ordered = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    ages = [
        SnapshotAge(snapshot.snapshot_id, following.timestamp_ms, not _only_adds(following))
        for snapshot, following in pairwise(ordered)
    ]
    return select_expired(ages, {ref.snapshot_id for ref in metadata.refs.values()}, now_ms, keep_ms)


def select_expired(ages: Iterable[SnapshotAge], referenced: Collection[int], now_ms: int, keep_ms: int) -> list[int]:
    """Return the ids of the snapshots that may expire, of those that have been replaced, oldest first (pure).

    `referenced` are the snapshots of branches and tags.
    """
    candidates = [age for age in ages if age.id not in referenced]
    return [
        age.id
        for position, age in enumerate(candidates)
        if keep_ms <= 0  # also if the clock of another machine is ahead
        or now_ms - age.replaced_ms >= keep_ms
        or (not age.is_last_with_files and position < len(candidates) - RECENT_SNAPSHOTS)
    ]


def _only_adds(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND


def expire_snapshots(table: ArchiveTable, ids: Collection[int], properties: dict[str, str] | None = None) -> int:
    """Remove snapshots, set properties, and delete the files that only these snapshots used; return their number.

    Raises ConflictError if another process committed meanwhile, and ArchiveError if the storage fails.
    """
    with as_archive_errors(table.location):
        expiring = [each for each in table.iceberg.metadata.snapshots if each.snapshot_id in ids]
        manifests = _manifests(table, expiring)
        _commit(table, ids, properties or {})
        kept = _manifests(table, table.iceberg.metadata.snapshots)
        unused = manifests.keys() - kept.keys()
        unused |= _data_files(table, (manifests[path] for path in unused)) - _live_files(table, kept)
        unused |= {each.manifest_list for each in expiring}
        _delete(table, unused)
    return len(unused)


def _commit(table: ArchiveTable, ids: Collection[int], properties: dict[str, str]) -> None:
    """Change the metadata with one update. pyiceberg's ExpireSnapshots copies all metadata for each snapshot."""
    iceberg = table.iceberg
    updates: list[TableUpdate] = []
    if ids:
        updates.append(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(ids)}))
    if properties:
        updates.append(SetPropertiesUpdate(updates=properties))
    if not updates:
        return
    current = iceberg.metadata.current_snapshot_id
    is_same_table = AssertTableUUID(uuid=iceberg.metadata.table_uuid)
    is_same_state = AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": current})
    try:
        iceberg.catalog.commit_table(iceberg, (is_same_table, is_same_state), tuple(updates))
    except CommitFailedException as error:
        raise ConflictError(f"{table.location}: another process has changed the table: {error}") from None
    table.refresh()


def _manifests(table: ArchiveTable, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    """Return the manifests of these snapshots by path."""
    io = table.iceberg.io
    return {each.manifest_path: each for snapshot in snapshots for each in snapshot.manifests(io)}


def _data_files(table: ArchiveTable, manifests: Iterable[ManifestFile]) -> set[str]:
    io = table.iceberg.io
    return {entry.data_file.file_path for each in manifests for entry in each.fetch_manifest_entry(io)}


def _live_files(table: ArchiveTable, manifests: Mapping[str, ManifestFile]) -> set[str]:
    """Return the data files of these manifests. Does not read those of the current snapshot again."""
    snapshot = table.iceberg.current_snapshot()
    current = {} if snapshot is None else _manifests(table, [snapshot])
    earlier = (manifests[path] for path in manifests.keys() - current.keys())
    return {file.path for file in table.files()} | _data_files(table, earlier)


def _delete(table: ArchiveTable, paths: Iterable[str]) -> None:
    for path in sorted(paths):
        try:
            table.iceberg.io.delete(path)
        except FileNotFoundError:
            continue  # deleted by another process, or damage: then nothing needs the file any more


def referenced_files(table: ArchiveTable) -> set[str]:
    """Return the paths of all files that the table's metadata and its snapshots name."""
    metadata = table.iceberg.metadata
    manifests = _manifests(table, metadata.snapshots)
    return {
        table.iceberg.metadata_location,
        *(entry.metadata_file for entry in metadata.metadata_log),
        *(snapshot.manifest_list for snapshot in metadata.snapshots),
        *manifests,
        *_live_files(table, manifests),
    }


def stored_files(table: ArchiveTable) -> Iterator[StoredFile]:
    """Yield the files in the table's directory. Raises ArchiveError."""
    base = table.location.rstrip("/")
    for entry in walk(open_storage(base, table.iceberg.io.properties)):
        yield StoredFile(f"{base}/{entry.name}", entry.size, entry.modified_ms)


def delete_orphans(table: ArchiveTable, before_ms: int) -> int:
    """Delete files that nothing references and that were written before a time; return their number.

    Only files with names that kbroker and pyiceberg give. `before_ms` must be before the beginning of any commit that
    is not finished.
    """
    stored = list(stored_files(table))
    table.refresh()  # afterwards, so that a file that was committed meanwhile is referenced
    with as_archive_errors(table.location):
        referenced = referenced_files(table)
        orphans = [
            file.path
            for file in stored
            if file.modified_ms < before_ms
            and file.path not in referenced
            and _OWN_NAME.fullmatch(file.path.rpartition("/")[2])
        ]
        _delete(table, orphans)
    return len(orphans)
