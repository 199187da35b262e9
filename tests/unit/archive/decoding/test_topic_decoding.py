"""Tables whose columns follow the schemas of their records."""

import io
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from kbroker.archive.archive import Archive, ArchiveTable
from kbroker.archive.catalogs import create_archive, open_archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.decoding.decoder import Decoded, Decoder
from kbroker.archive.decoding.registry import RegistryError
from kbroker.archive.decoding.settings import (
    DecodeSettings,
    Decoding,
    SchemaText,
    decode_settings,
    require_raw,
)
from kbroker.archive.decoding.topic_decoding import MAX_ABSENT, TopicDecoding
from kbroker.archive.errors import ArchiveError
from kbroker.archive.offset_ranges import OffsetRange
from tests.unit.support.archive_tables import append_rows, make_rows
from tests.unit.support.schema_registry import FakeRegistry, running_registry


def _rows(values: Sequence[bytes | None], first: int = 0, keys: Sequence[bytes | None] | None = None) -> pa.RecordBatch:
    rows = make_rows(first=first, count=len(values))
    rows = rows.set_column(rows.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))
    if keys is not None:
        rows = rows.set_column(rows.schema.get_field_index("key"), "key", pa.array(keys, pa.binary()))
    return rows


def _decode(decoding: TopicDecoding, rows: pa.RecordBatch) -> Decoded:
    """Decode a batch as the driver and a task of Spark do."""
    for _ in range(2):
        decoded = Decoder(pickle.loads(pickle.dumps(decoding.task()))).decode(rows, 1000)
        if not decoded.missing:
            return decoded
        decoding.learn(decoded.missing)
    raise AssertionError(decoded.missing)


def _append(table: ArchiveTable, rows: pa.RecordBatch) -> None:
    offsets = rows.column("offset").to_pylist()
    state = table.state.with_covered([(0, OffsetRange(offsets[0], offsets[-1] + 1))])
    table.commit("append", state, write_rows(table.write_target(), [rows]))


def _column(archive: Archive, name: str = "decoded_value") -> list[Any]:
    rows = open_archive(archive.location).table("t").iceberg.scan().to_arrow().sort_by("offset")
    result: list[Any] = rows[name].to_pylist()
    return result


