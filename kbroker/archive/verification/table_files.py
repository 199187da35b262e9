"""Reads a table's metadata, and the files in its directory. Damage is reported, and ends nothing."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from pyiceberg.manifest import DataFileContent, ManifestFile, clear_manifest_cache
from pyiceberg.table.snapshots import Snapshot

from kbroker.archive.archive import Archive, ArchiveTable
from kbroker.archive.data_files import DataFile
from kbroker.archive.errors import ArchiveError
from kbroker.archive.storage import is_local, local_path, open_storage
from kbroker.archive.storage.storage import walk
from kbroker.archive.verification.findings import Finding, difference, note

# The names that kbroker and pyiceberg give to data files and to files of metadata.
_OWN_NAME = re.compile(r"data/.*/[0-9a-f]{12}-[0-9a-f]{64}\.parquet|metadata/[^/]+\.avro")
# The first one is never in the log of older ones, and that of a commit that failed stays.
_OLD_METADATA = re.compile(r"metadata/([^/]+\.metadata\.json|version-hint\.text)")
_MAX_TEXT = 200


class ListedFile(NamedTuple):
    """A file in a table's directory."""

    path: str  # a URI
    size: int


class TableFiles(NamedTuple):
    """What the current snapshot of a table refers to, as far as it can be read."""

    files: list[DataFile]
    paths: set[str]  # of files and metadata; URIs
    findings: list[Finding]


def error_text(error: BaseException) -> str:
    """Return an exception's message as one line of at most 200 characters."""
    return " ".join(str(error).split())[:_MAX_TEXT] or type(error).__name__


