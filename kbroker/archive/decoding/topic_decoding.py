"""Keeps the decoded columns of a topic's table in step with the schemas of its records.

Used by the process that owns the table. A column is added or widened before a row of the new schema is written. A
schema that does not fit the column is remembered, too: its records are dead letters.
"""

from collections.abc import Iterable
from contextlib import suppress

import pyarrow as pa

from kbroker.archive.archive import ArchiveTable, ConflictError
from kbroker.archive.decoding.codecs import compile_schema
from kbroker.archive.decoding.column_types import COLUMNS, table_types, widen
from kbroker.archive.decoding.decoder import DecodeTask, MissingSchema, with_message
from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.inference import extend_text, merge_texts
from kbroker.archive.decoding.registry import RegistryClient
from kbroker.archive.decoding.settings import (
    OWN,
    DecodeSettings,
    SchemaText,
    decode_schemas,
    decode_settings,
    encode_decoding,
)
from kbroker.archive.errors import ArchiveError

# If a run has found more ids than this without a schema, then values begin with other bytes than ids, and no further
# ones are looked up: each costs a request.
MAX_ABSENT = 1000
ATTEMPTS = 20  # to change a table to which other processes commit


class TopicDecoding:
    """How the records of one table are decoded. Used by one thread."""

    def __init__(self, table: ArchiveTable, settings: DecodeSettings | None = None, registry_url: str = "") -> None:
        """Without `settings`, those of the table. `registry_url` has credentials that settings do not have.

        New settings are stored, and their schemas become columns. Raises ArchiveError if one does not fit.
        """
        self._table = table
        self._registry_url = registry_url
        self._absent: dict[int, str] = {}
        properties = table.iceberg.metadata.properties
        self.settings = decode_settings(properties, table.location)
        self._schemas = decode_schemas(properties, table.location)
        if settings is not None and settings != self.settings:
            self._change(settings)

    def _change(self, settings: DecodeSettings) -> None:
        for source, decoding in settings.decodings.items():
            before = self.settings.decodings.get(source)
            if before is None or before.format != decoding.format or decoding.schema is not None:
                self._schemas.pop(source, None)
            if decoding.format == "string":
                self._schemas[source] = {OWN: SchemaText(("string",))}
            elif decoding.schema is not None:
                self._schemas[source] = {OWN: decoding.schema}
        self.settings = settings
        self._update_table()

    def task(self) -> DecodeTask:
        """Return what a process needs to decode batches."""
        types = table_types(self._table.iceberg.schema())
        return DecodeTask(self.settings, self._schemas, types, dict(self._absent))

    def learn(self, missing: Iterable[MissingSchema]) -> None:
        """Read schemas that the table does not have, and change its columns; then the batch can be decoded.

        Raises RegistryError if the registry is away, and ArchiveError if the table cannot be changed.
        """
        inferred: dict[str, list[str]] = {}
        for schema in sorted(missing):
            if schema.number == OWN:
                inferred.setdefault(schema.source, []).append(schema.inferred)
            elif schema.number not in self._schemas.get(schema.source, {}):
                self._read_schema(schema)
        for source, texts in inferred.items():
            self._schemas[source] = {OWN: SchemaText((merge_texts(texts),))}
        self._update_table()

    def inferred_sources(self) -> list[str]:
        """Return what has an inferred schema: value, key."""
        return [
            source
            for source, decoding in self.settings.decodings.items()
            if decoding.format == "json" and decoding.schema is None and not decoding.registry
        ]

    def infer_more(self, source: str, text: str) -> None:
        """Add the fields of another inferred schema to the inferred one. Fields keep their types."""
        known = self._schemas.get(source, {}).get(OWN)
        self._schemas[source] = {OWN: SchemaText((extend_text(known.texts[0], text) if known else text,))}
        self._update_table()

    def _read_schema(self, missing: MissingSchema) -> None:
        source, number = missing.source, missing.number
        decoding = self.settings.decodings[source]
        if len(self._absent) >= MAX_ABSENT:
            self._absent[number] = f"schema {number} was not looked up, because too many others were not found"
            return
        try:
            client = RegistryClient(self._registry_url or decoding.registry)
            schema = client.schema(number, decoding.format)
        except DecodeError as error:
            self._absent[number] = str(error)
            return
        # A schema may have several messages: the column is made for that of its first record.
        with suppress(DecodeError):
            schema = with_message(schema, missing.path)
        self._schemas.setdefault(source, {})[number] = schema

    def _update_table(self) -> None:
        """Change the columns of the table for the schemas, and store both with the settings."""
        for attempt in range(ATTEMPTS):
            try:
                self._table.evolve(self._columns(), encode_decoding(self.settings, self._schemas))
                return
            except ConflictError:
                if attempt == ATTEMPTS - 1:
                    raise
                self._table.refresh()

    def _columns(self) -> pa.Schema:
        types = table_types(self._table.iceberg.schema())
        for source, decoding in self.settings.decodings.items():
            for number, schema in sorted(self._schemas.get(source, {}).items()):
                try:
                    kind = compile_schema(decoding.format, schema).type
                    types[source] = widen(types.get(source, kind), kind)
                except DecodeError as error:
                    # For a schema of the registry, the decoder has the same reason for each of its records.
                    if number == OWN:
                        raise ArchiveError(
                            f"{self._table.topic}: the schema of the {source} cannot be used: {error}"
                        ) from None
        return pa.schema([(COLUMNS[source], kind) for source, kind in types.items()])
