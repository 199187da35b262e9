"""The HTTP server of `kbroker start --control`: bounded JSON, for programs on this machine only.

There is no login. A web page in a browser on this machine must not reach it: a page of another origin cannot send
application/json without asking first (OPTIONS, which is refused), its requests have its origin, and after DNS rebinding
they name its host.
"""

import json
import socket
from collections.abc import Collection
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kbroker.cli.common.errors import CliError, exception_text
from kbroker.cli.start.control_calls import ROUTES, ControlCalls, field_text, parameters
from kbroker.client.producer import UnknownPartition
from kbroker.client.requests import BrokerError
from kbroker.common import format_address
from kbroker.runtime.event_log import EventLogger
from protocol.client import UnsupportedVersionError
from protocol.errors import ErrorCode

log = EventLogger("kbroker.control")

LOOPBACK = ("127.0.0.1", "localhost", "::1")
JSON = "application/json"
MAX_BODY_BYTES = 1 << 20
MAX_CONNECTIONS = 64
# A client that sends nothing for this time, in seconds, is disconnected.
TIMEOUT_S = 30
NOT_FOUND = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.GROUP_ID_NOT_FOUND})


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ControlServer(ThreadingHTTPServer):
    """`hosts`: names besides those of loopback that requests may have in Host."""

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, calls: ControlCalls, hosts: Collection[str]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.calls = calls
        self.hosts = {*LOOPBACK, *(host.lower() for host in hosts)}
        self._slots = BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((host, port), ControlRequest)

    @property
    def url(self) -> str:
        host, port, *_ = self.server_address
        return f"http://{format_address(str(host), port)}"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that has closed its connection."""


class ControlRequest(BaseHTTPRequestHandler):
    server: ControlServer
    timeout = TIMEOUT_S
    server_version, sys_version = "kbroker", ""

    def do_GET(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def _serve(self, method: str) -> None:
        try:
            self._check_sender()
            url = urlsplit(self.path)
            if (method, url.path) == ("GET", "/"):
                self._respond(200, "text/plain; charset=utf-8", page(f"http://{self.headers['Host']}"))
                return
            routes = {route.method: route for route in ROUTES if route.path == url.path}
            if not routes:
                raise Refused(404, f"there is no call {url.path}; GET / lists the calls")
            if method not in routes:
                raise Refused(405, f"{url.path} needs {' or '.join(routes)}")
            given = self._body() if method == "POST" else dict(parse_qsl(url.query, keep_blank_values=True))
            self._respond(200, JSON, json.dumps(self.server.calls(routes[method], given)))
        except Exception as error:
            status, text = failure(error)
            if status == 500:
                log.failure("control failed", error, path=self.path)
            self.send_error(status, text)

    def _check_sender(self) -> None:
        """Raise Refused for requests that come from a web page, or through a name that is not that of this machine."""
        hosts, origin = self.headers.get_all("Host", []), self.headers["Origin"]
        if len(hosts) != 1 or urlsplit(f"//{hosts[0]}").hostname not in self.server.hosts:
            raise Refused(403, f"Host {', '.join(hosts)[:100]!r} is not allowed; see --control-insecure-host")
        if origin is not None and origin != f"http://{hosts[0]}":
            raise Refused(403, f"Origin {origin[:100]!r} is not allowed")

    def _body(self) -> dict[str, Any]:
        length = self.headers["Content-Length"] or ""
        if self.headers.get_content_type() != JSON or self.headers["Content-Type"] is None:
            raise Refused(415, f"the body must have Content-Type {JSON}")
        if not (length.isascii() and length.isdigit()):
            raise Refused(411, "Content-Length is missing")
        if len(length) > 10 or int(length) > MAX_BODY_BYTES:
            raise Refused(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        data = self.rfile.read(int(length))
        if len(data) < int(length):
            raise Refused(400, "the body is not complete")
        try:
            body = json.loads(data or b"{}", parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is not valid JSON: {error}") from None
        if not isinstance(body, dict):
            raise Refused(400, "the body must be a JSON object")
        return body

    def _respond(self, status: int, content_type: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Also called by the base class, for requests that are not HTTP."""
        self._respond(code, JSON, json.dumps({"error": message or HTTPStatus(code).phrase}))

    def log_message(self, format: str, *args: object) -> None:
        log.debug("control", peer=self.address_string(), request=format % args)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def failure(error: Exception) -> tuple[int, str]:
    """Return the status and the message of the response to a call that has failed."""
    text = str(error) if isinstance(error, TimeoutError | ValueError) else exception_text(error)
    match error:
        case Refused():
            return error.status, str(error)
        case LookupError():
            return 404, str(error.args[0])
        case UnknownPartition():
            return 404, text
        case BrokerError():
            return 404 if error.code in NOT_FOUND else 409, text
        case OSError():
            return 409, text
        case CliError() | ValueError() | OverflowError() | UnsupportedVersionError():
            return 400, text
    return 500, text


def page(url: str) -> str:
    """Return the list of the calls, each with a command line."""
    lines = [f'kbroker: control of a broker inside tests, {url}. Errors are {{"error": ...}}.', ""]
    for route in ROUTES:
        fields = "".join(f"    {field_text(field)}\n" for field in parameters(route.function).values())
        is_get = route.method == "GET"
        options = route.example if is_get else f" -H 'Content-Type: {JSON}' -d '{route.example}'"
        about = (route.function.__doc__ or "").partition("\n")[0]
        quote = "'" if "&" in options else ""
        lines.append(
            f"{route.method} {route.path}: {about}\n{fields}    curl {quote}{url}{route.path}{options}{quote}\n"
        )
    return "\n".join(lines)
