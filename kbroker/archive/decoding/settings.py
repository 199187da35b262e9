"""How the records of a topic are decoded. Stored in properties of the topic's table, without credentials.

`kbroker.decoding` has the settings, `kbroker.schemas` the schemas that the decoded columns are made of: the schema of a
file, or an inferred one, as number 0, and those of a registry by their ids. So the registry is only needed for a record
whose schema the table does not have yet.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from kbroker.archive.errors import ArchiveError
from kbroker.archive.topic_state import PREFIX
from kbroker.archive.typed_json import read_json

FORMATS = ("json", "avro", "protobuf", "string")
DECODING, SCHEMAS = f"{PREFIX}decoding", f"{PREFIX}schemas"
OWN = 0  # the number of a schema that is not from a registry


class SchemaText(NamedTuple):
    """A schema, with the schemas that it refers to before it."""

    # JSON for Avro and JSON Schema; the Base64 form of a FileDescriptorSet, whose last file is the schema, for protobuf
    texts: tuple[str, ...]
    # The full name of the protobuf message; empty for the first one, and if records say which
    message: str = ""


@dataclass(frozen=True)
class Decoding:
    """How keys or values are decoded."""

    format: str  # in FORMATS
    registry: str = ""  # the URL of a schema registry; then records begin with the id of their schema
    schema: SchemaText | None = None  # of a file


@dataclass(frozen=True)
class DecodeSettings:
    """How the records of a topic are decoded; None: not."""

    value: Decoding | None = None
    key: Decoding | None = None
    # False: values that were decoded are not stored as bytes. Keys always are: erasure finds records by them.
    keep_raw: bool = True

    @property
    def decodings(self) -> dict[str, Decoding]:
        """The decodings by what is decoded: value, key."""
        return {name: item for name, item in (("value", self.value), ("key", self.key)) if item is not None}


# By what is decoded and by number.
Schemas = Mapping[str, Mapping[int, SchemaText]]


def encode_decoding(settings: DecodeSettings, schemas: Schemas) -> dict[str, str]:
    """Return the properties of a table."""
    return {
        DECODING: json.dumps(asdict(settings), separators=(",", ":")),
        SCHEMAS: json.dumps(schemas, separators=(",", ":"), sort_keys=True),
    }


def decode_settings(properties: Mapping[str, str], location: str) -> DecodeSettings:
    """Return the settings in a table's properties. Raises ArchiveError."""
    try:
        return read_json(DecodeSettings, json.loads(properties.get(DECODING, "{}")))
    except (ValueError, TypeError, KeyError) as error:
        raise ArchiveError(f"{location}: its property {DECODING} is damaged ({error})") from None


def decode_schemas(properties: Mapping[str, str], location: str) -> dict[str, dict[int, SchemaText]]:
    """Return the schemas in a table's properties. Raises ArchiveError."""
    try:
        return {
            source: {int(number): read_json(SchemaText, item) for number, item in schemas.items()}
            for source, schemas in json.loads(properties.get(SCHEMAS, "{}")).items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArchiveError(f"{location}: its property {SCHEMAS} is damaged ({error})") from None


def require_raw(properties: Mapping[str, str], location: str) -> None:
    """Raise ArchiveError if the table does not store the bytes of all values."""
    if not decode_settings(properties, location).keep_raw:
        raise ArchiveError(f"{location} does not have the bytes of values (--no-raw), so records cannot be restored")
