"""Decodes the values of records to JSON, in Spark's Python workers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kbroker.archive.decoding.codecs import compile_schema
from kbroker.archive.decoding.decoder import split_record, with_message
from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.json_text import to_json_text
from kbroker.archive.decoding.registry import RegistryClient
from kbroker.archive.decoding.settings import Decoding, SchemaText


@dataclass
class ValueDecoder:
    """Decodes values. Each worker reads a schema of the registry once."""

    decoding: Decoding
    registry_url: str = ""  # with credentials
    _schemas: dict[int, SchemaText | DecodeError] = field(default_factory=dict)
    _decoders: dict[tuple[int, tuple[int, ...]], Callable[[bytes], Any]] = field(default_factory=dict)

    def to_json(self, data: bytes | None) -> str | None:
        """Return a value as JSON; None if it cannot be decoded. Raises ArchiveError if the registry is away."""
        if data is None:
            return None
        try:
            number, path, rest = split_record(self.decoding, bytes(data))
            decode = self._decoders.get((number, path))
            if decode is None:
                schema = with_message(self._schema(number), path)
                decode = compile_schema(self.decoding.format, schema).decode
                self._decoders[number, path] = decode
        except DecodeError:
            return None
        try:
            return to_json_text(decode(rest))
        except Exception:  # the libraries of the formats have no common exception
            return None

    def _schema(self, number: int) -> SchemaText:
        if self.decoding.schema is not None:
            return self.decoding.schema
        if number not in self._schemas:
            try:
                client = RegistryClient(self.registry_url or self.decoding.registry)
                self._schemas[number] = client.schema(number, self.decoding.format)
            except DecodeError as error:
                self._schemas[number] = error
        found = self._schemas[number]
        if isinstance(found, DecodeError):
            raise found
        return found
