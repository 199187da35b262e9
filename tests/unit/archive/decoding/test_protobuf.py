"""Protobuf messages as values of Arrow types."""

import base64
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.archive.catalogs import create_archive
from kbroker.archive.decoding.column_types import TIMESTAMPTZ
from kbroker.archive.decoding.decoder import Decoder
from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.protobuf import compile_protobuf, read_message_path
from kbroker.archive.decoding.settings import DecodeSettings, Decoding, SchemaText
from kbroker.archive.decoding.topic_decoding import TopicDecoding
from tests.unit.support.archive_tables import make_rows
from tests.unit.support.schema_registry import running_registry

SCALARS = ("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes", "uint32")


def _add(message: Any, name: str, kind: str, repeated: bool = False, optional: bool = False) -> None:
    """Add a field; `kind` is a scalar or, after a dot, the name of a message or enum."""
    field = message.field.add(name=name, number=len(message.field) + 1)
    field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    if kind.startswith(".enum"):
        field.type, field.type_name = FieldDescriptorProto.TYPE_ENUM, kind.removeprefix(".enum")
    elif kind.startswith("."):
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, kind
    else:
        field.type = getattr(FieldDescriptorProto, f"TYPE_{kind.upper()}")
    if optional:
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


def _file() -> FileDescriptorProto:
    file = FileDescriptorProto(name="all.proto", package="test", syntax="proto3")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in ("timestamp", "wrappers", "struct", "empty"))
    color = file.enum_type.add(name="Color")
    color.value.add(name="RED", number=0)
    color.value.add(name="BLUE", number=5)
    message = file.message_type.add(name="All")
    for kind in SCALARS:
        _add(message, f"a_{kind}", kind)
    entry = message.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    _add(entry, "key", "string")
    _add(entry, "value", "uint64")
    _add(message, "counts", ".test.All.CountsEntry", repeated=True)
    _add(message, "colors", ".enum.test.Color", repeated=True)
    _add(message, "at", ".google.protobuf.Timestamp")
    _add(message, "wrapped", ".google.protobuf.Int64Value")
    _add(message, "free", ".google.protobuf.Struct")
    _add(message, "nothing", ".google.protobuf.Empty")
    _add(message, "inner", ".test.All")
    _add(message, "maybe", "int32", optional=True)
    other = file.message_type.add(name="Other")
    _add(other, "maybe", "int64")
    nested = other.nested_type.add(name="Deep")
    _add(nested, "x", "string")
    return file


def _schema(file: FileDescriptorProto, message: str = "") -> SchemaText:
    text = base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()
    return SchemaText((text,), message)


