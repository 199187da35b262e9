"""A schema registry with the part of Confluent's REST API that readers use."""

import base64
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeRegistry:
    """Its schemas, by id and by subject and version."""

    def __init__(self) -> None:
        self.url = ""
        self.user = ""  # USER:PASSWORD that requests must have
        self.requests: list[str] = []
        self.raw_body: bytes | None = None  # the response to every request, if set
        self._responses: dict[str, dict[str, Any]] = {}

    def register(self, schema: str, kind: str = "AVRO", subject: str = "s", references: Sequence[Any] = ()) -> int:
        """Add a schema; return its id, which is also its version."""
        number = len(self._responses) // 2 + 1
        body = {"schema": schema, "id": number, "references": list(references)}
        if kind != "AVRO":
            body["schemaType"] = kind
        self._responses[f"/schemas/ids/{number}"] = body
        self._responses[f"/subjects/{subject}/versions/{number}"] = body
        return number

    def respond(self, path: str, authorization: str) -> tuple[int, bytes]:
        """Return status and body."""
        self.requests.append(path)
        if self.raw_body is not None:
            return 200, self.raw_body
        if self.user and authorization != f"Basic {base64.b64encode(self.user.encode()).decode()}":
            return 401, b'{"error_code": 401, "message": "Unauthorized"}'
        body = self._responses.get(path.partition("?")[0])
        if body is None:
            return 404, b'{"error_code": 40403, "message": "Schema not found"}'
        return 200, json.dumps(body).encode()


@contextmanager
def running_registry() -> Iterator[FakeRegistry]:
    """Serve a registry on a free port of the loopback interface."""
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        """Serves GET."""

        def do_GET(self) -> None:
            status, body = registry.respond(self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