def _avro(number: int, schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def _record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def _register(registry: FakeRegistry, schema: Any) -> int:
    return registry.register(json.dumps(schema))


def test_inferred_json(tmp_path: Path) -> None:
    """The schema is that of the first batch; what does not fit later is a dead letter and stays in the table."""
    archive = create_archive(str(tmp_path), {})
    table = archive.create_table("t")
    append_rows(table, first=0, count=1)
    decoding = TopicDecoding(table, DecodeSettings(value=Decoding("json")))
    decoded = _decode(decoding, _rows([b'{"a": 1}', None, b"{", b"null"], first=1))
    _append(table, decoded.rows)
    decoded_later = _decode(decoding, _rows([b'{"a": 2}', b'{"b": 2}'], first=5))
    _append(table, decoded_later.rows)
    assert _column(archive) == [None, {"a": 1}, None, None, None, {"a": 2}, None]
    assert _column(archive, "value")[3] == b"{"
    assert decoded.dead is not None
    assert decoded_later.dead is not None
    assert decoded.dead.select(["offset", "value"]).to_pylist() == [{"offset": 3, "value": b"{"}]
    assert decoded_later.dead.column("reason").to_pylist() == [
        "the value is not decoded: b: the schema does not have this field"
    ]


def test_a_batch_without_documents(tmp_path: Path) -> None:
    """The schema is inferred from the first batch that has one."""
    archive = create_archive(str(tmp_path), {})
    table = archive.create_table("t")
    decoding = TopicDecoding(table, DecodeSettings(value=Decoding("json")))
    decoded = _decode(decoding, _rows([b"x", None]))
    assert decoded.dead is not None
    assert decoded.dead.num_rows == 1
    _append(table, decoded.rows)
    _append(table, _decode(decoding, _rows([b"7"], first=2)).rows)
    assert _column(archive) == [None, None, 7]


def test_keys_and_strings(tmp_path: Path) -> None:
    """Keys and values are decoded independently."""
    archive = create_archive(str(tmp_path), {})
    table = archive.create_table("t")
    settings = DecodeSettings(value=Decoding("string"), key=Decoding("json"))
    decoded = _decode(TopicDecoding(table, settings), _rows([b"\xff", "ä".encode()], keys=[b"x", b'{"id": 5}']))
    _append(table, decoded.rows)
    assert _column(archive) == [None, "ä"]
    assert _column(archive, "decoded_key") == [None, {"id": 5}]
    assert decoded.dead is not None
    (reason,) = decoded.dead.column("reason").to_pylist()
    assert reason.startswith(
        "the value is not decoded: it is not UTF-8 (invalid start byte at byte 0); the key is not "
    )
    # Another process, without settings of its own.
    other = TopicDecoding(open_archive(archive.location).table("t"))
    assert other.settings == settings
    assert _decode(other, _rows([b"x"], keys=[b'{"id": 6}'])).rows.column("decoded_key").to_pylist() == [{"id": 6}]


def test_schemas_of_a_registry_evolve(tmp_path: Path) -> None:
    """Fields are added, widened and reordered; records of all schemas are in one batch; ids are read once."""
    versions = [
        _record(a="int", b="string"),
        _record(b="string", a="long", c=["null", "double"]),
        _record(c=["null", "double"], d={"type": "record", "name": "d", "fields": [{"name": "x", "type": "float"}]}),
        _record(
            d={"type": "record", "name": "d", "fields": [{"name": "y", "type": "int"}, {"name": "x", "type": "double"}]}
        ),
    ]
    values: list[dict[str, Any]] = [
        {"a": 1, "b": "x"},
        {"a": 2**40, "b": "y", "c": 0.5},
        {"c": None, "d": {"x": 0.5}},
        {"d": {"y": 1, "x": 0.1}},
    ]
    archive = create_archive(str(tmp_path), {})
    table = archive.create_table("t")
    with running_registry() as registry:
        decoding = TopicDecoding(table, DecodeSettings(value=Decoding("avro", registry.url)))
        ids = [_register(registry, version) for version in versions]
        encoded = [_avro(*item) for item in zip(ids, versions, values, strict=True)]
        _append(table, _decode(decoding, _rows(encoded[:1])).rows)
        _append(table, _decode(decoding, _rows(encoded[:2], first=1)).rows)
        _append(table, _decode(decoding, _rows(encoded, first=3)).rows)
        assert registry.requests == [f"/schemas/ids/{number}" for number in ids]
    empty: dict[str, Any] = {"a": None, "b": None, "c": None, "d": None}
    first, second = empty | values[0], empty | values[1]
    third = {**empty, "d": {"x": 0.5, "y": None}}
    assert _column(archive) == [first, first, second, first, second, third, {**empty, "d": {"x": 0.1, "y": 1}}]
    # The table has the schemas: the registry is away, and nothing is needed of it.
    other = TopicDecoding(open_archive(archive.location).table("t"))
    assert _decode(other, _rows(encoded)).dead is None


def test_schemas_that_do_not_fit(tmp_path: Path) -> None:
    """Their records are dead letters with the reason, and the others are decoded."""
    archive = create_archive(str(tmp_path), {})
    table = archive.create_table("t")
    with running_registry() as registry:
        decoding = TopicDecoding(table, DecodeSettings(value=Decoding("avro", registry.url)))
        good = _register(registry, _record(a="string"))
        narrow = _register(registry, _record(a="int"))
        broken = registry.register("{")
        other = registry.register("{}", "JSON")
        values = [
            _avro(good, _record(a="string"), {"a": "x"}),
            _avro(narrow, _record(a="int"), {"a": 1}),
            _avro(broken, "int", 1),
            _avro(other, "int", 1),
            _avro(99, "int", 1),
            _avro(good, "int", 1),
            b"\0\0\0",
            b"plain text",
        ]
        decoded = _decode(decoding, _rows(values))
        assert decoded.rows.column("decoded_value").to_pylist() == [{"a": "x"}] + [None] * 7
        assert decoded.dead is not None
        reasons = [text.removeprefix("the value is not decoded: ") for text in decoded.dead["reason"].to_pylist()]
        assert reasons[0] == "schema 2: a: the column is string, and the schema has int"
        assert reasons[1].startswith("schema 3: the Avro schema is invalid")
        assert reasons[2] == "schema 4 is of the type JSON, not AVRO"
        assert reasons[3] == "the registry does not have schemas/ids/99"
        assert reasons[5:] == ["it does not begin with the id of a schema in a registry (a zero byte and 4 bytes)"] * 2


def test_the_registry_is_away(tmp_path: Path) -> None:
    """A clear sentence; the table is as before, and the batch is decoded when the registry is back."""
    table = create_archive(str(tmp_path), {}).create_table("t")
    rows = _rows([_avro(1, "int", 5)])
    with running_registry() as registry:
        registry.register('"int"')
        decoding = TopicDecoding(table, DecodeSettings(value=Decoding("avro", registry.url)))
        registry.raw_body = b"<html>"
        with pytest.raises(RegistryError, match="does not respond"):
            _decode(decoding, rows)
        registry.raw_body = None
        assert _decode(decoding, rows).rows.column("decoded_value").to_pylist() == [5]


def test_random_bytes_do_not_flood_the_registry(tmp_path: Path) -> None:
    """After many ids without a schema no further ones are looked up."""
    table = create_archive(str(tmp_path), {}).create_table("t")
    with running_registry() as registry:
        decoding = TopicDecoding(table, DecodeSettings(value=Decoding("avro", registry.url)))
        decoding._absent = dict.fromkeys(range(100, 100 + MAX_ABSENT), "x")
        decoded = _decode(decoding, _rows([_avro(99, "int", 1)]))
        assert decoded.dead is not None
        assert "was not looked up" in decoded.dead.column("reason")[0].as_py()
        assert registry.requests == []


def test_values_that_a_column_cannot_hold(tmp_path: Path) -> None:
    """A time after the year 9999 or a lone surrogate affects its record only."""
    table = create_archive(str(tmp_path), {}).create_table("t")
    time = {"type": "long", "logicalType": "timestamp-micros"}
    settings = DecodeSettings(value=Decoding("avro", schema=SchemaText((json.dumps(time),))), key=Decoding("json"))
    values = [_avro(0, "long", 10**18)[5:], _avro(0, "long", 0)[5:], None]
    decoded = _decode(TopicDecoding(table, settings), _rows(values, keys=[b'"x"', b'"\\ud800"', b"null"]))
    assert decoded.rows.column("decoded_key").to_pylist() == ["x", None, None]
    assert decoded.rows.column("decoded_value").is_null().to_pylist() == [True, False, True]
    assert decoded.dead is not None
    assert [text.rpartition("(")[2] for text in decoded.dead.column("reason").to_pylist()] == [
        "OverflowError)",
        "UnicodeEncodeError)",
    ]


def test_without_raw_bytes(tmp_path: Path) -> None:
    """A value that is not decoded is only a dead letter; others are only decoded; keys keep their bytes."""
    table = create_archive(str(tmp_path), {}).create_table("t")
    decoding = TopicDecoding(table, DecodeSettings(value=Decoding("json"), keep_raw=False))
    decoded = _decode(decoding, _rows([b"1", b"x", None, b"2"]))
    assert decoded.rows.select(["offset", "key", "value", "decoded_value"]).to_pylist() == [
        {"offset": 0, "key": b"key-0", "value": None, "decoded_value": 1},
        {"offset": 2, "key": b"key-2", "value": None, "decoded_value": None},
        {"offset": 3, "key": b"key-3", "value": None, "decoded_value": 2},
    ]
    assert decoded.dead is not None
    assert decoded.dead.select(["offset", "value"]).to_pylist() == [{"offset": 1, "value": b"x"}]
    with pytest.raises(ArchiveError, match="does not have the bytes of values"):
        require_raw(table.iceberg.metadata.properties, table.location)


def test_a_commit_of_another_process_between(tmp_path: Path) -> None:
    """The columns are changed after it."""
    archive = create_archive(str(tmp_path), {})
    table, other = archive.create_table("t"), archive.table("t")
    append_rows(other, count=2)
    decoding = TopicDecoding(table, DecodeSettings(value=Decoding("json")))
    other.refresh()
    append_rows(other, first=2, count=2)
    decoded = _decode(decoding, _rows([b"7"], first=4))
    table.refresh()
    _append(table, decoded.rows)
    assert _column(archive) == [None, None, None, None, 7]


def test_changed_settings(tmp_path: Path) -> None:
    """A schema file can be replaced by a wider one, but not by one that does not fit."""
    archive = create_archive(str(tmp_path), {})
    table = archive.create_table("t")

    def with_file(**fields: str) -> DecodeSettings:
        return DecodeSettings(value=Decoding("avro", schema=SchemaText((json.dumps(_record(**fields)),))))

    TopicDecoding(table, with_file(a="int"))
    decoding = TopicDecoding(table, with_file(a="long", b="string"))
    assert _decode(decoding, _rows([_avro(0, _record(a="long", b="string"), {"a": 1, "b": "x"})[5:]])).dead is None
    with pytest.raises(ArchiveError, match="t: the schema of the value cannot be used: a: the column is long, and the"):
        TopicDecoding(table, with_file(a="string"))
    stored = decode_settings(open_archive(archive.location).table("t").iceberg.metadata.properties, "")
    assert stored == decoding.settings
    damaged = {"kbroker.decoding": "[]"}
    with pytest.raises(ArchiveError, match=r"its property kbroker.decoding is damaged"):
        decode_settings(damaged, "x")
