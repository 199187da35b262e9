"""Both ends of one connection, with a socket and a dispatch table of the tests' own."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from struct import Struct
from types import SimpleNamespace
from typing import Any, cast

from kbroker.api.context import ApiHandler, RequestContext
from kbroker.api.dispatch import UnsupportedRequest
from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.runtime.metrics import RequestStats
from kbroker.server.connection import Connection
from kbroker.server.error_reporter import ErrorReporter
from kbroker.server.fair_scheduler import FairScheduler
from kbroker.server.request_memory import RequestMemory
from kbroker.server.socket_server import SocketServer
from protocol.errors import MalformedError

HEADER = Struct(">ihhih")
# The APIs: respond at once, later (alone, or overlapping as Produce does), by a coroutine, not at all, or fail.
ECHO, LATER, OVERLAP, AWAIT, MALFORMED, FAIL, SILENT, PARTS = range(8)
MAX_FRAME = 100_000


class Socket:
    """The transport: what was written, whether reading goes on. It takes `room` bytes before it is full."""

    def __init__(self) -> None:
        self.protocol: Connection
        self.written = bytearray()
        self.unsent = 0
        self.full = False
        self.reading = True
        self.closed = ""
        self.high = 0

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("10.0.0.7", 5000)

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data
        if self.full:
            before, self.unsent = self.unsent, self.unsent + len(data)
            if before <= self.high < self.unsent:
                self.protocol.pause_writing()

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def drain(self) -> None:
        """The client has read everything."""
        was_paused, self.unsent, self.full = self.unsent > self.high, 0, False
        if was_paused:
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = "aborted"


class Desk:
    """The server: a dispatch table, a queue of callbacks, counts."""

    def __init__(self) -> None:
        self.receive_view = memoryview(bytearray(64 * 1024))
        self.small_receive_view = self.receive_view[: 8 * 1024]
        self.write_high_water = 1000
        self.max_request_bytes = MAX_FRAME
        self.services = None
        self.dispatch = SimpleNamespace(find=self.find)
        self.unsent_bytes = 0
        self.connections: list[Connection] = []
        self.queue: list[Callable[[], None]] = []
        self.delayed: list[Callable[[], None]] = []
        self.tasks: list[Coroutine[Any, Any, None]] = []
        self.waiting: list[tuple[int, DelayedResponse[bytes]]] = []
        self.served: list[bytes] = []
        self.now = 0
        self.windows: list[Callable[[], None]] = []
        self.stats: dict[int, RequestStats] = {}
        # How often a Produce or a Fetch is taken to have been answered, each time one looks.
        self.data = count(1)
        self.turns = FairScheduler(self.soon, self.later, lambda: next(self.data))
        self.memory = RequestMemory(self.soon, self.window, self.mono_ns)
        self.refusals = ErrorReporter(lambda: self.now // 1_000_000, self.window)

    def mono_ns(self) -> int:
        return self.now

    def opened(self, connection: Connection) -> None:
        self.connections.append(connection)

    def closed(self, connection: Connection) -> None:
        self.connections.remove(connection)

    def unsent(self, size: int) -> None:
        self.unsent_bytes += size

    def soon(self, callback: Callable[[], None]) -> None:
        self.queue.append(callback)

    def later(self, seconds: float, callback: Callable[[], None]) -> Any:
        self.delayed.append(callback)
        return SimpleNamespace(cancel=lambda: self.delayed.remove(callback))

    def window(self, seconds: float, callback: Callable[[], None]) -> Any:
        """The end of a window of refusals."""
        self.windows.append(callback)
        return SimpleNamespace(cancel=lambda: self.windows.remove(callback))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(work)

    def run_task(self) -> None:
        """Run a coroutine that a handler returned to its end."""
        asyncio.run(self.tasks.pop())
        self.run()

    def run(self) -> None:
        while self.queue:
            self.queue.pop(0)()

    # The APIs: each answers with what it was sent.

    def find(self, key: int, version: int) -> ApiHandler:
        if key == 99:
            raise UnsupportedRequest("API not served", key, version)
        return ApiHandler(
            decode=lambda frame, pos, version: bytes(frame[pos:]),
            handle=self.handle,
            encode=lambda response, version: [response[:1], response[1:]] if key == PARTS else response,
            report_errors=lambda context, request, response: None,
            response_type=bytes,
            stats=self.stats.setdefault(key, RequestStats(key, 0)),
            is_flexible=False,
            has_flexible_response_header=version > 0,
            overlaps=key == OVERLAP,
        )

    def handle(self, services: object, context: RequestContext, request: bytes) -> Any:
        self.served.append(request)
        match context.api_key:
            case 0 | 7 | 9:
                return request
            case 1 | 2:
                delayed: DelayedResponse[bytes] = DelayedResponse()
                self.waiting.append((context.correlation_id, delayed))
                return delayed
            case 3:
                return self.eventually(request)
            case 4:
                raise MalformedError("bad body")
            case 5:
                raise KeyError("a mistake of ours")
            case 8:
                # Heavy: it takes 10 ms.
                self.now += 10_000_000
                return request
        return None

    async def eventually(self, request: bytes) -> bytes | None:
        if request == b"bad":
            raise MalformedError("bad later")
        if request == b"mistake":
            raise KeyError("a mistake of ours")
        return None if request == b"silent" else request

    def respond(self, number: int = 0, response: bytes | None = None) -> None:
        """Complete a response that a handler delayed."""
        correlation_id, delayed = self.waiting.pop(number)
        delayed.complete(b"late %d" % correlation_id if response is None else response)


class Wire:
    """One connection, with both its ends in hand."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.socket = Socket()
        self.connection = Connection(cast(SocketServer, self.desk))
        self.socket.protocol = self.connection
        self.connection.connection_made(cast(asyncio.Transport, self.socket))
        self.sent = 0

    def frame(self, api: int, body: bytes = b"", client: bytes | None = b"me", version: int = 0) -> bytes:
        self.sent += 1
        size = -1 if client is None else len(client)
        rest = (client or b"") + body
        return HEADER.pack(10 + len(rest), api, version, self.sent, size) + rest

    def receive(self, data: bytes, most: int = 1 << 30) -> None:
        """Bytes arrive, at most so many in one read, as the transport would hand them over."""
        pos = 0
        while pos < len(data):
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), most, len(data) - pos)
            buffer[:size] = data[pos : pos + size]
            # The buffer is shared: what was given must not be looked at again.
            self.connection.buffer_updated(size)
            self.desk.receive_view[:] = b"\xee" * len(self.desk.receive_view)
            pos += size

    def answers(self) -> list[tuple[int, bytes]]:
        """(correlation id, body) of what was written, which ends with a whole frame."""
        data, found = bytes(self.socket.written), []
        while data:
            size, number = Struct(">ii").unpack_from(data)
            assert len(data) >= 4 + size
            found.append((number, data[8 : 4 + size]))
            data = data[4 + size :]
        return found
