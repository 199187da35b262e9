"""What requests take that are not served yet, or not to their end (holdings.py): it is bounded for all connections
together, however many announce large requests and leave it at that.

Up to LARGE bytes a frame's buffer grows as it arrives; beyond that only small frames' do, and that of one connection at
a time, so that there is always one that can be finished. The others are not read from until there is room. While
somebody waits, whoever has had LONGEST_S for its frame is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from kbroker.server.receive_buffer import ReceiveBuffer

LARGE = 16 * 1024 * 1024
# Kept for frames of at most SMALL_FRAME bytes.
RESERVE = 8 * 1024 * 1024
SMALL_FRAME = 64 * 1024
LONGEST_S = 30.0
# For a large frame so much longer.
SLOWEST_BYTES_A_S = 1024 * 1024
SWEEP_S = 1.0


class RequestMemory:
    """`held` bytes are; while they are too many, `scarce`, connections should read little at a time."""

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        later: Callable[[float, Callable[[], None]], TimerHandle],
        mono_ns: Callable[[], int],
    ) -> None:
        self.held = 0
        # Of that, what is kept by requests that are being served: they will be through by themselves.
        self.working = 0
        self._soon = soon
        self._later = later
        self._mono_ns = mono_ns
        # The connection that may go beyond the bounds.
        self._favoured: ReceiveBuffer | None = None
        # Those that wait, in order.
        self._waiting: dict[ReceiveBuffer, None] = {}
        # Since when connections have had a frame that is not whole (monotonic).
        self._begun: dict[ReceiveBuffer, int] = {}
        self._timer: TimerHandle | None = None

    @property
    def scarce(self) -> bool:
        return self.held > LARGE

    def may_grow(self, holdings: ReceiveBuffer, more: int, size: int) -> bool:
        """Whether the buffer of its frame may become `size` bytes, by `more`; else its `grow` is called when it may."""
        if self._allowed(holdings, more, size):
            self._waiting.pop(holdings, None)
            return True
        self._waiting.setdefault(holdings)
        if self._timer is None:
            self._timer = self._later(SWEEP_S, self._sweep)
        return False

    def _allowed(self, holdings: ReceiveBuffer, more: int, size: int) -> bool:
        held = self.held + more - (0 if self._favoured is None else self._favoured.size)
        if held <= LARGE or (size <= SMALL_FRAME and held <= LARGE + RESERVE):
            return True
        if self._favoured is None and self.working <= LARGE:
            self._favoured = holdings
        return self._favoured is holdings

    def changed(self, holdings: ReceiveBuffer, by: int) -> None:
        """What a connection holds has grown or shrunk."""
        self.held += by
        if holdings.partial is not None:
            self._begun.setdefault(holdings, self._mono_ns())
        else:
            self._begun.pop(holdings, None)
            if self._favoured is holdings:
                self._favoured = None
        if by < 0 and self._waiting:
            self._soon(self._let_grow)

    def forget(self, holdings: ReceiveBuffer) -> None:
        """Its connection is closed, and holds nothing any more."""
        self._waiting.pop(holdings, None)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _let_grow(self) -> None:
        """In order, until one may not."""
        while self._waiting:
            if not next(iter(self._waiting)).grow():
                return

    def _sweep(self) -> None:
        self._timer = None
        now = self._mono_ns()
        for holdings, since in list(self._begun.items()):
            longest_s = LONGEST_S + holdings.size / SLOWEST_BYTES_A_S
            if self._waiting and holdings not in self._waiting and now - since > longest_s * 1e9:
                holdings.close("request too slow while others wait for memory")
        if self._waiting:
            self._timer = self._later(SWEEP_S, self._sweep)
