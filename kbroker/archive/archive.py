"""An archive and the tables of its topics. Any number of processes may read and write at the same time.

A commit changes one table. It contains files and what they cover, and it fails if another process has committed to the
table since its state was read: so two writers never archive an offset twice.
"""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata

from kbroker.archive.data_files import DataFile, WriteTarget
from kbroker.archive.errors import ArchiveError
from kbroker.archive.rows import MERGE_MANIFESTS, SCHEMA, SORT_ORDER, TABLE_PROPERTIES, partition_spec
from kbroker.archive.topic_state import FORMAT_VERSION, TopicState, decode_properties, encode_properties
from kbroker.archive.typed_json import read_json

_SETTINGS = "kbroker.settings"
COMMIT, KIND = "kbroker.commit", "kbroker.kind"  # in the summary of each snapshot of kbroker


class ConflictError(ArchiveError):
    """Another process has committed to the table first: read its state again."""


@dataclass(frozen=True)
class ArchiveSettings:
    """What holds for all topics of an archive from its creation on."""

    id: str
    format_version: int = FORMAT_VERSION
    committed_only: bool = False
    period: str = "day"  # of which a file holds the records: day, hour


class Archive:
    """An archive. Its objects are not thread-safe, but each thread may use an ArchiveTable of its own."""

    def __init__(self, catalog: Catalog, namespace: str, location: str, root: str | None) -> None:
        """`location` is what the user calls the archive; `root` is the URI of its directory, if it has one."""
        self.catalog = catalog
        self.namespace = namespace
        self.location = location
        self.root = root
        self.settings = ArchiveSettings("")

    def load(self) -> "Archive":
        """Read the settings. Raises ArchiveError if there is no archive, or if a newer version wrote it."""
        with as_archive_errors(self.location):
            try:
                text = self.catalog.load_namespace_properties(self.namespace).get(_SETTINGS)
            except NoSuchNamespaceError:
                text = None
        if text is None:
            raise ArchiveError(f"{self.location}: no archive found; create one with: kbroker archive run")
        try:
            self.settings = read_json(ArchiveSettings, json.loads(text))
        except (ValueError, TypeError, KeyError) as error:
            raise ArchiveError(f"{self.location}: the archive's settings are damaged ({error})") from None
        if self.settings.format_version > FORMAT_VERSION:
            version = self.settings.format_version
            raise ArchiveError(f"{self.location}: format version {version} was written by a newer version of kbroker")
        return self

    def load_or_create(self, settings: Mapping[str, Any]) -> "Archive":
        """Read the settings of the archive, or create it with these."""
        new = ArchiveSettings(str(uuid.uuid4()), **settings)
        with as_archive_errors(self.location), suppress(NamespaceAlreadyExistsError):
            self.catalog.create_namespace(self.namespace, {_SETTINGS: json.dumps(asdict(new))})
        return self.load()

    def topics(self) -> list[str]:
        with as_archive_errors(self.location):
            return sorted(identifier[-1] for identifier in self.catalog.list_tables(self.namespace))

    def table(self, topic: str) -> "ArchiveTable":
        """Raises ArchiveError if the archive does not have the topic, or has been moved."""
        with as_archive_errors(self.location):
            try:
                table = self.catalog.load_table((self.namespace, topic))
            except NoSuchTableError:
                raise ArchiveError(f"{self.location} has no topic {topic}") from None
            except FileNotFoundError as error:
                hint = f"if the archive was moved: kbroker archive relocate {self.location}"
                raise ArchiveError(f"{self.location}: {error}; {hint}") from None
        if self.root is not None and table.location() != self.table_location(topic):
            # A copy must not write into the original.
            hint = f"kbroker archive relocate {self.location}"
            raise ArchiveError(f"{self.location} was moved or copied from {table.location()}; run: {hint}")
        return ArchiveTable(table, topic)

    def table_location(self, topic: str) -> str | None:
        """Return the URI of a topic's table; None if the catalogue decides."""
        return None if self.root is None else f"{self.root.rstrip('/')}/{self.namespace}/{topic}"

    def tables(self, topics: Sequence[str] = ()) -> "list[ArchiveTable]":
        """Return the tables of these topics, by default of all."""
        return [self.table(topic) for topic in topics or self.topics()]

    def create_table(self, topic: str, schema: Schema = SCHEMA) -> "ArchiveTable":
        """Create the table of a topic; return it if it exists."""
        state = TopicState(archive=self.settings.id)
        with as_archive_errors(self.location):
            try:
                table = self.catalog.create_table(
                    (self.namespace, topic),
                    schema,
                    location=self.table_location(topic),
                    partition_spec=partition_spec(self.settings.period),
                    sort_order=SORT_ORDER,
                    properties=TABLE_PROPERTIES
                    | encode_properties(state)
                    | {"kbroker.committed-only": json.dumps(self.settings.committed_only)},
                )
            except TableAlreadyExistsError:
                return self.table(topic)
        return ArchiveTable(table, topic)


