"""The options that say how keys and values are decoded."""

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import option

if TYPE_CHECKING:
    from kbroker.archive.decoding.settings import DecodeSettings, Decoding, SchemaText

_FORMATS = "json|avro|protobuf|string"
Schema = Annotated[
    str | None,
    option(
        "--schema FILE",
        "Schema of values: Avro, JSON Schema, or a FileDescriptorSet of protoc.",
        show_default="that of the registry",
    ),
]
Message = Annotated[str, option("--message NAME", "The protobuf message in --schema.", show_default="the first one")]
Registry = Annotated[
    str,
    option(
        "--schema-registry URL",
        "Confluent-compatible registry of the schemas whose ids records begin with; may contain USER:PASSWORD@.",
    ),
]


class DecodeOptions(NamedTuple):
    """How keys and values become columns."""

    value: Annotated[
        str | None,
        option(
            f"--value {_FORMATS}|none",
            "Decode values to the column decoded_value; stored for the topic, as all options of decoding. Without a "
            "schema, that of JSON is inferred from the first batch.",
        ),
    ] = None
    key: Annotated[str | None, option(f"--key {_FORMATS}|none", "Decode keys to the column decoded_key.")] = None
    schema: Schema = None
    key_schema: Annotated[str | None, option("--key-schema FILE", "Schema of keys.")] = None
    message: Message = ""
    registry: Registry = ""
    no_raw: Annotated[
        bool,
        option("--no-raw", "Do not store the bytes of values that are decoded; they cannot be replayed."),
    ] = False


class ValueFormatOptions(NamedTuple):
    """How values are decoded for fields of them."""

    value_format: Annotated[str, option("json|avro|protobuf", "Format of values.")] = "json"
    schema: Schema = None
    message: Message = ""
    registry: Registry = ""


def read_decode_options(options: DecodeOptions) -> "DecodeSettings | None":
    """Return the settings, without credentials; None if no option says how to decode. Raises CliError."""
    from kbroker.archive.decoding.settings import DecodeSettings

    if options.value is None and options.key is None:
        if options != DecodeOptions():
            raise usage_error(f"specify what is decoded: --value {_FORMATS} or --key {_FORMATS}")
        return None
    for name, format, file in (("", options.value, options.schema), ("key-", options.key, options.key_schema)):
        if file is not None and format in (None, "none", "string"):
            raise usage_error(f"--{name}schema requires --{name.removesuffix('-') or 'value'} json, avro or protobuf")
    if options.no_raw and options.value in (None, "none"):
        raise usage_error("--no-raw requires --value")
    return DecodeSettings(
        value=_decoding("--value", options.value, options.schema, options.message, options.registry),
        key=_decoding("--key", options.key, options.key_schema, "", options.registry),
        keep_raw=not options.no_raw,
    )


def read_value_format(options: ValueFormatOptions) -> "Decoding | None":
    """Return how values are decoded; None for plain JSON. Raises CliError."""
    format, file, registry = options.value_format, options.schema, options.registry
    if format not in ("json", "avro", "protobuf"):
        raise usage_error(f"--value-format must be json, avro or protobuf, not {format}")
    if format == "json" and file is None and not registry:
        return None
    return _decoding("--value-format", format, file, options.message, registry)


def _decoding(name: str, format: str | None, file: str | None, message: str, registry: str) -> "Decoding | None":
    from kbroker.archive.decoding.registry import without_credentials
    from kbroker.archive.decoding.settings import FORMATS, Decoding

    if format in (None, "none"):
        return None
    if format not in FORMATS:
        raise usage_error(f"{name} must be json, avro, protobuf, string or none, not {format}")
    if file is not None:
        return Decoding(format, schema=_read_schema(format, file, message))
    if format in ("avro", "protobuf") and not registry:
        schema = "--key-schema" if name == "--key" else "--schema"
        raise usage_error(f"{name} {format} requires a schema: {schema} FILE or --schema-registry URL")
    return Decoding(format, "" if format == "string" else without_credentials(registry))


def _read_schema(format: str, file: str, message: str) -> "SchemaText":
    from kbroker.archive.decoding.codecs import compile_schema
    from kbroker.archive.decoding.errors import DecodeError
    from kbroker.archive.decoding.settings import SchemaText

    try:
        data = Path(file).read_bytes()
        text = base64.b64encode(data).decode() if format == "protobuf" else data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    schema = SchemaText((text,), message)
    try:
        compile_schema(format, schema)
    except DecodeError as error:
        raise CliError(f"{file}: {error}") from None
    return schema
