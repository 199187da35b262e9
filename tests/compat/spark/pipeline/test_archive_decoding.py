"""`kbroker archive run --value`: topics become typed columns, through kills and registries that are away."""

import io
import json

import duckdb
import fastavro
import pytest

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.catalogs import open_archive
from kbroker.archive.decoding.dead_letters import find_dead_letters
from kbroker.archive.decoding.retry import RetrySummary, retry_dead_letters
from kbroker.archive.decoding.settings import DecodeSettings, Decoding
from tests.compat.spark.pipeline.archiver import Archiver
from tests.compat.support import eventually
from tests.unit.support.schema_registry import running_registry

pytestmark = [pytest.mark.spark, pytest.mark.feature("archive")]

V1 = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "int"}]}
V2 = {"type": "record", "name": "order", "fields": [{"name": "shop", "type": "string"}, {"name": "id", "type": "long"}]}


@pytest.fixture
def archiver(spark, bootstrap, tmp_path):
    archiver = Archiver(spark, bootstrap, tmp_path / "archive")
    yield archiver
    archiver.close()


def encode(number, schema, value):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return {"value": b"\0" + number.to_bytes(4, "big") + stream.getvalue()}


def rows(archiver, topic, *columns):
    """Return the rows of the topic's table in the order of offsets, as pyiceberg reads them."""
    table = open_archive(str(archiver.directory)).table(topic).iceberg.scan().to_arrow().sort_by("offset")
    return list(zip(*(table[column].to_pylist() for column in columns), strict=True))


def dead_letters(archiver, topic):
    table = find_dead_letters(open_archive(str(archiver.directory)), topic).iceberg.scan().to_arrow()
    return sorted(table["offset"].to_pylist())


class Killed(Exception):
    pass


def test_json_is_inferred_and_dead_letters_are_written_once(archiver, topics, spark, monkeypatch):
    name = topics.create()
    documents = [b'{"id": 1, "at": {"city": "Bern"}}', b"broken", None, b'{"id": 2, "new": true}']
    topics.fill(name, ({"value": value} for value in documents[:3]))
    settings = DecodeSettings(value=Decoding("json"))
    commit = ArchiveTable.commit

    def kill(self, kind, *arguments):
        if kind == "append" and "dead_letters" not in self.location:
            raise Killed
        commit(self, kind, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(ArchiveTable, "commit", kill)
        with pytest.raises(Killed):
            archiver.once(name, decode=settings)
    assert dead_letters(archiver, name) == [1]
    summary = archiver.once(name, decode=settings)
    assert (summary.records, summary.dead_letters) == ({name: 3}, {})
    topics.fill(name, ({"value": value} for value in documents[3:]))
    # The settings are those of the table.
    assert archiver.once(name).dead_letters == {name: 1}
    assert dead_letters(archiver, name) == [1, 3]
    first = {"id": 1, "at": {"city": "Bern"}}
    assert [value for (value,) in rows(archiver, name, "decoded_value")] == [first, None, None, None]
    archive = open_archive(str(archiver.directory))
    assert retry_dead_letters(archive, name, 0, infer=True) == RetrySummary(1, 1)
    assert dead_letters(archiver, name) == [1]
    expected = [{**first, "new": None}, None, None, {"id": 2, "at": None, "new": True}]
    assert rows(archiver, name, "value", "decoded_value") == list(zip(documents, expected, strict=True))
    paths = [file.path.removeprefix("file://") for file in archiver.files(name)]
    query = "SELECT decoded_value.id, decoded_value.at.city FROM read_parquet(?, union_by_name=true) ORDER BY 1"
    assert duckdb.execute(query, [paths]).fetchall() == [(1, "Bern"), (2, None), (None, None), (None, None)]


def test_a_registry_whose_schema_evolves_and_that_is_away_for_a_while(archiver, topics):
    name = topics.create()
    with running_registry() as registry:
        first, second = (registry.register(json.dumps(schema)) for schema in (V1, V2))
        settings = DecodeSettings(value=Decoding("avro", registry.url))
        topics.fill(name, [encode(first, V1, {"id": 1})])
        run = archiver.start(name, decode=settings)
        eventually(lambda: rows_if_any(archiver, name) == [{"id": 1}], "the first record decoded")
        registry.raw_body = b"away"
        topics.fill(name, [encode(second, V2, {"shop": "x", "id": 2**40}), encode(first, V1, {"id": 3})])
        eventually(lambda: any("does not respond" in text for text in archiver.warnings), "a warning")
        registry.raw_body = None
        eventually(lambda: len(rows_if_any(archiver, name)) == 3, "all records")
        run.end()
        assert [value for (value,) in rows(archiver, name, "decoded_value")] == [
            {"id": 1, "shop": None},
            {"id": 2**40, "shop": "x"},
            {"id": 3, "shop": None},
        ]
        assert dead_letters(archiver, name) == []


def rows_if_any(archiver, name):
    if not archiver.files(name):
        return []
    return [value for (value,) in rows(archiver, name, "decoded_value")]
