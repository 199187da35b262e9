"""Reads schemas of a schema registry by Confluent's REST API, as Karapace and Apicurio have it, too."""

import base64
import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.settings import SchemaText
from kbroker.archive.errors import ArchiveError

TIMEOUT_S = 10
# USER:PASSWORD, as for Confluent's clients. They are not stored in archives.
CREDENTIALS = "SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO"
_TYPES = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}
_TOO_MANY_REQUESTS = 429
_NOT_FOUND = (40401, 40402, 40403)  # of subject, version, schema


class RegistryError(ArchiveError):
    """The registry cannot be read at the moment: nothing is lost, and a later attempt may succeed."""


def without_credentials(url: str) -> str:
    """Return the URL of a registry without a user and a password."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class RegistryClient:
    """Reads the schemas of one registry. Raises RegistryError if it is away, and ArchiveError if it refuses."""

    def __init__(self, url: str, environment: Mapping[str, str] = os.environ) -> None:
        """`url` may contain USER:PASSWORD@; by default they are those of the environment variable CREDENTIALS."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ArchiveError(f"{without_credentials(url)}: a schema registry has a URL such as http://HOST:8081")
        self.url = without_credentials(url).rstrip("/")
        user = urllib.parse.unquote(parts.netloc.rpartition("@")[0]) or environment.get(CREDENTIALS, "")
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        if user:
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"

    def schema(self, number: int, format: str) -> SchemaText:
        """Return a schema with those that it refers to.

        Raises DecodeError if the registry does not have it, or if it is of another format.
        """
        found = self._get(f"/schemas/ids/{number}", format)
        kind = found.get("schemaType", "AVRO")
        if kind != _TYPES[format]:
            raise DecodeError(f"schema {number} is of the type {kind}, not {_TYPES[format]}")
        texts: dict[str, str] = {}
        self._add_references(found, format, texts)
        if format == "protobuf":
            return SchemaText((_descriptor_set({**texts, f"schema-{number}.proto": found["schema"]}),))
        return SchemaText((*texts.values(), found["schema"]))

    def _add_references(self, schema: Mapping[str, Any], format: str, texts: dict[str, str]) -> None:
        """Add the schemas that a schema refers to by their names, each after those that it refers to itself."""
        for reference in schema.get("references") or ():
            name = reference["name"]
            if name not in texts:
                subject = urllib.parse.quote(reference["subject"], safe="")
                found = self._get(f"/subjects/{subject}/versions/{reference['version']}", format)
                self._add_references(found, format, texts)
                texts[name] = found["schema"]

    def _get(self, path: str, format: str) -> dict[str, Any]:
        query = "?format=serialized" if format == "protobuf" else ""
        request = urllib.request.Request(f"{self.url}{path}{query}", headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                body = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404 and _error_code(error) in _NOT_FOUND:
                    raise DecodeError(f"the registry does not have {path.lstrip('/')}") from None
            hint = f"; its user is in {CREDENTIALS}" if error.code in (401, 403) else ""
            kind = RegistryError if error.code >= 500 or error.code == _TOO_MANY_REQUESTS else ArchiveError
            raise kind(f"the schema registry {self.url} refuses: {error.code} {error.reason}{hint}") from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise RegistryError(f"the schema registry {self.url} does not respond: {reason}") from None
        if not isinstance(body, dict) or not isinstance(body.get("schema"), str):
            raise RegistryError(f"{self.url}{path} did not return a schema: is this a schema registry?")
        return body


def _error_code(error: urllib.error.HTTPError) -> int:
    try:
        return int(json.load(error)["error_code"])
    except (ValueError, KeyError, TypeError, OSError):
        return 0


def _descriptor_set(files: Mapping[str, str]) -> str:
    """Return files (name -> Base64 of a FileDescriptorProto) as the Base64 of a FileDescriptorSet."""
    result = FileDescriptorSet()
    for name, text in files.items():
        try:
            file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        except ValueError:
            raise ArchiveError(
                "the schema registry does not return protobuf schemas in serialized form (?format=serialized): use "
                "--schema FILE.desc instead"
            ) from None
        file.name = name
        result.file.append(file)
    return base64.b64encode(result.SerializeToString()).decode()
