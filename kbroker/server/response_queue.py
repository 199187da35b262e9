"""The answering half of a connection: what handlers give is sent in the order of the requests, no faster than the
client takes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, cast

from kbroker.api.context import PENDING, Body, Pending, RequestContext
from kbroker.common import Buffer
from kbroker.runtime.metrics import FIRST_BITS
from kbroker.server.fair_scheduler import HEAVY_NS
from kbroker.server.file_response import FileResponseWriter
from kbroker.storage.log.file_slice import FileSlice
from kbroker.storage.log.reading import BULK_BYTES

if TYPE_CHECKING:
    from kbroker.server.socket_server import SocketServer

_RESPONSE = Struct(">ii")
_JOIN_BELOW = 4096
# Produce and Fetch, by their keys.
LAST_OF_DATA = 1


class ResponseQueue(asyncio.BufferedProtocol):
    """What `Connection` is besides taking frames."""

    __slots__ = ("_paused", "_pending", "_sending", "_serving", "_transport", "_unsent", "_waiting_on", "server")

    def __init__(self, server: SocketServer) -> None:
        self.server = server
        # None before it is connected and as soon as it is closed, by whichever side.
        self._transport: asyncio.Transport | None = None
        # Requests that are not answered yet, or whose answers wait for those before them.
        self._pending: deque[RequestContext] = deque()
        # The one of them that lets nothing more be served until it is answered.
        self._waiting_on: RequestContext | None = None
        # The answer that is being read while it is sent; those after it wait.
        self._sending: FileResponseWriter | None = None
        self._paused = False
        # A frame is being served, and what is answered now is answered at once.
        self._serving = False
        # Bytes of answers that the server has counted.
        self._unsent = 0

    def _continue_soon(self) -> None:
        """Something that blocked is over: serve on, but not now."""
        raise NotImplementedError

    def close(self, reason: str, context: RequestContext | None = None, **detail: object) -> None:
        raise NotImplementedError

    def _failed(self, error: Exception, context: RequestContext | None) -> None:
        """A request cannot be read, or met a mistake of ours: close."""
        raise NotImplementedError

    # What the client takes.

    def pause_writing(self) -> None:
        """The client does not read as fast as it asks: serve nothing more for it until it has."""
        self._paused = True
        self._count_unsent()
        if self._sending is not None:
            self._sending.paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._count_unsent()
        if self._sending is not None:
            self._sending.paused = False
            self._sending.go_on()
        else:
            self._continue_soon()

    def _count_unsent(self) -> None:
        transport = self._transport
        size = transport.get_write_buffer_size() if transport is not None and self._paused else 0
        self.server.unsent(size - self._unsent)
        self._unsent = size

    # What handlers give.

    def _take_result(self, context: RequestContext, result: object, overlaps: bool) -> None:
        if result is None:
            return
        if result is PENDING:
            if context.body is not None:
                # It was answered while its handler still ran.
                self._deliver(context)
                return
            self._pending.append(context)
            if not overlaps:
                self._waiting_on = context
            return
        if isinstance(result, bytes | list):
            context.body = result
            self._deliver(context)
            return
        self._pending.append(context)
        self._waiting_on = context
        self.server.spawn(self._await(context, cast("Awaitable[Body | Pending | None]", result)))

    async def _await(self, context: RequestContext, result: Awaitable[Body | Pending | None]) -> None:
        try:
            body = await result
        except Exception as error:
            self._failed(error, context)
            return
        if body is None:
            self._unanswered(context)
        elif not isinstance(body, Pending):
            context.respond(body)

    def _unanswered(self, context: RequestContext) -> None:
        """It is through, and gets no answer."""
        if self._transport is not None:
            self._pending.remove(context)
            self._waiting_on = None
            self._write_pending()
            self._continue_soon()

    @property
    def waiting(self) -> bool:
        """Whether an answer is owed: such a connection is not idle."""
        return bool(self._pending) or self._sending is not None

    def _stop_answering(self) -> None:
        """Nothing is answered from now on, and handlers need not wait for anything any more."""
        self._paused = False
        if self._sending is not None:
            self._sending.stop()
            self._sending = None
        self._count_unsent()
        self._waiting_on = None
        pending, self._pending = self._pending, deque()
        for context in pending:
            if context.body is None and context.on_abandoned is not None:
                context.on_abandoned()

    # What is sent.

    def _write_pending(self) -> None:
        while self._sending is None and self._pending and self._pending[0].body is not None:
            self._write(self._pending.popleft())

    def _deliver(self, context: RequestContext) -> None:
        if self._pending or self._sending is not None:
            self._pending.append(context)
        else:
            self._write(context)

    def _write(self, context: RequestContext) -> None:
        transport, body = self._transport, context.body
        if transport is None or body is None:
            return
        entry = context.entry
        tag = b"\0" if entry.tagged_response_header else b""
        if isinstance(body, bytes):
            size = len(body) + 4 + len(tag)
            transport.write(_RESPONSE.pack(size, context.correlation_id) + tag + body)
        else:
            size = sum(map(len, body)) + 4 + len(tag)
            head = _RESPONSE.pack(size, context.correlation_id) + tag
            if size < _JOIN_BELOW:
                transport.write(b"".join((head, *cast("Sequence[Buffer]", body))))
            elif size < BULK_BYTES or not any(isinstance(part, FileSlice) for part in body):
                transport.writelines([head, *cast("Sequence[Buffer]", body)])
            else:
                parts = cast("Sequence[Buffer | FileSlice]", [head, *body])
                self._sending = FileResponseWriter(self.server, transport, parts, self._sent)
                self._sending.paused = self._paused
                self._sending.go_on()
        stats, ns = entry.stats, self.server.mono_ns() - context.received_ns
        stats.bytes_out += size
        stats.total_ns += ns
        stats.buckets[(ns >> FIRST_BITS).bit_length()] += 1
        if ns > HEAVY_NS and self._serving and stats.api_key > LAST_OF_DATA:
            # It was served and answered at once, so it is the loop's time.
            self.server.turns.heavy(ns)
        if self._paused:
            self._count_unsent()

    def _sent(self, error: OSError | None) -> None:
        """The answer that was read while it was sent has been written, or cannot be finished."""
        if error is not None:
            self.close("records could not be read", error=error)
            return
        self._sending = None
        self._write_pending()
        self._continue_soon()
