"""A minimal HTTP/1.1 server on the broker's event loop: GET and HEAD of a few paths, one request per connection.

The size of a request, the number of connections and the duration of a connection are bounded.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

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

    The status is 503 for a connection that is closed because there are too many.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, handlers: Mapping[str, Handler], on_error: Callable[[str, int], None]
    ) -> None:
        self._loop = loop
        self._handlers = handlers
        self._on_error = on_error
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.AbstractServer | None = None

    async def start(self, host: str | None, port: int) -> int:
        """Listen, and return the port. Raises OSError."""

        def protocol() -> asyncio.StreamReaderProtocol:
            reader = asyncio.StreamReader(MAX_REQUEST_BYTES, self._loop)
            return asyncio.StreamReaderProtocol(reader, self._on_connection, self._loop)

        server = self._server = await self._loop.create_server(protocol, host, port, start_serving=False)
        bound: int = server.sockets[0].getsockname()[1]
        await start_serving(server)
        return bound

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = writer.get_extra_info("peername")
        peer = f"{name[0]}:{name[1]}" if name else "?"
        if len(self._connections) == MAX_CONNECTIONS:
            self._on_error(peer, 503)
            writer.transport.abort()
            return
        task = self._loop.create_task(self._serve(reader, writer, peer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        # A part of the response waits for the part before it: it is written no faster than the client reads.
        writer.transport.set_write_buffer_limits(0)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                for part in await self._response(reader, peer):
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client has closed the connection, or is too slow
        finally:
            writer.transport.abort()

    async def _response(self, reader: asyncio.StreamReader, peer: str) -> Sequence[bytes]:
        """Return the response to a request, in parts. Raises IncompleteReadError."""
        method = b""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            refusal, handler = 431, None
        else:
            method, refusal, handler = self._route(head.partition(b"\r\n")[0].split(b" "))
        if handler is None:
            self._on_error(peer, refusal)
            response = text_response(refusal)
        else:
            response = await handler()
        lines = [
            f"HTTP/1.1 {response.status} {_REASONS[response.status]}",
            f"Content-Type: {response.content_type}",
            f"Content-Length: {sum(map(len, response.body))}",
            *(["Allow: GET, HEAD"] if response.status == 405 else []),
            "Connection: close\r\n\r\n",
        ]
        return ["\r\n".join(lines).encode(), *(() if method == b"HEAD" else response.body)]

    def _route(self, words: Sequence[bytes]) -> tuple[bytes, int, Handler | None]:
        """Return the method of a request line, and its handler or else the status of the response."""
        if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0") or not words[1].startswith(b"/"):
            return b"", 400, None
        handler = self._handlers.get(words[1].partition(b"?")[0].decode("latin-1"))
        if handler is None:
            return b"", 404, None
        return (words[0], 200, handler) if words[0] in (b"GET", b"HEAD") else (b"", 405, None)