@pytest.fixture(scope="module")
def all_class() -> Any:
    from google.protobuf import empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2

    pool = DescriptorPool()
    for module in (empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(_file())
    return GetMessageClass(pool.FindMessageTypeByName("test.All"))


def _decode(message: Any) -> dict[str, Any]:
    kind, decode = compile_protobuf(_schema(_file()))
    result: dict[str, Any] = pa.array([decode(message.SerializeToString())], kind)[0].as_py()
    return result


def test_types(all_class: Any) -> None:
    """Each type has a column type that holds its values."""
    kind, _ = compile_protobuf(_schema(_file()))
    assert {field.name: field.type for field in kind} == {
        "a_double": pa.float64(),
        "a_float": pa.float32(),
        "a_int64": pa.int64(),
        "a_uint64": pa.decimal128(20, 0),
        "a_int32": pa.int32(),
        "a_fixed64": pa.decimal128(20, 0),
        "a_fixed32": pa.int64(),
        "a_bool": pa.bool_(),
        "a_string": pa.string(),
        "a_bytes": pa.binary(),
        "a_uint32": pa.int64(),
        "counts": pa.map_(pa.string(), pa.decimal128(20, 0)),
        "colors": pa.list_(pa.string()),
        "at": TIMESTAMPTZ,
        "wrapped": pa.int64(),
        "free": pa.string(),
        "nothing": pa.string(),
        "inner": pa.string(),
        "maybe": pa.int32(),
    }
    message = all_class(a_uint64=2**64 - 1, a_uint32=2**32 - 1, colors=[5, 0, 7], maybe=0, counts={"a": 2**64 - 1})
    message.at.FromDatetime(datetime(2026, 1, 31, 12, 0, 0, 123456))
    message.wrapped.value = 0
    message.free["x"] = [1]
    message.nothing.SetInParent()
    message.inner.a_int64 = 7
    result = _decode(message)
    assert result["a_uint64"] == Decimal(2**64 - 1)
    assert result["a_uint32"] == 2**32 - 1
    assert result["colors"] == ["BLUE", "RED", "7"]
    assert result["counts"] == [("a", Decimal(2**64 - 1))]
    assert result["at"] == datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
    assert (result["wrapped"], result["maybe"]) == (0, 0)
    assert (result["free"], result["nothing"], result["inner"]) == ('{"x":[1.0]}', "{}", '{"a_int64":"7"}')


def test_missing_fields(all_class: Any) -> None:
    """Null with presence, and the default value without."""
    result = _decode(all_class())
    assert {name for name, value in result.items() if value is None} == {
        "at", "wrapped", "free", "nothing", "inner", "maybe",
    }  # fmt: skip
    assert (result["a_int64"], result["a_string"], result["counts"], result["colors"]) == (0, "", [], [])


def test_bytes_of_another_message(all_class: Any) -> None:
    """Unknown fields are not dropped silently."""
    _, decode = compile_protobuf(_schema(_file(), "test.Other"))
    with pytest.raises(DecodeError, match=r"the message test.Other has fields that the schema does not have: 8, 9"):
        decode(all_class(a_bool=True, a_string="x").SerializeToString())
    with pytest.raises(DecodeError, match=r"it is not a message test.Other"):
        decode(b"\xff")


def test_invalid_schemas() -> None:
    """A reason for each."""
    for text in ("%", base64.b64encode(b"\xff\xff").decode()):
        with pytest.raises(DecodeError, match="is not a FileDescriptorSet"):
            compile_protobuf(SchemaText((text,)))
    with pytest.raises(DecodeError, match=r"does not have test.Absent"):
        compile_protobuf(_schema(_file(), "test.Absent"))
    with pytest.raises(DecodeError, match="does not have a message"):
        compile_protobuf(_schema(FileDescriptorProto(name="empty.proto")))
    file = _file()
    file.dependency.append("absent.proto")
    with pytest.raises(DecodeError, match="or not all files that it imports"):
        compile_protobuf(_schema(file))


def test_paths_of_messages() -> None:
    """Zigzag numbers; a zero stands for the first message."""
    assert read_message_path(b"\x00rest") == ((0,), b"rest")
    assert read_message_path(b"\x04\x02\x00rest") == ((1, 0), b"rest")
    assert read_message_path(b"\x02\xd0\x0frest") == ((1000,), b"rest")
    for data in (b"", b"\x04\x02", b"\x01", b"\xff" * 9):
        with pytest.raises(DecodeError, match="no path of a message"):
            read_message_path(data)


def test_a_registry(tmp_path: Path, all_class: Any) -> None:
    """Records say which message of the schema they are; the column is that of the first one."""
    inner = FileDescriptorProto(name="registered.proto", package="a", syntax="proto3")
    _add(inner.message_type.add(name="Inner"), "x", "int32")
    outer = FileDescriptorProto(name="other.proto", package="b", syntax="proto3", dependency=["inner.proto"])
    _add(outer.message_type.add(name="First"), "y", "string")
    _add(outer.message_type.add(name="Second"), "inner", ".a.Inner")
    inner_text, outer_text = (base64.b64encode(file.SerializeToString()).decode() for file in (inner, outer))
    with running_registry() as registry:
        registry.register(inner_text, "PROTOBUF", "inner")
        references = [{"name": "inner.proto", "subject": "inner", "version": 1}]
        number = registry.register(outer_text, "PROTOBUF", references=references)
        table = create_archive(str(tmp_path), {}).create_table("t")
        decoding = TopicDecoding(table, DecodeSettings(value=Decoding("protobuf", registry.url)))
        prefix = b"\0" + number.to_bytes(4, "big")
        second, first = b"\x02\x02\x0a\x02\x08\x07", b"\x00\x0a\x01x"
        values = [prefix + second, prefix + first, prefix + b"\x02\x08", prefix]
        rows = make_rows(count=len(values))
        rows = rows.set_column(5, "value", pa.array(values, pa.binary()))
        decoding.learn(Decoder(decoding.task()).decode(rows.slice(0, 1), 0).missing)
        decoded = Decoder(decoding.task()).decode(rows, 0)
        assert registry.requests == [
            "/schemas/ids/2?format=serialized",
            "/subjects/inner/versions/1?format=serialized",
        ]
    assert decoded.rows.column("decoded_value").to_pylist() == [{"inner": {"x": 7}}, None, None, None]
    assert decoded.dead is not None
    assert [text.removeprefix("the value is not decoded: ") for text in decoded.dead["reason"].to_pylist()] == [
        "schema 2: its message b.First has fields that the column does not have",
        "schema 2: the schema does not have a message 4",
        "after the id of the schema there is no path of a message",
    ]


@settings(max_examples=100, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "a_double": st.floats(allow_nan=False),
            "a_int64": st.integers(-(2**63), 2**63 - 1),
            "a_fixed64": st.integers(0, 2**64 - 1),
            "a_string": st.text(),
            "a_bytes": st.binary(),
            "counts": st.dictionaries(st.text(), st.integers(0, 2**64 - 1)),
        }
    )
)
def test_random_messages(all_class: Any, value: dict[str, Any]) -> None:
    """The column has exactly what was encoded."""
    result = _decode(all_class(**value))
    assert {**{name: result[name] for name in value}, "counts": dict(result["counts"])} == value
