"""A connection without a server: a fake transport, and a fake server whose handlers the test controls."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from struct import Struct
from types import SimpleNamespace
from typing import Any, cast

from kbroker.api.context import ApiHandler, Identity, Overlap, RequestContext
from kbroker.api.dispatch import Dispatch, UnsupportedRequest
from kbroker.api.response_errors import no_failed_response
from kbroker.quotas.client_quotas import ClientQuotaManager, QuotaWindows
from kbroker.quotas.entities import QuotaEntity, Quotas
from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.runtime.metrics import RequestStats
from kbroker.server.connection import Connection
from kbroker.server.error_reporter import ErrorReporter
from kbroker.server.fair_scheduler import FairScheduler
from kbroker.server.request_memory import RequestMemory
from kbroker.server.server_context import ServerContext
from protocol.errors import MalformedError

HEADER = Struct(">ihhih")
# The fake APIs. ECHO and PARTS (in two buffers) respond at once; DELAYED, OVERLAPPING (as Produce) and SHARING (as
# OffsetCommit) return a DelayedResponse, COROUTINE a coroutine; NO_RESPONSE returns None; EXPENSIVE takes 10 ms.
ECHO, DELAYED, OVERLAPPING, COROUTINE, MALFORMED, FAILING, NO_RESPONSE, PARTS, EXPENSIVE, CHEAP, SHARING = range(11)
OVERLAPS = {OVERLAPPING: Overlap.ANY, SHARING: Overlap.SAME_API}
UNSUPPORTED = 99
MAX_FRAME = 100_000
# uv__read() of libuv.
UVLOOP_READS = 32


class DispatchTo(Dispatch):
    """Handlers that a function returns."""

    def __init__(self, find: Callable[[int, int], ApiHandler]) -> None:
        super().__init__({})
        self._find = find

    def __missing__(self, key: tuple[int, int]) -> ApiHandler:
        return self._find(*key)


class FakeTransport:
    """A transport. `is_full`: the client does not read, so written bytes stay in the buffer. `writes`: how often it was
    written to."""

    def __init__(self) -> None:
        self.protocol: Connection
        self.written = bytearray()
        self.writes = 0
        self.buffered = 0
        self.is_full = False
        self.is_reading = True
        self.closed = ""
        self.high_water = 0

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("10.0.0.7", 5000)

    def set_write_buffer_limits(self, high: int) -> None:
        self.high_water = high

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data
        self.writes += 1
        if self.is_full:
            before, self.buffered = self.buffered, self.buffered + len(data)
            if before <= self.high_water < self.buffered:
                self.protocol.pause_writing()

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def drain(self) -> None:
        """Let the client read everything."""
        was_paused, self.buffered, self.is_full = self.buffered > self.high_water, 0, False
        if was_paused:
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = "aborted"


class FakeServer:
    """A fake of ServerContext and SocketServer. `run` makes the calls of `call_soon`."""

    def __init__(self) -> None:
        self.receive_view = memoryview(bytearray(64 * 1024))
        self.small_receive_view = self.receive_view[: 8 * 1024]
        self.write_high_water = 1000
        self.max_gathered_bytes = 300
        self.max_request_bytes = MAX_FRAME
        self.services = SimpleNamespace(authorizer=None)
        self.identity = Identity("PLAINTEXT")
        self.client_quotas: dict[QuotaEntity, Quotas] = {}
        self.quotas = ClientQuotaManager(self.client_quotas, QuotaWindows())
        self.dispatch = DispatchTo(self.find)
        self.unsent_bytes = 0
        self.connections: list[Connection] = []
        self.calls_soon: list[Callable[[], None]] = []
        self.timers: list[Callable[[], None]] = []
        self.other_timers: list[Callable[[], None]] = []
        self.tasks: list[Coroutine[Any, Any, None]] = []
        # (correlation id, what the handler returned)
        self.delayed: list[tuple[int, DelayedResponse[bytes]]] = []
        self.handled: list[bytes] = []
        self.now_ns = 0
        self.stats: dict[int, RequestStats] = {}
        # Every read of the time of the last Produce or Fetch returns a later one.
        self.data_time_ns = count(1)
        self.scheduler = FairScheduler(self.call_soon, self.call_later, lambda: next(self.data_time_ns))
        self.memory = RequestMemory(self.call_soon, self._other_timer, self.mono_ns)
        self.errors = ErrorReporter(lambda: self.now_ns // 1_000_000, self._other_timer)

    def mono_ns(self) -> int:
        return self.now_ns

    def on_open(self, connection: Connection) -> None:
        self.connections.append(connection)

    def on_close(self, connection: Connection) -> None:
        self.connections.remove(connection)

    def direct_socket(self, transport: Any) -> None:
        """A fake transport has no socket."""

    def count_unsent(self, change: int) -> None:
        self.unsent_bytes += change

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.calls_soon.append(callback)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Any:
        self.timers.append(callback)
        return SimpleNamespace(cancel=lambda: self.timers.remove(callback))

    def _other_timer(self, seconds: float, callback: Callable[[], None]) -> Any:
        """Start a timer of the request memory or the error reporter."""
        self.other_timers.append(callback)
        return SimpleNamespace(cancel=lambda: self.other_timers.remove(callback))

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(coroutine)

    def run_task(self) -> None:
        """Run the last coroutine to its end."""
        asyncio.run(self.tasks.pop())
        self.run()

    def run(self) -> None:
        while self.calls_soon:
            self.calls_soon.pop(0)()

    # The APIs.

    def find(self, key: int, version: int) -> ApiHandler:
        if key == UNSUPPORTED:
            raise UnsupportedRequest("API not served", key, version)
        return ApiHandler(
            decode=lambda frame, pos, version: bytes(frame[pos:]),
            handle=self.handle,
            fail=no_failed_response,
            encode=lambda response, version: [response[:1], response[1:]] if key == PARTS else response,
            append=lambda response, version, out, pause: out.append(response),
            report_errors=lambda context, request, response: False,
            response_type=bytes,
            stats=self.stats.setdefault(key, RequestStats(key, 0)),
            is_flexible=False,
            has_flexible_response_header=version > 0,
            overlap=OVERLAPS.get(key, Overlap.NONE),
            is_large_by_size=False,
        )

    def handle(self, services: object, context: RequestContext, request: bytes) -> Any:
        self.handled.append(request)
        match context.api_key:
            case 0 | 7 | 9:
                return request
            case 1 | 2 | 10:
                delayed: DelayedResponse[bytes] = DelayedResponse()
                self.delayed.append((context.correlation_id, delayed))
                return delayed
            case 3:
                return self.coroutine(request)
            case 4:
                raise MalformedError("bad body")
            case 5:
                raise KeyError("a bug")
            case 8:
                self.now_ns += 10_000_000
                return request
        return None

    async def coroutine(self, request: bytes) -> bytes | None:
        if request == b"bad":
            raise MalformedError("bad later")
        if request == b"bug":
            raise KeyError("a bug")
        return None if request == b"no response" else request

    def respond(self, number: int = 0, response: bytes | None = None) -> None:
        """Complete the response of a delayed request."""
        correlation_id, delayed = self.delayed.pop(number)
        delayed.complete(b"late %d" % correlation_id if response is None else response)


class ConnectionUnderTest:
    """The client: `frame` encodes a request, `receive` delivers bytes, `responses` parses the written bytes."""

    def __init__(self, server: FakeServer | None = None) -> None:
        self.server = server or FakeServer()
        self.transport = FakeTransport()
        self.connection = Connection(cast(ServerContext, self.server), self.server)
        self.transport.protocol = self.connection
        self.connection.connection_made(cast(asyncio.Transport, self.transport))
        self.last_correlation_id = 0

    def frame(self, api: int, body: bytes = b"", client: bytes | None = b"me", version: int = 0) -> bytes:
        self.last_correlation_id += 1
        size = -1 if client is None else len(client)
        rest = (client or b"") + body
        return HEADER.pack(10 + len(rest), api, version, self.last_correlation_id, size) + rest

    def receive(self, data: bytes, max_read_bytes: int = 1 << 30) -> None:
        """Deliver bytes, at most `most` in one read."""
        pos = 0
        while pos < len(data):
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), max_read_bytes, len(data) - pos)
            buffer[:size] = data[pos : pos + size]
            # The buffer is shared: after the call its content may not be used.
            self.connection.buffer_updated(size)
            self.server.receive_view[:] = b"\xee" * len(self.server.receive_view)
            pos += size
            # The next bytes arrive in another iteration of the event loop.
            if self.connection.resume_reading in self.server.calls_soon:
                self.server.calls_soon.remove(self.connection.resume_reading)
                self.connection.resume_reading()

    def receive_as_uvloop(self, data: memoryview) -> int:
        """Deliver the bytes that one iteration of uvloop reads; return how many. It reads again if a buffer is full."""
        pos = 0
        for _ in range(UVLOOP_READS):
            if not self.transport.is_reading or pos == len(data):
                break
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), len(data) - pos)
            buffer[:size] = data[pos : pos + size]
            self.connection.buffer_updated(size)
            pos += size
            if size < len(buffer):
                break
        return pos

    def responses(self) -> list[tuple[int, bytes]]:
        """Return (correlation id, body) of the responses that were written."""
        data, frames = bytes(self.transport.written), []
        while data:
            size, number = Struct(">ii").unpack_from(data)
            assert len(data) >= 4 + size
            frames.append((number, data[8 : 4 + size]))
            data = data[4 + size :]
        return frames

    def bodies(self) -> list[bytes]:
        return [body for _, body in self.responses()]
