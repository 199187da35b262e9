"""The backlog of one connection: received requests that may not be handled yet, and when they are.

Requests wait for the responses of those before them, if they must not overlap with them (response_queue.py), or for
other connections (fair_scheduler.py). The bytes are in the receive buffer, which counts them. When there are many,
nothing more is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbroker.common import Buffer
from kbroker.server.fair_scheduler import LAST_DATA_API_KEY

if TYPE_CHECKING:
    import asyncio

    from kbroker.server.receive_buffer import ReceiveBuffer
    from kbroker.server.response_queue import ResponseQueue
    from kbroker.server.server_context import ServerContext

MAX_BACKLOG_BYTES = 32 * 1024
_API_KEY_END = 6


class Backlog:
    """`serve` handles the bytes that have waited. `is_reading`: false while there are too many."""

    __slots__ = ("_is_scheduled", "_received", "_responses", "_serve", "_server", "_transport", "is_reading")

    def __init__(
        self,
        server: ServerContext,
        transport: asyncio.Transport,
        received: ReceiveBuffer,
        responses: ResponseQueue,
        serve: Callable[[memoryview], None],
    ) -> None:
        self.is_reading = True
        self._server = server
        # None as soon as the connection is closed.
        self._transport: asyncio.Transport | None = transport
        self._received = received
        self._responses = responses
        self._serve = serve
        # Whether _run is scheduled.
        self._is_scheduled = False

    def must_wait(self, view: memoryview) -> bool:
        """Return whether a request has to wait; if it waits only for other connections, schedule it."""
        if self._received.backlog or (self._responses.is_blocked and not self.may_overlap(view)):
            return True
        if not self._server.scheduler.is_paused or not _is_control_request(view):
            return False
        self.schedule()
        return True

    def may_overlap(self, view: memoryview, pos: int = 0) -> bool:
        """Return whether the request that begins at `pos` may overlap with those that wait."""
        return len(view) - pos >= _API_KEY_END and self._responses.admits(view[pos + 4] << 8 | view[pos + 5])

    def add(self, view: memoryview) -> None:
        """Keep received bytes, and read no more if they are many."""
        self._received.add_to_backlog(view)
        if len(self._received.backlog) >= MAX_BACKLOG_BYTES and self.is_reading and self._transport is not None:
            self._transport.pause_reading()
            self.is_reading = False

    def on_unblocked(self) -> None:
        """Called when requests may be handled again."""
        if self._received.backlog or not self.is_reading:
            self.schedule()

    def schedule(self) -> None:
        if self._is_scheduled:
            return
        self._is_scheduled = True
        scheduler, backlog = self._server.scheduler, self._received.backlog
        if scheduler.is_paused and (not backlog or _is_control_request(backlog)):
            scheduler.call_after_pause(self._run)
        else:
            scheduler.backlogs.add(self._run)

    def _run(self) -> None:
        """Handle the bytes that have arrived meanwhile, then resume reading."""
        self._is_scheduled = False
        received = self._received
        if received.backlog and not self._responses.is_blocked and self._transport is not None:
            self._serve(memoryview(received.take_backlog()))
        is_free = not received.backlog and not self._responses.is_blocked
        if not self.is_reading and is_free and self._transport is not None:
            self.is_reading = True
            if not received.needs_memory:
                self._transport.resume_reading()

    def close(self) -> None:
        """Handle nothing more: the connection is closed."""
        self._transport = None


def _is_control_request(start: Buffer) -> bool:
    """Return whether these bytes begin a request other than Produce and Fetch."""
    return len(start) >= _API_KEY_END and (start[4] << 8 | start[5]) > LAST_DATA_API_KEY
