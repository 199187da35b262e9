"""The answering half of a connection: what handlers give is sent in the order of the requests, no faster than the
client takes it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, cast

from kbroker.api.context import RequestContext
from kbroker.common import Buffer
from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.runtime.metrics import FIRST_BITS
from kbroker.server.fair_scheduler import HEAVY_NS
from kbroker.server.file_response import FileResponseWriter
from kbroker.storage.log.reading.file_slice import BULK_BYTES, FileSlice

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

    def _complete(self, context: RequestContext, request: Any, response: Any) -> None:
        """The response of a request that waited is there."""
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

    # What handlers return.

    def _take_result(self, context: RequestContext, request: Any, result: Any) -> None:
        handler = context.handler
        if isinstance(result, handler.response_type):
            handler.report_errors(context, request, result)
            context.body = handler.encode(result, context.version)
            self._deliver(context)
        elif result is not None:
            self._wait_for(context, request, result)

    def _wait_for(
        self, context: RequestContext, request: Any, result: DelayedResponse[Any] | Coroutine[Any, Any, Any]
    ) -> None:
        self._pending.append(context)
        overlaps = context.handler.overlaps
        is_delayed = isinstance(result, DelayedResponse)
        if not (overlaps and is_delayed):
            self._waiting_on = context
        # A request that may overlap, Produce, refers to the receive buffer, and must not be kept.
        kept = None if overlaps else request
        if isinstance(result, DelayedResponse):
            context.delayed = result
            result.on_complete(partial(self._complete, context, kept))
        else:
            self.server.spawn(self._await(context, kept, result))

    async def _await(self, context: RequestContext, request: Any, response: Awaitable[Any]) -> None:
        try:
            self._complete(context, request, await response)
        except Exception as error:
            self._failed(error, context)

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
            if context.delayed is not None:
                context.delayed.abandon()

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
        handler = context.handler
        tag = b"\0" if handler.has_flexible_response_header else b""
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
        stats, ns = handler.stats, self.server.mono_ns() - context.received_ns
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
