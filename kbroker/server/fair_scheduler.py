"""Whose turn it is when some ask for much: nobody is refused, and nobody waits for long because of others.

A request that has kept the loop for longer than HEAVY_NS is followed by a time of REST times as much in which only
Produce and Fetch are served at once. All else waits its turn, in order. A client that asks for a million partitions
over and over so takes a third of the broker and not all of it. Where nobody produces or fetches meanwhile, there is
nothing to be kept free for.

Large answers are read and sent a piece at a time, one piece (half a MiB, as long as a hundred small requests) in one
turn of the loop, whoever it is for. What clients have sent ahead is served one client a turn: a hundred of them whose
requests have piled up behind a Fetch that waited are not served at a stretch while others wait for one answer.
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


class CallQueue:
    """Calls that are made in order, one in each turn of the loop."""

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self._soon = soon

    def add(self, call: Callable[[], None]) -> None:
        self.waiting.append(call)
        if len(self.waiting) == 1:
            self._soon(self._next)

    def _next(self) -> None:
        call = self.waiting.popleft()
        if self.waiting:
            self._soon(self._next)
        call()


class FairScheduler:
    """`resting`: something heavy has just been done. `data`: a number that grows with each Produce and Fetch that is
    answered. `pieces` of large answers, and what `backlogs` hold, are sent and served one in a turn of the loop."""

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
        self.pieces = CallQueue(soon)
        self.backlogs = CallQueue(soon)

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
