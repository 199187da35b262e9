"""The receive buffer of one connection: an incomplete frame, and received bytes that may not be handled yet.

Its size, and that of the bytes which requests in progress hold, is counted in request_memory.py. The buffer of a frame
grows with the bytes that have arrived, whatever length the frame claims. A large frame is received into a reused buffer
if one is free (frame_buffers.py); its size is not counted.

Copying a frame of 100 MiB each time its buffer grows would keep the event loop busy for 50 ms. So from MAPPED_BYTES on,
the buffer is a memory map as long as the frame: the kernel commits a page when bytes arrive in it, and `partial_frame`
is the part of the map that is counted.
"""

from __future__ import annotations

from contextlib import suppress
from mmap import MADV_DONTNEED, MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from kbroker.common import Buffer
from kbroker.runtime.turns import yield_if_due
from kbroker.server.frame_buffers import BUFFER_BYTES

if TYPE_CHECKING:
    from kbroker.server.request_memory import RequestMemory

_LENGTH = Struct(">i")
# The end of the part of a request header that all versions share: API key, version, correlation id, client id length.
HEADER_END = 14
_FIRST_BUFFER = 16 * 1024
# The free bytes of a new buffer while memory is scarce.
_SMALL_SPARE = 1024
MAPPED_BYTES = 256 * 1024
# The most bytes that one read receives.
READ_BYTES = 1024 * 1024


def release_pages(frame: Buffer) -> None:
    """Return the memory of a frame that is not needed any more to the kernel, which takes 10 ms for 100 MB."""
    mapped = frame.obj if isinstance(frame, memoryview) else None
    if isinstance(mapped, mmap):
        for start in range(0, len(mapped), READ_BYTES):
            mapped.madvise(MADV_DONTNEED, start, min(READ_BYTES, len(mapped) - start))
            yield_if_due()


class BufferOwner(Protocol):
    """The connection that the buffer belongs to."""

    def resume_reading(self) -> None: ...

    def close(self, reason: str, context: None = None, **detail: object) -> None: ...


class ReceiveBuffer:
    """`size` bytes in total. `partial_frame` is the buffer of an incomplete frame; `filled` bytes of it have arrived.

    `needs_memory`: that buffer is full, and there is no memory for a larger one yet. `backlog`: received bytes that
    wait to be handled.
    """

    __slots__ = (
        "_held_by_requests", "_mapped", "_memory", "_owner", "_reused", "backlog", "filled", "needs_memory",
        "partial_frame", "size",
    )  # fmt: skip

    def __init__(self, owner: BufferOwner, memory: RequestMemory) -> None:
        self.size = 0
        self.partial_frame: memoryview | None = None
        # The buffer of `partial_frame`, if it is a reused one.
        self._reused: mmap | None = None
        # The map that contains `partial_frame`, if the frame is larger than reused buffers.
        self._mapped: mmap | None = None
        self.filled = 0
        self.needs_memory = False
        self.backlog = bytearray()
        self._held_by_requests = 0
        self._memory = memory
        # None once the connection is closed.
        self._owner: BufferOwner | None = owner

    # An incomplete frame.

    def free_part(self, partial_frame: memoryview) -> memoryview:
        """Return the part of the incomplete frame's buffer for the bytes that arrive next."""
        return partial_frame[self.filled : self.filled + READ_BYTES]

    def begin_frame(self, start: memoryview) -> None:
        """Copy the first bytes of a frame that is incomplete."""
        arrived = len(start)
        frame_size = 4 + _LENGTH.unpack_from(start, 0)[0] if arrived >= 4 else 4
        if arrived < HEADER_END:
            size = HEADER_END
        elif _FIRST_BUFFER < frame_size <= BUFFER_BYTES and self._take_reused():
            size = frame_size
        elif self._memory.is_scarce:
            size = arrived + _SMALL_SPARE
        else:
            size = max(_FIRST_BUFFER, 2 * arrived)
        self._move(start, min(frame_size, size))

    def grow(self) -> bool:
        """Enlarge the full buffer if there is memory for it, and resume reading."""
        partial_frame = self.partial_frame
        if partial_frame is None:
            return False
        arrived = len(partial_frame)
        frame_size: int = 4 + _LENGTH.unpack_from(partial_frame, 0)[0]
        size = min(frame_size, 2 * arrived)
        if not self._memory.may_grow(self, size - arrived, size):
            self.needs_memory = True
            return False
        if self._mapped is not None:
            self.partial_frame = memoryview(self._mapped)[:size]
            self._count()
        else:
            if size >= MAPPED_BYTES and self._reused is None:
                # Without address space for it, the frame is copied.
                with suppress(OSError):
                    self._mapped = mmap(-1, frame_size, MAP_PRIVATE | MAP_ANONYMOUS)
            self._move(partial_frame, size)
        if self.needs_memory:
            self.needs_memory = False
            if self._owner is not None:
                self._owner.resume_reading()
        return True

    def end_frame(self) -> None:
        """Release the buffer: the frame is complete, and is handled before the event loop reads anything else."""
        self.partial_frame = self._mapped = None
        self._release_reused()
        self._count()

    def _move(self, start: memoryview, size: int) -> None:
        """Copy the frame to a buffer of `size` bytes."""
        self.filled = len(start)
        view = memoryview(self._reused or self._mapped or bytearray(size))[:size]
        view[: self.filled] = start
        self.partial_frame = view
        self._count()

    def _take_reused(self) -> bool:
        self._reused = self._memory.frame_buffers.take()
        return self._reused is not None

    def _release_reused(self) -> None:
        if self._reused is not None:
            self._memory.frame_buffers.release(self._reused)
            self._reused = None

    # The backlog, and requests in progress.

    def add_to_backlog(self, view: memoryview) -> None:
        self.backlog += view
        self._count()

    def take_backlog(self) -> bytearray:
        backlog, self.backlog = self.backlog, bytearray()
        self._count()
        return backlog

    def hold(self, size: int) -> None:
        """Count `size` more bytes (fewer, if negative) of requests in progress, which may outlive the connection."""
        self._held_by_requests += size
        self._memory.in_progress_bytes += size
        self._count()

    def close_connection(self, reason: str) -> None:
        if self._owner is not None:
            self._owner.close(reason, size=self.size)

    def close(self) -> None:
        """Release the connection's bytes. Those of requests in progress are counted until the requests are done."""
        self._owner = None
        self.backlog = bytearray()
        self.partial_frame = self._mapped = None
        self._release_reused()
        self._count()
        self._memory.remove(self)

    def _count(self) -> None:
        partial = 0 if self.partial_frame is None or self._reused is not None else len(self.partial_frame)
        size = self._held_by_requests + len(self.backlog) + partial
        change, self.size = size - self.size, size
        self._memory.on_change(self, change)
