"""Files in an archive's directory that are not committed: leftovers of dead writers, and foreign files.

A data file is a leftover if its writer is dead or if a commit has removed it. Any other uncommitted data file, unless
its writer is alive, is foreign: no commit names it, but readers that do not use the manifest read it.
"""

import time
from collections.abc import Iterable

from kbroker.pipeline.archive import staging
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.layout import (
    MANIFEST,
    SPARK_METADATA,
    STAGING,
    is_writer_id,
    owner_path,
    parse_manifest_name,
    staging_directory,
    writer_id_of,
)
from kbroker.pipeline.archive.manifest_files import list_manifest, read_commit
from kbroker.pipeline.archive.staging import StagingStatus
from kbroker.pipeline.storage.storage import DirectoryEntry, FileMissingError, Storage, walk

# Manifest files older than this are not needed by an Archive object that still has an old state.
HISTORY_RETENTION_MS = 24 * 3600 * 1000
# A temporary file is renamed immediately; an older one belongs to a writer that died.
_TEMPORARY_MS = 3600 * 1000


def list_data_files(storage: Storage) -> list[DirectoryEntry]:
    """Return every file that readers may read as data.

    pyarrow reads all files as Parquet, except names that begin with `_` or `.`. A directory in the result cannot be
    listed, or is a link that `walk` does not follow.
    """
    entries = walk(storage, "", skip=lambda name: name[0] in "_.", tolerant=True)
    # lost+found is in the root of every new file system, and often only root may list it.
    return [entry for entry in entries if not (entry.is_directory and entry.name == "lost+found")]


def find_leftovers(archive: Archive) -> list[str]:
    """Return the paths that `remove_leftovers` would delete, in this order.

    They are uncommitted data files, unfinished files of the manifest and of Spark's metadata, staging directories.
    """
    storage = archive.storage
    uncommitted, writers = _list_uncommitted(archive)
    kept = _kept_files(writers)
    dead = {writer_id for writer_id, status in writers.items() if not status.is_alive}
    leftovers = _exclude_committed(archive, [path for path in uncommitted if writer_id_of(path) in dead])
    unowned = [path for path in uncommitted if writer_id_of(path) not in writers and path not in kept]
    if unowned:
        removed = _files_removed_by(storage, list_manifest(storage).commits)
        leftovers += [path for path in unowned if path in removed]
    now_ms = _now_ms()
    temporary = [
        f"{directory}/{entry.name}"
        for directory in (MANIFEST, SPARK_METADATA)
        for entry in storage.list_directory(directory)
        if entry.name.startswith(".") and entry.name.endswith(".tmp") and now_ms - entry.modified_ms > _TEMPORARY_MS
    ]
    return leftovers + temporary + [staging_directory(writer_id) for writer_id in sorted(dead)]


def remove_leftovers(archive: Archive) -> list[str]:
    """Delete the leftovers and return their paths."""
    archive.update_spark_metadata()  # first, so that it does not list a file that is deleted
    paths = find_leftovers(archive)
    for path in paths:
        archive.storage.delete(path, recursive=True)
    return paths


def find_foreign_files(archive: Archive) -> list[str]:
    """Return the data files that no commit has added or removed and no writer, alive or dead, has written."""
    storage = archive.storage
    uncommitted, writers = _list_uncommitted(archive)
    unowned = sorted({path for path in uncommitted if writer_id_of(path) not in writers})
    if not unowned:
        return []
    removed = _files_removed_by(storage, list_manifest(storage).commits)
    # A writer may have aborted and deleted its files since they were listed.
    return [path for path in unowned if path not in removed and storage.exists(path)]


def remove_history(archive: Archive, retention_ms: int = HISTORY_RETENTION_MS) -> list[str]:
    """Delete the manifest files before the second-last state file that are old enough; return their paths.

    Also deletes the data files that these commits removed: without the commits they would look foreign.
    """
    storage = archive.storage
    listing = list_manifest(storage)
    states = sorted(listing.states)
    # No reader can continue from a state file beyond the last commit, so it does not replace older commits.
    if len(states) < 2 or states[-1] > max(listing.commits, default=-1):
        return []
    before_ms = _now_ms() - retention_ms
    paths, commits = [], []
    for entry in storage.list_directory(MANIFEST):
        number, is_state = parse_manifest_name(entry.name) or (states[-2], True)
        if number < states[-2] and entry.modified_ms < before_ms:
            paths.append(f"{MANIFEST}/{entry.name}")
            if not is_state:
                commits.append(number)
    for path in _files_removed_by(storage, commits) - _kept_files(_read_writers(storage)):
        storage.delete(path)
    for path in paths:
        storage.delete(path)
    return paths


def _list_uncommitted(archive: Archive) -> tuple[list[str], dict[str, StagingStatus]]:
    """Return the data files that the state does not contain, and the writers by id.

    The order matters: a listed file that is committed meanwhile is in the state, and one that is not committed yet has
    a staging directory.
    """
    paths = [entry.name for entry in list_data_files(archive.storage)]
    writers = _read_writers(archive.storage)
    committed = archive.state().files
    return [path for path in paths if path not in committed], writers


def _exclude_committed(archive: Archive, paths: list[str]) -> list[str]:
    """Exclude paths that lead to a committed file through a link."""
    storage = archive.storage

    def real_path(path: str) -> str:
        directory, _, name = path.rpartition("/")
        return f"{storage.real_path(directory) or directory}/{name}"

    committed = set(map(real_path, archive.state().files)) if paths else set()
    return [path for path in paths if real_path(path) not in committed]


def _read_writers(storage: Storage) -> dict[str, StagingStatus]:
    """Return the status of each staging directory by writer id."""
    entries = storage.list_directory(STAGING)
    ids = [entry.name for entry in entries if entry.is_directory and is_writer_id(entry.name)]
    return {writer_id: _read_writer(storage, writer_id) for writer_id in ids}


def _read_writer(storage: Storage, writer_id: str) -> StagingStatus:
    last_write_ms = max((entry.modified_ms for entry in walk(storage, staging_directory(writer_id))), default=0)
    try:
        data = storage.read(owner_path(writer_id))
    except FileMissingError:
        data = b""
    return staging.decode_owner(data, _now_ms() - last_write_ms)


def _kept_files(writers: dict[str, StagingStatus]) -> set[str]:
    """Return the removed data files that living writers keep for readers."""
    return {path for status in writers.values() if status.is_alive for path in status.kept_files}


def _files_removed_by(storage: Storage, commits: Iterable[int]) -> set[str]:
    """Return the data files that these commits removed from the archive."""
    return {path for number in commits for path in read_commit(storage, number).content.remove}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
