"""What one connection keeps in memory, counted with that of all others (memory.py): a frame that is not whole yet, what
arrives while nothing may be served, and what requests keep that are being served.

The buffer of a frame grows with what has arrived, never with what its length claims.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.server.connection import Connection
    from kbroker.server.request_memory import RequestMemory

_LENGTH = Struct(">i")
# Where the part of a request's header ends that always looks the same: its client id's size is the last of it.
HEADER_END = 14
_FIRST_BUFFER = 16 * 1024
_SPARE_WHILE_SCARCE = 1024


class ReceiveBuffer:
    """`size` bytes in all. `partial` is the buffer of the frame that is not whole, of which `filled` bytes have
    arrived; `starved`: it is full, and there is no memory for more of it now. `backlog` waits to be served."""

    __slots__ = ("_memory", "_owner", "_working", "backlog", "filled", "partial", "size", "starved")

    def __init__(self, owner: Connection, memory: RequestMemory) -> None:
        self.size = 0
        self.partial: memoryview | None = None
        self.filled = 0
        self.starved = False
        self.backlog = bytearray()
        self._working = 0
        self._memory = memory
        # None when it is closed.
        self._owner: Connection | None = owner

    # A frame that is not whole.

    def begin(self, start: memoryview) -> None:
        """Keep the beginning of a frame, as far as it has arrived."""
        have = len(start)
        need = 4 + _LENGTH.unpack_from(start, 0)[0] if have >= 4 else 4
        if have < HEADER_END:
            room = HEADER_END
        else:
            room = have + _SPARE_WHILE_SCARCE if self._memory.scarce else max(_FIRST_BUFFER, 2 * have)
        self._move(start, min(need, room))

    def grow(self) -> bool:
        """Make its full buffer larger, if there is memory for it, and read on."""
        partial = self.partial
        if partial is None:
            return False
        have = len(partial)
        size = min(4 + _LENGTH.unpack_from(partial, 0)[0], 2 * have)
        if not self._memory.may_grow(self, size - have, size):
            self.starved = True
            return False
        self._move(partial, size)
        if self.starved:
            self.starved = False
            if self._owner is not None:
                self._owner.read_on()
        return True

    def end(self) -> None:
        """It is whole, and no longer kept."""
        self.partial = None
        self._count()

    def _move(self, start: memoryview, size: int) -> None:
        """To a buffer of `size` bytes."""
        self.filled = len(start)
        buffer = bytearray(size)
        buffer[: self.filled] = start
        self.partial = memoryview(buffer)
        self._count()

    # The rest.

    def keep(self, view: memoryview) -> None:
        """It has arrived and may not be served yet."""
        self.backlog += view
        self._count()

    def take_backlog(self) -> bytearray:
        backlog, self.backlog = self.backlog, bytearray()
        self._count()
        return backlog

    def work(self, size: int) -> None:
        """Requests that are being served keep `size` bytes more, or less if it is negative."""
        self._working += size
        self._memory.working += size
        self._count()

    def close(self, reason: str) -> None:
        """Close the connection, for what it holds."""
        if self._owner is not None:
            self._owner.close(reason, size=self.size)

    def drop(self) -> None:
        """The connection is closed. What its requests in progress hold is counted until they end."""
        self._owner = None
        self.backlog = bytearray()
        self.partial = None
        self._count()
        self._memory.forget(self)

    def _count(self) -> None:
        size = self._working + len(self.backlog) + (0 if self.partial is None else len(self.partial))
        by, self.size = size - self.size, size
        self._memory.changed(self, by)
