"""A catalogue in the directory or object store that has the tables, without a database or a service.

The layout is that of Iceberg's Hadoop catalogue, which Spark, Flink, Trino and DuckDB read:

    ROOT/NAMESPACE.json                                     the properties of a namespace
    ROOT/NAMESPACE/TABLE/metadata/v1.metadata.json, ...     the metadata after each commit
    ROOT/NAMESPACE/TABLE/metadata/version-hint.text         the number of the latest, or of one before

A commit creates the metadata file of the next number, which only one writer can do.
"""

import json
from contextlib import suppress

import pyarrow as pa
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromByteStream
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from kbroker.archive.errors import ArchiveError
from kbroker.archive.storage import open_storage
from kbroker.archive.storage.local import LocalStorage
from kbroker.archive.storage.storage import FileMissingError

_HINT = "version-hint.text"


class DirectoryCatalog(MetastoreCatalog, NoopCatalog):
    """Creates, loads, lists and commits tables; what archives do not need raises NotImplementedError.

    Failures of the storage are raised as ArchiveError.
    """

    def __init__(self, name: str, root: str, **properties: str) -> None:
        """`root`: a local path or URI. The other properties are those of pyiceberg, such as s3.endpoint."""
        super().__init__(name, **properties)
        self._storage = open_storage(root, properties)

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        if not self._storage.create(f"{_path(namespace)}.json", json.dumps(properties, indent=1).encode()):
            raise NamespaceAlreadyExistsError(f"{_path(namespace)} already exists")

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        path = f"{_path(namespace)}.json"
        try:
            properties: Properties = json.loads(self._storage.read(path))
        except FileMissingError:
            raise NoSuchNamespaceError(f"{_path(namespace)} does not exist") from None
        except ValueError as error:
            raise ArchiveError(f"{self._storage.uri(path)}: is damaged ({error})") from None
        return properties

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """Return the namespaces below the root."""
        names = [entry.name for entry in self._storage.list_directory("") if not entry.is_directory]
        return [(name.removesuffix(".json"),) for name in names if name.endswith(".json") and not namespace]

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        path = _path(namespace)
        names = [entry.name for entry in self._storage.list_directory(path) if entry.is_directory]
        if isinstance(self._storage, LocalStorage):
            # A process that was killed may have created the directory and no table.
            names = [name for name in names if self._versions(f"{path}/{name}/metadata")]
        return [(*Catalog.identifier_to_tuple(namespace), name) for name in names]

    def load_table(self, identifier: str | Identifier) -> Table:
        version = self._latest_version(identifier)
        return self._table(identifier, version, self._read(identifier, version))

    def create_table(
        self,
        identifier: str | Identifier,
        schema: "Schema | pa.Schema",
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        """Create a table; `location` must be its place below the root."""
        own = self._storage.uri(_path(identifier))
        if location not in (None, own):
            raise ValueError(f"the location of the table must be {own}, not {location}")
        staged = self._create_staged_table(identifier, schema, own, partition_spec, sort_order, properties)
        if not self._write(identifier, 1, staged.metadata):
            raise TableAlreadyExistsError(f"{own} already exists")
        return self._table(identifier, 1, staged.metadata)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Raises CommitFailedException if another process has committed. If the storage fails, the commit may exist."""
        name = table.name()
        version = self._latest_version(name)
        current = self._table(name, version, self._read(name, version))
        metadata = self._update_and_stage_table(current, name, requirements, updates).metadata
        if metadata == current.metadata:
            return _response(metadata, current.metadata_location)
        if not self._write(name, version + 1, metadata):
            raise CommitFailedException(f"{current.location()}: another process has committed version {version + 1}")
        return _response(metadata, self._location(name, version + 1))

    def replace_metadata(self, name: str | Identifier, metadata: TableMetadata) -> None:
        """Make this the metadata of the table. Raises CommitFailedException if another process has committed."""
        version = self._latest_version(name)
        if not self._write(name, version + 1, metadata):
            raise CommitFailedException(f"{self._storage.uri(_path(name))}: another process has committed")

    def _write(self, name: str | Identifier, version: int, metadata: TableMetadata) -> bool:
        """Write the metadata of a new version; return False if another process has written it."""
        path = _metadata_path(name, version)
        hint = f"{_path(name)}/metadata/{_HINT}"
        if not self._storage.create(path, metadata.model_dump_json(exclude_none=True).encode()):
            return False
        hinted = self._hinted_version(hint)
        if hinted > version and self._storage.exists(_metadata_path(name, hinted)):
            # This process has been asleep since it read the latest version. Meanwhile others have committed, and
            # deleted the metadata of old versions: nobody has seen this one.
            self._storage.delete(path)
            return False
        with suppress(ArchiveError):  # The commit is done, and readers try the numbers after the hint.
            self._storage.replace(hint, str(version).encode())
        return True

    def _read(self, name: str | Identifier, version: int) -> TableMetadata:
        path = _metadata_path(name, version)
        data = self._storage.read(path, max_bytes=None)
        try:
            return FromByteStream.table_metadata(pa.BufferReader(data))
        except (ValueError, ValidationError) as error:
            text = str(error).partition("\n")[0]
            raise ArchiveError(f"{self._storage.uri(path)}: is damaged, or no metadata of a table ({text})") from None

    def _table(self, identifier: str | Identifier, version: int, metadata: TableMetadata) -> Table:
        name = Catalog.identifier_to_tuple(identifier)
        location = self._location(name, version)
        return Table(name, metadata, location, self._load_file_io(metadata.properties, location), self)

    def _location(self, name: str | Identifier, version: int) -> str:
        return self._storage.uri(_metadata_path(name, version))

    def _latest_version(self, name: str | Identifier) -> int:
        """Raises NoSuchTableError."""
        directory = f"{_path(name)}/metadata"
        version = self._hinted_version(f"{directory}/{_HINT}")
        if not version or not self._storage.exists(_metadata_path(name, version)):
            version = max(self._versions(directory), default=0)
        if not version:
            raise NoSuchTableError(f"{self._storage.uri(_path(name))}: there is no table")
        while self._storage.exists(_metadata_path(name, version + 1)):
            version += 1
        return version

    def _hinted_version(self, path: str) -> int:
        """Return 0 if there is no hint, or a damaged one."""
        try:
            return int(self._storage.read(path))
        except (FileMissingError, ValueError):
            return 0

    def _versions(self, directory: str) -> list[int]:
        names = (entry.name.removesuffix(".metadata.json") for entry in self._storage.list_directory(directory))
        return [int(name[1:]) for name in names if name.startswith("v") and name[1:].isdecimal()]


def _path(name: str | Identifier) -> str:
    return "/".join(Catalog.identifier_to_tuple(name))


def _response(metadata: TableMetadata, location: str) -> CommitTableResponse:
    return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": location})


def _metadata_path(name: str | Identifier, version: int) -> str:
    return f"{_path(name)}/metadata/v{version}.metadata.json"
