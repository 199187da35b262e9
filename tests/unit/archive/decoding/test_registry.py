"""Schemas of a registry."""

import json

import pytest

from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.registry import CREDENTIALS, RegistryClient, RegistryError
from kbroker.archive.decoding.settings import SchemaText
from kbroker.archive.errors import ArchiveError
from tests.unit.support.schema_registry import running_registry


def test_schemas_and_their_references() -> None:
    """Each schema comes after those that it refers to, once."""
    with running_registry() as registry:
        registry.register('"int"', subject="a/b")
        registry.register('"long"', references=[{"name": "A", "subject": "a/b", "version": 1}])
        registry.register(
            '"bytes"',
            references=[{"name": "B", "subject": "s", "version": 2}, {"name": "A", "subject": "a/b", "version": 1}],
        )
        registry.register('"x"', references=[{"name": "C", "subject": "absent", "version": 1}])
        client = RegistryClient(registry.url + "/", {})
        # The fake does not decode the path of a subject.
        registry._responses["/subjects/a%2Fb/versions/1"] = registry._responses["/subjects/a/b/versions/1"]
        assert client.schema(3, "avro") == SchemaText(('"int"', '"long"', '"bytes"'))
        with pytest.raises(DecodeError, match="the registry does not have subjects/absent/versions/1"):
            client.schema(4, "avro")
        with pytest.raises(DecodeError, match="the registry does not have schemas/ids/9"):
            client.schema(9, "avro")
        with pytest.raises(DecodeError, match="schema 1 is of the type AVRO, not JSON"):
            client.schema(1, "json")


def test_credentials() -> None:
    """In the URL or the environment; they are in no message."""
    with running_registry() as registry:
        registry.register(json.dumps({"type": "object"}), "JSON")
        registry.user = "user:p@ss"
        with pytest.raises(ArchiveError, match=f"refuses: 401 Unauthorized; its user is in {CREDENTIALS}"):
            RegistryClient(registry.url, {}).schema(1, "json")
        RegistryClient(registry.url, {CREDENTIALS: "user:p@ss"}).schema(1, "json")
        url = registry.url.replace("//", "//user:p%40ss@")
        RegistryClient(url, {}).schema(1, "json")
        registry.user = "other"
        with pytest.raises(ArchiveError) as error:
            RegistryClient(url, {}).schema(1, "json")
        assert "ss@" not in str(error.value)


def test_a_registry_that_is_away_or_something_else() -> None:
    """One sentence."""
    with running_registry() as registry:
        client = RegistryClient(registry.url, {})
        for body in (b"<html>", b"[]", b"{}"):
            registry.raw_body = body
            with pytest.raises(RegistryError):
                client.schema(1, "avro")
    with pytest.raises(RegistryError, match=r"the schema registry http://127.0.0.1:\d+ does not respond"):
        client.schema(1, "avro")
    with pytest.raises(ArchiveError, match="a schema registry has a URL such as"):
        RegistryClient("localhost:8081")
