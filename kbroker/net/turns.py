"""Whose turn it is when some ask for much: nobody is refused, and nobody waits for long because of others.

A request that has kept the loop for longer than HEAVY_NS is followed by a time of REST times as much in which only
Produce and Fetch are served at once. All else waits its turn, in order. A client that asks for a million partitions
over and over so takes a third of the broker and not all of it. Where nobody produces or fetches meanwhile, there is
nothing to be kept free for.

Large answers are read and sent a piece at a time, and so many pieces in one turn of the loop, whoever they are for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import TimerHandle

HEAVY_NS = 2_000_000
REST = 2
LONGEST_REST_S = 1.0
# Of half a MiB; it takes as long as a hundred small requests.
PIECES_A_TURN = 1


class Turns:
    """`resting`: something heavy has just been done. `data`: a number that grows with each Produce and Fetch that is
    answered."""

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        later: Callable[[float, Callable[[], None]], TimerHandle],
        data: Callable[[], int],
    ) -> None:
        self.resting = False
        self._data = data
        self._data_seen = 0
        self._soon = soon
        self._later = later
        self._waiting: deque[Callable[[], None]] = deque()
        self._pieces: deque[Callable[[], None]] = deque()
        self._sending = False

    def heavy(self, ns: int) -> None:
        """A request took so long."""
        seen, self._data_seen = self._data_seen, self._data()
        if not self.resting and self._data_seen != seen:
            self.resting = True
            self._later(min(REST * ns / 1e9, LONGEST_REST_S), self._rested)

    def wait(self, serve: Callable[[], None]) -> None:
        """Call it when it is its turn. Only while `resting`."""
        self._waiting.append(serve)

    def _rested(self) -> None:
        self.resting = False
        self._next()

    def _next(self) -> None:
        """One in a turn of the loop, until one of them is heavy again."""
        if self._waiting and not self.resting:
            self._waiting.popleft()()
            self._soon(self._next)

    def piece(self, send: Callable[[], None]) -> None:
        """Call it in one of the next turns of the loop."""
        self._pieces.append(send)
        if not self._sending:
            self._sending = True
            self._soon(self._send)

    def _send(self) -> None:
        for _ in range(min(PIECES_A_TURN, len(self._pieces))):
            self._pieces.popleft()()
        self._sending = bool(self._pieces)
        if self._sending:
            self._soon(self._send)
