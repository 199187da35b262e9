"""Reused buffers for large frames of which only a part has arrived.

Allocating memory for each large request costs more than receiving it: the kernel maps and zeroes the pages, and the
frame is copied each time its buffer grows. The buffers here are as large as the largest ordinary Produce request, and
stay mapped. There are at most MAX_BUFFERS, whatever clients send. If none is free, a frame gets memory that grows with
the bytes that have arrived (receive_buffer.py). The kernel commits a page when bytes arrive in it, not before.
"""

import mmap

# max.message.bytes is 1 MiB by default; the rest is for the request around the batch.
BUFFER_BYTES = (1 << 20) + (1 << 16)
MAX_BUFFERS = 8


class FrameBuffers:
    """The free buffers. The one that was used last is taken first: its memory is in the processor's caches."""

    def __init__(self) -> None:
        self._free: list[mmap.mmap] = []
        self._created = 0

    def take(self) -> mmap.mmap | None:
        """Return a buffer of BUFFER_BYTES, or None if all are in use."""
        if self._free:
            return self._free.pop()
        if self._created == MAX_BUFFERS:
            return None
        self._created += 1
        return mmap.mmap(-1, BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def release(self, buffer: mmap.mmap) -> None:
        """Free a buffer, because its frame is complete or its connection is closed. The next `take` may return it."""
        self._free.append(buffer)
