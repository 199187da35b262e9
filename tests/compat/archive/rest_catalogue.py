"""A REST catalogue of Iceberg on loopback, which keeps its tables in a SQL catalogue."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, Table

TOKEN = "rest-secret"
_STATUS: dict[type[Exception], int] = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


def _table(table: Table) -> dict[str, Any]:
    metadata = json.loads(table.metadata.model_dump_json(exclude_none=True))
    return {"metadata-location": table.metadata_location, "metadata": metadata}


class _Catalogue:
    def __init__(self, directory: Path) -> None:
        uri, warehouse = f"sqlite:///{directory}/rest.db", f"file://{directory}/warehouse"
        self._sql = SqlCatalog("rest", uri=uri, warehouse=warehouse)

    def respond(self, method: str, path: list[str], body: Any) -> Any:
        match method, path:
            case "GET", ["config"]:
                return {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                self._sql.create_namespace(tuple(body["namespace"]), body.get("properties", {}))
                return body
            case "GET", ["namespaces", name]:
                return {"namespace": [name], "properties": self._sql.load_namespace_properties(name)}
            case "GET", ["namespaces", name, "tables"]:
                names = self._sql.list_tables(name)
                return {"identifiers": [{"namespace": [name], "name": each[-1]} for each in names]}
            case "POST", ["namespaces", name, "tables"]:
                asked = CreateTableRequest.model_validate({"location": None, **body})
                assert asked.partition_spec is not None
                assert asked.write_order is not None
                table = self._sql.create_table(
                    (name, asked.name), asked.table_schema, asked.location, asked.partition_spec, asked.write_order,
                    asked.properties,
                )  # fmt: skip
                return _table(table)
            case "GET", ["namespaces", name, "tables", topic]:
                return _table(self._sql.load_table((name, topic)))
            case "POST", ["namespaces", name, "tables", topic]:
                commit = CommitTableRequest.model_validate(body)
                self._sql.commit_table(self._sql.load_table((name, topic)), commit.requirements, commit.updates)
                return _table(self._sql.load_table((name, topic)))
        raise NoSuchTableError(f"{method} {path} is not supported")


def _handler(respond: Callable[[str, list[str], Any], Any]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = [unquote(part) for part in self.path.partition("?")[0].strip("/").split("/")]
            status = 200
            try:
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    status, result = 401, {"error": {"message": "no such token", "type": "NotAuthorized", "code": 401}}
                else:
                    result = respond(self.command, path[1:], json.loads(data or b"null"))
            except tuple(_STATUS) as error:
                status = _STATUS[type(error)]
                result = {"error": {"message": str(error), "type": type(error).__name__, "code": status}}
            body = json.dumps(result).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = handle_one

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    return Handler


@contextmanager
def rest_catalogue(directory: Path) -> Iterator[str]:
    """Serve a new catalogue, and yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(_Catalogue(directory).respond))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
