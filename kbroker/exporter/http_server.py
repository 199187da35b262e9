"""A minimal HTTP/1.1 server on the broker's event loop: GET and HEAD of a few paths, one request per connection.

The size of a request, the number of connections and the duration of a connection are bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, cast

from kbroker.runtime.system import start_serving

MAX_REQUEST_BYTES = 8 * 1024
MAX_CONNECTIONS = 16
# The time from accepting a connection until the response is sent, in seconds.
TIMEOUT_S = 30.0

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class HttpResponse(NamedTuple):
    status: int
    content_type: str
    body: Sequence[bytes]


def text_response(status: int, text: str = "") -> HttpResponse:
    return HttpResponse(status, "text/plain; charset=utf-8", [(text or _REASONS[status]).encode() + b"\n"])


Handler = Callable[[], Awaitable[HttpResponse]]


class HttpServer:
    """`on_error` is called with (peer, status) for each error response.

    The status is 503 for a connection that is closed because there are too many."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handlers: Mapping[str, Handler], on_error: Callable[[str, int], None]
    ) -> None:
        self.loop = loop
        self.handlers = handlers
        self.on_error = on_error
        self.connections: set[HttpConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.AbstractServer | None = None

    async def start(self, host: str | None, port: int) -> int:
        """Listen, and return the port. Raises OSError."""
        server = await self.loop.create_server(lambda: HttpConnection(self), host, port, start_serving=False)
        self._server = server
        bound: int = server.sockets[0].getsockname()[1]
        await start_serving(server)
        return bound

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class HttpConnection(asyncio.Protocol):
    __slots__ = (
        "_deadline",
        "_has_request",
        "_paused",
        "_received",
        "_scheduled",
        "_server",
        "_transport",
        "_unsent",
        "peer",
    )

    def __init__(self, server: HttpServer) -> None:
        self.peer = "?"
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._has_request = False
        # The remaining parts. One part is written per iteration of the event loop, no faster than the client reads.
        self._unsent: deque[bytes] = deque()
        self._paused = False
        self._scheduled = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = f"{peer[0]}:{peer[1]}"
        self._server.connections.add(self)
        self._deadline = self._server.loop.call_later(TIMEOUT_S, self.abort)
        if len(self._server.connections) > MAX_CONNECTIONS:
            self._has_request = True
            self._server.on_error(self.peer, 503)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.connections.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._has_request:
            return
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if max(end, 0) > MAX_REQUEST_BYTES or (end < 0 and len(self._received) > MAX_REQUEST_BYTES):
            self._respond_error(431)
        elif end >= 0:
            self._handle(bytes(self._received[:end]))

    def _handle(self, head: bytes) -> None:
        parts = head.partition(b"\r\n")[0].split(b" ")
        if len(parts) != 3 or parts[2] not in (b"HTTP/1.1", b"HTTP/1.0") or not parts[1].startswith(b"/"):
            self._respond_error(400)
            return
        method, target, _ = parts
        handler = self._server.handlers.get(target.partition(b"?")[0].decode("latin-1"))
        if handler is None:
            self._respond_error(404)
        elif method not in (b"GET", b"HEAD"):
            self._respond_error(405)
        else:
            self._has_request = True
            task = self._server.loop.create_task(self._serve(handler, method == b"HEAD"))
            self._server.tasks.add(task)
            task.add_done_callback(self._server.tasks.discard)

    def _respond_error(self, status: int) -> None:
        self._has_request = True
        self._server.on_error(self.peer, status)
        self._respond(text_response(status), False)

    async def _serve(self, handler: Handler, head_only: bool) -> None:
        self._respond(await handler(), head_only)

    def _respond(self, response: HttpResponse, head_only: bool) -> None:
        transport = self._transport
        if transport is None:
            return
        size = sum(map(len, response.body))
        head = (
            f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\n"
            f"Content-Type: {response.content_type}\r\n"
            f"Content-Length: {size}\r\n"
            f"{'Allow: GET, HEAD' + chr(13) + chr(10) if response.status == 405 else ''}"
            "Connection: close\r\n\r\n"
        ).encode()
        self._unsent.append(head)
        if not head_only:
            self._unsent.extend(response.body)
        self._write()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._write_soon()

    def _write_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._server.loop.call_soon(self._write)

    def _write(self) -> None:
        self._scheduled = False
        transport = self._transport
        if transport is None or self._paused or transport.is_closing():
            return
        if self._unsent:
            transport.write(self._unsent.popleft())
        if not self._unsent:
            transport.close()
        elif not self._paused:
            self._write_soon()
