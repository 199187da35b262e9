"""An answer whose records are read from the log while it is sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kbroker.common import Buffer
from kbroker.storage.log.reading.file_slice import FileSlice

if TYPE_CHECKING:
    import asyncio

    from kbroker.server.socket_server import SocketServer

# So much is read and written in one turn of the loop: others get theirs between.
PIECE_BYTES = 512 * 1024


class FileResponseWriter:
    """Writes the parts of an answer, those of files piece by piece, no faster than the client takes them.

    `paused` is kept by the connection, which calls `go_on` when that ends. `done` is called once, with None or with
    the error that keeps the answer from being finished.
    """

    __slots__ = ("_busy", "_done", "_parts", "_server", "_transport", "paused")

    def __init__(
        self,
        server: SocketServer,
        transport: asyncio.Transport,
        parts: Iterable[Buffer | FileSlice],
        done: Callable[[OSError | None], None],
    ) -> None:
        self.paused = False
        self._server = server
        self._transport: asyncio.Transport | None = transport
        self._parts = deque(parts)
        self._done = done
        # The next step is planned or under way.
        self._busy = False

    def stop(self) -> None:
        """The connection is gone."""
        self._transport = None

    def go_on(self) -> None:
        if not self._busy:
            self._busy = True
            self._server.turns.pieces.add(self.step)

    def step(self) -> None:
        """Write what is in memory up to the next part of a file, and a piece of that."""
        self._busy = False
        if self._transport is None or self.paused:
            return
        ready = self._in_memory()
        if self._parts:
            part = self._parts[0]
            assert isinstance(part, FileSlice)
            try:
                piece = part.read_nowait(PIECE_BYTES)
            except OSError as error:
                self._done(error)
                return
            if piece is None:
                self._write(ready)
                self._busy = True
                self._server.spawn(self._step_cold(part))
                return
            ready.append(piece)
        self._written(ready)

    async def _step_cold(self, part: FileSlice) -> None:
        try:
            piece = await self._server.offload(part.read_blocking, PIECE_BYTES)
        except OSError as error:
            if self._transport is not None:
                self._done(error)
            return
        self._busy = False
        if self._transport is not None:
            self._written([piece])

    def _in_memory(self) -> list[Buffer]:
        ready: list[Buffer] = []
        while self._parts:
            part = self._parts[0]
            if isinstance(part, FileSlice):
                if part:
                    break
            else:
                ready.append(part)
            self._parts.popleft()
        return ready

    def _written(self, ready: list[Buffer]) -> None:
        """Write these and what is in memory after them; then the next piece has its turn, if there is one."""
        self._write(ready + self._in_memory())
        if self._parts:
            self.go_on()
        else:
            self._done(None)

    def _write(self, ready: list[Buffer]) -> None:
        if ready and self._transport is not None:
            self._transport.writelines(ready)
