"""Compiles schemas: a codec has the type of a schema's column and decodes records."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from kbroker.archive.decoding.avro import compile_avro
from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.json_schema import compile_json
from kbroker.archive.decoding.protobuf import compile_protobuf
from kbroker.archive.decoding.settings import SchemaText


class SchemaCodec(NamedTuple):
    """Decodes the records of one schema."""

    type: pa.DataType
    # Returns a value from which Arrow can make one of the type. Raises any exception for other bytes.
    decode: Callable[[bytes], Any]
    is_plain_json: bool = False  # decode_lines can decode many records at once


def compile_schema(format: str, schema: SchemaText) -> SchemaCodec:
    """Return the codec of a schema of the format. Raises DecodeError."""
    return SchemaCodec(*_COMPILERS[format](schema))


def _compile_string(_: SchemaText) -> SchemaCodec:
    return SchemaCodec(pa.string(), _decode_string)


def _decode_string(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DecodeError(f"it is not UTF-8 ({error.reason} at byte {error.start})") from None


_COMPILERS: dict[str, Callable[[SchemaText], Any]] = {
    "avro": compile_avro,
    "json": compile_json,
    "protobuf": compile_protobuf,
    "string": _compile_string,
}
