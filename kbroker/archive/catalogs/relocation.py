"""`kbroker archive relocate`: after a move or a copy of an archive, rewrites the paths in the metadata of its tables.

Iceberg's metadata has absolute paths. New manifests and a new metadata file name the files in their new place. The
data files are not touched, and only the current snapshot is kept. A table whose paths are right is left alone, so the
command can be repeated after a kill.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import ManifestFile, read_manifest_list, write_manifest, write_manifest_list
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from sqlalchemy import text

from kbroker.archive.archive import Archive, ConflictError, as_archive_errors
from kbroker.archive.catalogs.directory_catalog import DirectoryCatalog
from kbroker.archive.errors import ArchiveError

_CODEC: Literal["deflate"] = "deflate"
Identifier = tuple[str, str]


def relocate(archive: Archive, advance: Callable[[str], None]) -> None:
    """Rewrite the paths of each table that is not where its metadata says; call `advance` with each such topic.

    No other process may use the archive. Raises ArchiveError.
    """
    if archive.root is None:
        raise ArchiveError(f"{archive.location}: its catalogue says where its tables are, so they cannot be moved")
    with as_archive_errors(archive.location):
        for (namespace,) in archive.catalog.list_namespaces():
            for name in sorted(identifier[-1] for identifier in archive.catalog.list_tables(namespace)):
                location = f"{archive.root.rstrip('/')}/{namespace}/{name}"
                if _relocate_table(archive.catalog, (namespace, name), location):
                    advance(name if namespace == archive.namespace else f"{namespace} of {name}")


@dataclass(frozen=True)
class _Move:
    """`old` and `new` are the locations of the table; `files` reads and writes them."""

    old: str
    new: str
    files: FileIO

    def path(self, old: str) -> str:
        """Return the new path of a file."""
        if not old.startswith(f"{self.old}/"):
            raise ArchiveError(f"{self.new}: its metadata names {old}, which is not in {self.old}")
        return self.new + old.removeprefix(self.old)


def _relocate_table(catalog: Catalog, identifier: Identifier, location: str) -> bool:
    files = load_file_io(catalog.properties, location)
    if isinstance(catalog, DirectoryCatalog):
        metadata = catalog.load_table(identifier).metadata
    else:
        assert isinstance(catalog, SqlCatalog)
        pointer = _pointer(catalog, identifier)
        own = f"{location}/metadata/{pointer.rpartition('/')[2]}"
        if pointer == own:
            return False
        metadata = FromInputFile.table_metadata(files.new_input(own))
    if metadata.location == location:
        return False
    moved = _moved_metadata(metadata, _Move(metadata.location, location, files))
    if isinstance(catalog, DirectoryCatalog):
        catalog.replace_metadata(identifier, moved)
        return True
    path = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
    ToOutputFile.table_metadata(moved, files.new_output(path))
    _set_pointer(catalog, identifier, pointer, path)
    return True


def _moved_metadata(metadata: TableMetadata, move: _Move) -> TableMetadata:
    snapshot = metadata.current_snapshot()
    kept = [] if snapshot is None else [_moved_snapshot(metadata, snapshot, move)]
    return metadata.model_copy(
        update={
            "location": move.new,
            "snapshots": kept,
            "snapshot_log": [
                each for each in metadata.snapshot_log if each.snapshot_id == metadata.current_snapshot_id
            ],
            "refs": {name: metadata.refs[name] for name in (MAIN_BRANCH,) if kept},
            "metadata_log": [],
            "statistics": [],
            "partition_statistics": [],
        }
    )


def _moved_snapshot(metadata: TableMetadata, snapshot: Snapshot, move: _Move) -> Snapshot:
    """Write the manifests of a snapshot with the new paths, and return it with the new list of them."""
    path = f"{move.new}/metadata/snap-{snapshot.snapshot_id}-{uuid.uuid4()}.avro"
    with write_manifest_list(
        metadata.format_version,
        move.files.new_output(path),
        snapshot.snapshot_id,
        snapshot.parent_snapshot_id,
        snapshot.sequence_number,
        _CODEC,
    ) as writer:
        manifests = read_manifest_list(move.files.new_input(move.path(snapshot.manifest_list)))
        writer.add_manifests(list(filter(None, (_moved_manifest(metadata, manifest, move) for manifest in manifests))))
    return snapshot.model_copy(update={"manifest_list": path})


def _moved_manifest(metadata: TableMetadata, manifest: ManifestFile, move: _Move) -> ManifestFile | None:
    """Write a manifest with the new paths; return None if all of its files were removed from the table."""
    manifest[0] = move.path(manifest.manifest_path)
    entries = manifest.fetch_manifest_entry(move.files, discard_deleted=True)
    if not entries:
        return None
    output = move.files.new_output(f"{move.new}/metadata/{uuid.uuid4()}-m0.avro")
    spec, snapshot = metadata.specs()[manifest.partition_spec_id], metadata.current_snapshot_id or 0
    with write_manifest(metadata.format_version, spec, metadata.schema(), output, snapshot, _CODEC) as writer:
        for entry in entries:
            entry.data_file[1] = move.path(entry.data_file.file_path)
            writer.existing(entry)
    return writer.to_manifest_file()


_OF_TABLE = "catalog_name = :catalog AND table_namespace = :namespace AND table_name = :name"


def _pointer(catalog: SqlCatalog, identifier: Identifier) -> str:
    """Return the path of the table's metadata in the database."""
    query = text(f"SELECT metadata_location FROM iceberg_tables WHERE {_OF_TABLE}")
    with catalog.engine.begin() as connection:
        return str(connection.execute(query, _parameters(catalog, identifier)).scalar_one())


def _set_pointer(catalog: SqlCatalog, identifier: Identifier, before: str, path: str) -> None:
    own = f"{_OF_TABLE} AND metadata_location = :before"
    change = text(f"UPDATE iceberg_tables SET metadata_location = :path WHERE {own}")
    with catalog.engine.begin() as connection:
        parameters = _parameters(catalog, identifier) | {"before": before, "path": path}
        if connection.execute(change, parameters).rowcount != 1:
            raise ConflictError(f"{'.'.join(identifier)}: another process has changed the table")


def _parameters(catalog: SqlCatalog, identifier: Identifier) -> dict[str, str]:
    return {"catalog": catalog.name, "namespace": identifier[0], "name": identifier[1]}
