"""Sends a response whose records are in the log's files.

Normally the records go from the page cache to the socket without a copy (direct_send.py). Where that is not possible,
a part of the response is copied to the transport:

- Records that are not in the page cache are read in a thread.
- If the socket's buffer is full, the transport gets a small part, and pauses the connection until that is sent.
- An encrypted connection has no socket for direct sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.common import Buffer
from kbroker.server.direct_send import Part, SendState, send_parts
from kbroker.storage.log.segment import FileSlice

if TYPE_CHECKING:
    import asyncio

    from kbroker.runtime.disk import DirectSocket
    from kbroker.server.server_context import SharedContext

# At most this many bytes are sent as soon as the response is ready, and in each further piece: a little more than the
# socket's buffer usually has room for.
PIECE_BYTES = 256 * 1024
# The part that the transport gets if the socket's buffer is full.
_WAITING_BYTES = 16 * 1024


class FileResponseWriter:
    """Writes the parts of a response, file slices piece by piece, no faster than the client reads.

    The connection sets `is_paused` and calls `resume`. `on_done` is called once: with None at the end, or with the
    error that prevents it.
    """

    __slots__ = (
        "_is_scheduled", "_is_unbuffered", "_on_done", "_parts", "_server", "_socket", "_transport", "is_paused",
    )  # fmt: skip

    def __init__(
        self,
        server: SharedContext,
        transport: asyncio.Transport,
        socket: DirectSocket | None,
        parts: deque[Part],
        on_done: Callable[[OSError | None], None],
    ) -> None:
        self.is_paused = False
        self._server = server
        self._transport: asyncio.Transport | None = transport
        self._socket = socket
        self._parts = parts
        self._on_done = on_done
        # The next piece is scheduled or being read.
        self._is_scheduled = False
        # The transport pauses the connection whenever its write buffer is not empty.
        self._is_unbuffered = False

    def send_first(self) -> bool:
        """Send the first part of the response, or all of it if it is small. Returns whether that was all of it.

        Otherwise call `resume`.
        """
        if self._socket is None or self._transport is None or self._transport.get_write_buffer_size():
            return False
        return send_parts(self._socket, self._parts, PIECE_BYTES) is SendState.DONE

    def stop(self) -> None:
        """Write nothing more, because the connection is closed."""
        self._transport = None

    def resume(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._server.scheduler.response_pieces.add(self._write_piece)

    def _write_piece(self) -> None:
        self._is_scheduled = False
        transport = self._transport
        if transport is None or self.is_paused:
            return
        if self._socket is None:
            self._read_and_write(PIECE_BYTES)
            return
        if transport.get_write_buffer_size():
            self._pause_while_buffered(transport)
            if not self.is_paused:
                self._read_and_write(PIECE_BYTES)
            return
        result = send_parts(self._socket, self._parts, PIECE_BYTES)
        if result is SendState.DONE:
            self._finish(None)
        elif result is SendState.MORE:
            self.resume()
        elif result is SendState.MUST_WAIT:
            self._pause_while_buffered(transport)
            self._read_and_write(_WAITING_BYTES)
        else:
            self._read_and_write(PIECE_BYTES)

    def _pause_while_buffered(self, transport: asyncio.Transport) -> None:
        if not self._is_unbuffered:
            self._is_unbuffered = True
            transport.set_write_buffer_limits(high=0)

    def _read_and_write(self, limit: int) -> None:
        """Write the next buffers to the transport, up to PIECE_BYTES, and up to `limit` bytes of a file slice."""
        ready = self._take_buffers()
        file_slice = self._parts[0] if self._parts else None
        if isinstance(file_slice, FileSlice):
            try:
                piece = file_slice.read_nowait(limit)
            except OSError as error:
                self._finish(error)
                return
            if piece is None:
                self._write(ready)
                self._is_scheduled = True
                self._server.spawn(self._read_in_thread(file_slice))
                return
            ready.append(piece)
        self._write_and_continue(ready)

    async def _read_in_thread(self, file_slice: FileSlice) -> None:
        """Read a piece that is not in the page cache, and write it."""
        try:
            piece = await self._server.offload(file_slice.read_blocking, PIECE_BYTES)
        except OSError as error:
            if self._transport is not None:
                self._finish(error)
            return
        self._is_scheduled = False
        if self._transport is not None:
            self._write_and_continue([piece])

    def _take_buffers(self) -> list[Buffer]:
        """Remove and return the parts before the next file slice, up to about PIECE_BYTES."""
        buffers: list[Buffer] = []
        size = 0
        while self._parts and size < PIECE_BYTES:
            part = self._parts[0]
            if isinstance(part, FileSlice):
                if part:
                    break
            else:
                buffers.append(part)
                size += len(part)
            self._parts.popleft()
        return buffers

    def _write_and_continue(self, ready: list[Buffer]) -> None:
        self._write(ready + self._take_buffers())
        if not self._parts:
            self._finish(None)
        elif not self.is_paused:
            self.resume()

    def _write(self, buffers: list[Buffer]) -> None:
        if buffers and self._transport is not None:
            self._transport.writelines(buffers)

    def _finish(self, error: OSError | None) -> None:
        if self._is_unbuffered and self._transport is not None:
            self._transport.set_write_buffer_limits(high=self._server.write_high_water)
        self._on_done(error)
