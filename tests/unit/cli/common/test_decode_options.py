"""Options of decoding, without an archive."""

import base64
import json
from pathlib import Path

import pytest

from kbroker.archive.decoding.settings import DecodeSettings, Decoding, SchemaText
from kbroker.cli.common.decode_options import (
    DecodeOptions,
    ValueFormatOptions,
    read_decode_options,
    read_value_format,
)
from kbroker.cli.common.errors import CliError


def test_settings(tmp_path: Path) -> None:
    """Credentials of the registry are not part of them."""
    schema = tmp_path / "a.avsc"
    schema.write_text('"long"')
    url, stored = "http://user:secret@host:8081", "http://host:8081"
    assert read_decode_options(DecodeOptions()) is None
    assert read_decode_options(DecodeOptions("none")) == DecodeSettings()
    options = DecodeOptions("avro", "string", str(schema), registry=url)
    expected = DecodeSettings(Decoding("avro", schema=SchemaText(('"long"',))), Decoding("string"))
    assert read_decode_options(options) == expected
    assert read_decode_options(DecodeOptions("json", registry=url, no_raw=True)) == DecodeSettings(
        Decoding("json", stored), keep_raw=False
    )
    assert read_value_format(ValueFormatOptions()) is None
    assert read_value_format(ValueFormatOptions("avro", registry=url)) == Decoding("avro", stored)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (DecodeOptions("xml"), "--value must be json, avro, protobuf, string or none, not xml"),
        (DecodeOptions("avro"), "--value avro requires a schema: --schema FILE or --schema-registry URL"),
        (DecodeOptions(key="protobuf"), "--key protobuf requires a schema: --key-schema FILE or --schema-registry URL"),
        (DecodeOptions(no_raw=True), "specify what is decoded"),
        (DecodeOptions(key="json", no_raw=True), "--no-raw requires --value"),
        (DecodeOptions("string", schema="x"), "--schema requires --value json, avro or protobuf"),
        (DecodeOptions("json", key_schema="x"), "--key-schema requires --key json, avro or protobuf"),
    ],
)
def test_wrong_usage(options: DecodeOptions, message: str) -> None:
    """One sentence."""
    with pytest.raises(CliError, match=message):
        read_decode_options(options)


def test_schema_files_that_cannot_be_used(tmp_path: Path) -> None:
    """The message names the file and the reason."""
    file = tmp_path / "schema"
    for format, data, message in (
        ("avro", b"{", "the Avro schema is invalid"),
        ("avro", b"\xff", "cannot be read"),
        ("json", json.dumps([]).encode(), "the JSON schema is invalid"),
        ("protobuf", base64.b64encode(b"x"), "the schema is not a FileDescriptorSet"),
    ):
        file.write_bytes(data)
        with pytest.raises(CliError, match=f"schema.*{message}"):
            read_decode_options(DecodeOptions(format, schema=str(file)))
    with pytest.raises(CliError, match="absent cannot be read: No such file or directory"):
        read_decode_options(DecodeOptions("avro", schema=str(tmp_path / "absent")))
    with pytest.raises(CliError, match="--value-format must be json, avro or protobuf, not string"):
        read_value_format(ValueFormatOptions("string"))
