"""The answering half of a connection: in the order of the requests, no faster than the client takes them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, cast

from kbroker.api.services import RequestContext
from kbroker.metrics import FIRST_BITS
from kbroker.model import Buffer
from kbroker.net.sending import Sending
from kbroker.net.turns import HEAVY_NS
from kbroker.storage.reading import BULK_BYTES
from kbroker.storage.slices import FileSlice

if TYPE_CHECKING:
    from kbroker.net.listener import Server

_RESPONSE = Struct(">ii")
_JOIN_BELOW = 4096
# Produce and Fetch, by their keys.
LAST_OF_DATA = 1


class Answering(asyncio.BufferedProtocol):
    """What `Connection` is besides taking frames."""

    __slots__ = ("_paused", "_pending", "_sending", "_serving", "_transport", "_unsent", "server")

    def __init__(self, server: Server) -> None:
        self.server = server
        # None before it is connected and as soon as it is closed, by whichever side.
        self._transport: asyncio.Transport | None = None
        # Requests that are not answered yet, or whose answers wait for those before them.
        self._pending: deque[RequestContext] = deque()
        # The answer that is being read while it is sent; those after it wait.
        self._sending: Sending | None = None
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
                self._sending = Sending(self.server, transport, parts, self._sent)
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
