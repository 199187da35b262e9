"""Bounds the memory of requests that are not handled yet, over all connections.

A client may announce many large requests and send only the first bytes of each. So the buffers of frames grow as the
bytes arrive (receive_buffer.py), freely up to LIMIT bytes in total. Beyond that only small frames and the frame of one
favoured connection grow, so that there is always a request that can be completed. The broker does not read from the
other connections until there is memory for them. While any of them waits, connections whose frame takes longer than
MAX_FRAME_S to arrive are closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kbroker.server.frame_buffers import FrameBuffers

if TYPE_CHECKING:
    from asyncio import TimerHandle

LIMIT = 16 * 1024 * 1024
# Memory beyond LIMIT, only for frames of at most SMALL_FRAME bytes.
SMALL_FRAME_RESERVE = 8 * 1024 * 1024
SMALL_FRAME = 64 * 1024
# The time that a client has to send a frame: 30 seconds, plus a second for each MiB.
MAX_FRAME_S = 30.0
MIN_BYTES_PER_S = 1024 * 1024
SWEEP_S = 1.0


class MemoryHolder(Protocol):
    """The receive buffer of a connection. `size` bytes are held; `partial_frame` is None if no frame is incomplete."""

    @property
    def size(self) -> int: ...

    @property
    def partial_frame(self) -> memoryview | None: ...

    def grow(self) -> bool: ...

    def close_connection(self, reason: str) -> None: ...


class RequestMemory:
    """Counts what receive buffers hold, and decides which of them may grow."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], TimerHandle],
        mono_ns: Callable[[], int],
    ) -> None:
        # They have their own bound, and are not part of `held_bytes`.
        self.frame_buffers = FrameBuffers()
        self.held_bytes = 0
        # Whether LIMIT is exceeded: connections then read few bytes at a time.
        self.is_scarce = False
        # The part of `held_bytes` that requests in progress hold. It is released when they are done.
        self.in_progress_bytes = 0
        self._call_soon = call_soon
        self._call_later = call_later
        self._mono_ns = mono_ns
        # The holder that may grow beyond the limit.
        self._favoured: MemoryHolder | None = None
        # The holders that wait to grow, in order of arrival.
        self._waiting: dict[MemoryHolder, None] = {}
        # The time at which each incomplete frame began (monotonic).
        self._frame_start_ns: dict[MemoryHolder, int] = {}
        self._timer: TimerHandle | None = None

    def may_grow(self, holder: MemoryHolder, more: int, size: int) -> bool:
        """Return whether a frame's buffer may grow by `more` to `size` bytes; if not, its `grow` is called later."""
        if self._is_allowed(holder, more, size):
            self._waiting.pop(holder, None)
            return True
        self._waiting.setdefault(holder)
        if self._timer is None:
            self._timer = self._call_later(SWEEP_S, self._close_slow)
        return False

    def _is_allowed(self, holder: MemoryHolder, more: int, size: int) -> bool:
        held_bytes = self.held_bytes + more - (0 if self._favoured is None else self._favoured.size)
        if held_bytes <= LIMIT or (size <= SMALL_FRAME and held_bytes <= LIMIT + SMALL_FRAME_RESERVE):
            return True
        if self._favoured is None and self.in_progress_bytes <= LIMIT:
            self._favoured = holder
        return self._favoured is holder

    def on_change(self, holder: MemoryHolder, change: int) -> None:
        """Called when a holder has `change` more bytes (fewer, if negative)."""
        self.held_bytes += change
        self.is_scarce = self.held_bytes > LIMIT
        if holder.partial_frame is not None:
            self._frame_start_ns.setdefault(holder, self._mono_ns())
        else:
            self._frame_start_ns.pop(holder, None)
            if self._favoured is holder:
                self._favoured = None
        if change < 0 and self._waiting:
            self._call_soon(self._grow_waiting)

    def remove(self, holder: MemoryHolder) -> None:
        """Called when the holder's connection is closed."""
        self._waiting.pop(holder, None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _grow_waiting(self) -> None:
        """Grow the waiting buffers in order, until one of them may not grow."""
        while self._waiting:
            if not next(iter(self._waiting)).grow():
                return

    def _close_slow(self) -> None:
        self._timer = None
        now_ns = self._mono_ns()
        for holder, start_ns in list(self._frame_start_ns.items()):
            max_s = MAX_FRAME_S + holder.size / MIN_BYTES_PER_S
            if self._waiting and holder not in self._waiting and now_ns - start_ns > max_s * 1e9:
                holder.close_connection("request too slow while others wait for memory")
        if self._waiting:
            self._timer = self._call_later(SWEEP_S, self._close_slow)
