"""Sends a response whose records are read from the log while it is sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kbroker.common import Buffer
from kbroker.storage.log.reading.file_slice import FileSlice

if TYPE_CHECKING:
    import asyncio

    from kbroker.server.server_context import ServerContext

# The number of bytes that are read and sent in one iteration of the event loop.
PIECE_BYTES = 512 * 1024


class FileResponseWriter:
    """Writes the parts of a response, file slices piece by piece, no faster than the client reads.

    The connection sets `is_paused` and calls `resume`. `on_done` is called once: with None, or with the error that
    prevents the response from being completed.
    """

    __slots__ = ("_is_scheduled", "_on_done", "_parts", "_server", "_transport", "is_paused")

    def __init__(
        self,
        server: ServerContext,
        transport: asyncio.Transport,
        parts: Iterable[Buffer | FileSlice],
        on_done: Callable[[OSError | None], None],
    ) -> None:
        self.is_paused = False
        self._server = server
        self._transport: asyncio.Transport | None = transport
        self._parts = deque(parts)
        self._on_done = on_done
        # Whether the next piece is scheduled or being read.
        self._is_scheduled = False

    def stop(self) -> None:
        """Write nothing more, because the connection is closed."""
        self._transport = None

    def resume(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._server.scheduler.response_pieces.add(self._write_piece)

    def _write_piece(self) -> None:
        """Write the parts up to the next file slice, and a piece of that."""
        self._is_scheduled = False
        if self._transport is None or self.is_paused:
            return
        ready = self._take_buffers()
        if self._parts:
            file_slice = self._parts[0]
            assert isinstance(file_slice, FileSlice)
            try:
                piece = file_slice.read_nowait(PIECE_BYTES)
            except OSError as error:
                self._on_done(error)
                return
            if piece is None:
                self._write(ready)
                self._is_scheduled = True
                self._server.spawn(self._read_and_write(file_slice))
                return
            ready.append(piece)
        self._write_and_continue(ready)

    async def _read_and_write(self, file_slice: FileSlice) -> None:
        """Read a piece that is not in the page cache, in a thread."""
        try:
            piece = await self._server.offload(file_slice.read_blocking, PIECE_BYTES)
        except OSError as error:
            if self._transport is not None:
                self._on_done(error)
            return
        self._is_scheduled = False
        if self._transport is not None:
            self._write_and_continue([piece])

    def _take_buffers(self) -> list[Buffer]:
        """Remove and return the parts before the next file slice."""
        buffers: list[Buffer] = []
        while self._parts:
            part = self._parts[0]
            if isinstance(part, FileSlice):
                if part:
                    break
            else:
                buffers.append(part)
            self._parts.popleft()
        return buffers

    def _write_and_continue(self, ready: list[Buffer]) -> None:
        self._write(ready + self._take_buffers())
        if self._parts:
            self.resume()
        else:
            self._on_done(None)

    def _write(self, buffers: list[Buffer]) -> None:
        if buffers and self._transport is not None:
            self._transport.writelines(buffers)