class ArchiveTable:
    """The table of one topic, with the state in which it was last read."""

    def __init__(self, table: Table, topic: str) -> None:
        self.iceberg = table
        self.topic = topic
        self.state = decode_properties(table.metadata.properties, table.location())
        self._files_of_manifests: dict[str, list[DataFile]] = {}

    @property
    def location(self) -> str:
        return self.iceberg.location()

    def refresh(self) -> TopicState:
        """Read the newest state."""
        with as_archive_errors(self.location):
            self.iceberg.refresh()
        self.state = decode_properties(self.iceberg.metadata.properties, self.location)
        return self.state

    def files(self) -> list[DataFile]:
        """Return the data files of the state. Reads only manifests that this object has not read before.

        Raises ArchiveError if a manifest is missing or damaged, or if another program has added other kinds of files.
        """
        snapshot = self.iceberg.current_snapshot()
        if snapshot is None:
            return []
        with as_archive_errors(self.location):
            manifests = snapshot.manifests(self.iceberg.io)
            known = self._files_of_manifests
            self._files_of_manifests = {
                manifest.manifest_path: known.get(manifest.manifest_path) or self._read_manifest(manifest)
                for manifest in manifests
            }
        return [file for files in self._files_of_manifests.values() for file in files]

    def _read_manifest(self, manifest: Any) -> list[DataFile]:
        result = []
        for entry in manifest.fetch_manifest_entry(self.iceberg.io, discard_deleted=True):
            file = entry.data_file
            if file.content != DataFileContent.DATA:
                raise ArchiveError(f"{self.location}: another program has deleted rows of the table ({file.file_path})")
            try:
                result.append(DataFile.of(file))
            except (KeyError, ValueError, TypeError) as error:
                raise ArchiveError(f"{self.location}: {file.file_path} was not written by kbroker: {error}") from None
        return result

    def foreign_change(self) -> str | None:
        """Return what another program did to the table since kbroker's last commit, or None.

        Rewriting files with the same rows ("replace") is not a change.
        """
        metadata = self.iceberg.metadata
        snapshot = self.iceberg.current_snapshot()
        while (
            snapshot is not None
            and snapshot.summary is not None
            and COMMIT not in snapshot.summary.additional_properties
        ):
            operation = snapshot.summary.operation.value
            if operation != "replace":
                return f"snapshot {snapshot.snapshot_id} ({operation})"
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else metadata.snapshot_by_id(parent)
        return None

    def arrow_schema(self) -> pa.Schema:
        return schema_to_pyarrow(self.iceberg.schema())

    def write_target(self) -> WriteTarget:
        metadata = self.iceberg.metadata
        io_properties = dict(self.iceberg.io.properties)
        return WriteTarget(
            self.location, self.iceberg.schema(), self.iceberg.spec(), metadata.properties, io_properties
        )

    def evolve(self, columns: pa.Schema, properties: Mapping[str, str]) -> None:
        """Add these columns and fields if the table lacks them, widen those that are narrower, and set properties.

        One step, without a snapshot, because rows do not change. Raises ConflictError like `commit`.
        """
        with as_archive_errors(self.location):
            try:
                with self.iceberg.transaction() as transaction:
                    transaction.set_properties(dict(properties))
                    with transaction.update_schema() as update:
                        update.union_by_name(columns)
            except CommitFailedException as error:
                raise ConflictError(f"{self.location}: another process has changed the table: {error}") from None

    def commit(
        self,
        kind: str,
        state: TopicState,
        add: Sequence[DataFile] = (),
        remove: Sequence[DataFile] = (),
        *,
        merge_manifests: bool = False,
    ) -> TopicState:
        """Change the table from `self.state` to `state`, atomically and durably, and return the new state.

        `kind` says what for: append, compact, observe, repair, erase, expire. Every commit makes a snapshot, also one
        without files, so that it conflicts with any other. Raises ConflictError if the table has changed since
        `refresh`, and ArchiveError if the storage fails: then the commit may exist nevertheless. `merge_manifests`
        also merges small manifests; such a commit removes no files.
        """
        new = replace(state, commit=self.state.commit + 1, time_ms=time.time_ns() // 1_000_000)
        with as_archive_errors(self.location):
            try:
                with _Transaction(self.iceberg) as transaction:
                    transaction.set_properties(encode_properties(new, self.state))
                    if merge_manifests:
                        transaction.set_properties({MERGE_MANIFESTS: "true"})
                    update = transaction.update_snapshot({COMMIT: str(new.commit), KIND: kind})
                    with update.overwrite() if remove else update.merge_append() as producer:
                        for file in add:
                            producer.append_data_file(file.entry)
                        for file in remove:
                            producer.delete_data_file(file.entry)
                    if merge_manifests:
                        transaction.set_properties({MERGE_MANIFESTS: "false"})
            except (CommitFailedException, ValidationException) as error:
                raise ConflictError(f"{self.location}: another process has changed the table: {error}") from None
        self.state = new
        return new


class _Transaction(Transaction):
    """A transaction that computes the metadata once for each change of it.

    pyiceberg computes it at each access, some fifteen times in a commit, and copies all snapshots each time.
    """

    _computed: tuple[object, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if self._computed is None or self._computed[0] is not self._updates:
            self._computed = self._updates, super().table_metadata
        return self._computed[1]


@contextmanager
def as_archive_errors(location: str) -> Iterator[None]:
    """Raise ArchiveError for what reading and writing a table can raise."""
    try:
        yield
    except ArchiveError:
        raise
    except Exception as error:  # pyiceberg, its catalogues and file systems have no common exception
        text = str(error).partition("\n")[0]
        raise ArchiveError(f"{location}: {text or type(error).__name__}") from error