def file_size(io: Any, path: str) -> int:
    """Return the size of a file. Raises FileNotFoundError; OSError for what is not a file.

    Opening a FIFO would block, therefore call this first.
    """
    if not is_local(path):
        return len(io.new_input(path))
    status = os.stat(local_path(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a file")
    return status.st_size


def open_table(archive: Archive, topic: str) -> tuple[ArchiveTable | None, list[Finding]]:
    """Read the metadata of a topic's table. Returns None, and why, if it cannot be read."""
    if archive.root is not None and is_local(archive.root):
        directory = local_path(f"{archive.root.rstrip('/')}/{archive.namespace}/{topic}/metadata")
        if irregular := _irregular_file(directory):
            return None, [difference("metadata", "it is not a file: the table was not read", file=irregular)]
    clear_manifest_cache()
    try:
        return archive.table(topic), []
    except ArchiveError as error:
        return None, [difference("metadata", error_text(error), topic=topic)]


def _irregular_file(directory: str) -> str | None:
    """Return the path of table metadata in a local directory that is not a file; reading it may block."""
    try:
        with os.scandir(directory) as entries:
            return next((each.path for each in entries if each.name.endswith(".json") and not each.is_file()), None)
    except OSError:
        return None


def read_files(table: ArchiveTable) -> TableFiles:
    """Read the files of the current snapshot."""
    snapshot = table.iceberg.current_snapshot()
    return TableFiles([], set(), []) if snapshot is None else read_snapshot(table, snapshot)


def read_snapshot(table: ArchiveTable, snapshot: Snapshot) -> TableFiles:
    """Read the files of a snapshot, manifest by manifest."""
    result = TableFiles([], {snapshot.manifest_list}, [])
    for manifest in _read_manifest_list(table, snapshot, result.findings):
        result.paths.add(manifest.manifest_path)
        for file in _read_manifest(table, manifest, result):
            result.files.append(file)
            result.paths.add(file.path)
    return result


def _read_manifest_list(table: ArchiveTable, snapshot: Snapshot, findings: list[Finding]) -> list[ManifestFile]:
    try:
        file_size(table.iceberg.io, snapshot.manifest_list)
        return snapshot.manifests(table.iceberg.io)
    except Exception as error:  # what pyiceberg raises for damaged Avro has no common type
        text = f"snapshot {snapshot.snapshot_id}: its manifest list cannot be read ({error_text(error)})"
        findings.append(difference("metadata", text, file=snapshot.manifest_list, topic=table.topic))
        return []


def _read_manifest(table: ArchiveTable, manifest: ManifestFile, result: TableFiles) -> Iterator[DataFile]:
    io, path = table.iceberg.io, manifest.manifest_path
    try:
        size = file_size(io, path)
        if size != manifest.manifest_length:
            raise ArchiveError(f"it has {size} bytes instead of {manifest.manifest_length}")
        entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
    except Exception as error:  # as above
        text = f"a manifest cannot be read ({error_text(error)})"
        result.findings.append(difference("metadata", text, file=path, topic=table.topic))
        return
    live = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    if live != len(entries):
        text = f"the manifest has {len(entries)} files instead of {live}"
        result.findings.append(difference("metadata", text, file=path, topic=table.topic))
    for entry in entries:
        file = entry.data_file
        if file.content != DataFileContent.DATA:
            text = "another program has deleted rows of the table"
            result.findings.append(difference("foreign change", text, file=file.file_path, topic=table.topic))
            continue
        try:
            yield DataFile.of(file)
        except Exception as error:  # a damaged manifest may have any value
            result.paths.add(str(file.file_path))
            text = f"kbroker has not written it, or its manifest is damaged ({error_text(error)})"
            result.findings.append(difference("layout", text, file=str(file.file_path), topic=table.topic))


def find_unreferenced(table: ArchiveTable, listed: Iterable[ListedFile], known: set[str]) -> list[Finding]:
    """Report files in the table's directory that no snapshot refers to.

    List the files before the newest state of `table` is read; `known` are the paths of its current snapshot.
    """
    candidates = [file for file in listed if file.path not in known]
    if not candidates:
        return []
    referenced, findings = _paths_of_snapshots(table)
    orphans = []
    for file in candidates:
        name = file.path.removeprefix(f"{table.location.rstrip('/')}/")
        if file.path in referenced or _OLD_METADATA.fullmatch(name):
            continue
        if _OWN_NAME.fullmatch(name):
            orphans.append(file)
        else:
            text = "it is not a file of the table, nor of a writer of kbroker"
            findings.append(difference("foreign file", text, file=file.path, topic=table.topic))
    if orphans:
        text = (
            f"{len(orphans)} files of {sum(file.size for file in orphans)} bytes belong to a running writer, or to one "
            f"that was killed; `kbroker archive run` deletes those after a day"
        )
        findings.append(note("orphan", text, file=orphans[0].path if len(orphans) == 1 else "", topic=table.topic))
    return findings


def _paths_of_snapshots(table: ArchiveTable) -> tuple[set[str], list[Finding]]:
    """Return the paths of all files that any snapshot of the table refers to, and notes on older damaged ones."""
    metadata = table.iceberg.metadata
    paths = {table.iceberg.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    paths |= {statistics.statistics_path for statistics in metadata.statistics}
    notes = []
    for number, result in read_snapshots(table).items():
        paths |= result.paths
        if number != metadata.current_snapshot_id:
            notes += [
                note("old snapshot", f"readers of snapshot {number} fail: {finding.text}", file=finding.file)
                for finding in result.findings
                if finding.kind == "metadata"
            ]
    return paths, notes


def read_snapshots(table: ArchiveTable) -> dict[int, TableFiles]:
    """Read all snapshots of a table, by id. Most manifests belong to several, and are read once."""
    result = {}
    known: dict[str, TableFiles] = {}
    for snapshot in table.iceberg.metadata.snapshots:
        read = result[snapshot.snapshot_id] = TableFiles([], {snapshot.manifest_list}, [])
        for manifest in _read_manifest_list(table, snapshot, read.findings):
            path = manifest.manifest_path
            if path not in known:
                known[path] = TableFiles([], {path}, [])
                known[path].files.extend(_read_manifest(table, manifest, known[path]))
                known[path].paths.update(file.path for file in known[path].files)
            read.files.extend(known[path].files)
            read.paths.update(known[path].paths)
            read.findings.extend(known[path].findings)
    return result


def list_files(table: ArchiveTable) -> list[ListedFile]:
    """Return all files in the table's directory. Links to directories are not followed. Raises ArchiveError."""
    base = table.location.rstrip("/")
    return [
        ListedFile(f"{base}/{entry.name}", entry.size)
        for entry in walk(open_storage(base, table.iceberg.io.properties))
    ]
