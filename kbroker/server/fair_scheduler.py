"""Fair scheduling of expensive requests: none is rejected, and none delays the others for long.

- An expensive request is one other than Produce and Fetch that has kept the event loop busy for longer than
  EXPENSIVE_NS. For twice that time afterwards only Produce and Fetch requests are handled immediately; the others wait
  in a queue. So a client that repeatedly requests the metadata of a million partitions gets a third of the broker's
  time. While no client produces or fetches there is no such pause.
- A large response is sent in pieces of at most 256 KiB. Each iteration of the event loop sends at most four pieces over
  all connections, which takes as long as ten small requests.
- Each iteration of the event loop handles the backlog of one connection.
- Each iteration of the event loop reads a few large frames of each connection (Connection._end_turn).
- Each iteration of the event loop runs a turn of one large request (large_request.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import TimerHandle

EXPENSIVE_NS = 2_000_000
PAUSE_FACTOR = 2
MAX_PAUSE_S = 1.0
# Pieces of large responses that are sent in one iteration of the event loop.
PIECES_AT_ONCE = 4
# Produce and Fetch have the API keys 0 and 1.
LAST_DATA_API_KEY = 1


class CallQueue:
    """Calls that are made in order, at most `at_once` of them in each iteration of the event loop."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], at_once: int = 1) -> None:
        self.calls: deque[Callable[[], None]] = deque()
        self._call_soon = call_soon
        self._at_once = at_once

    def add(self, call: Callable[[], None]) -> None:
        self.calls.append(call)
        if len(self.calls) <= self._at_once:
            self._call_soon(self._run_next)

    def _run_next(self) -> None:
        call = self.calls.popleft()
        if len(self.calls) >= self._at_once:
            self._call_soon(self._run_next)
        call()


class FairScheduler:
    """`is_paused`: an expensive request has just been handled, so only Produce and Fetch are handled immediately."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        call_later: Callable[[float, Callable[[], None]], TimerHandle],
        data_time_ns: Callable[[], int],
    ) -> None:
        """`data_time_ns`: the total time of all Produce and Fetch requests since the start."""
        self.is_paused = False
        # Pieces of large responses, connections with a backlog, and turns of large requests.
        self.response_pieces = CallQueue(call_soon, PIECES_AT_ONCE)
        self.backlogs = CallQueue(call_soon)
        self.request_turns = CallQueue(call_soon)
        self._data_time_ns = data_time_ns
        self._last_data_time_ns = 0
        self._call_soon = call_soon
        self._call_later = call_later
        self._waiting: deque[Callable[[], None]] = deque()

    def pause_after(self, expensive_ns: int) -> None:
        """Begin a pause after an expensive request, unless no client has produced or fetched since the last one."""
        before, self._last_data_time_ns = self._last_data_time_ns, self._data_time_ns()
        if not self.is_paused and self._last_data_time_ns != before:
            self.is_paused = True
            self._call_later(min(PAUSE_FACTOR * expensive_ns / 1e9, MAX_PAUSE_S), self._end_pause)

    def call_after_pause(self, call: Callable[[], None]) -> None:
        """Queue a call for the end of the pause."""
        self._waiting.append(call)

    def _end_pause(self) -> None:
        self.is_paused = False
        self._run_next()

    def _run_next(self) -> None:
        """Make one call in each iteration of the event loop, until one of them is expensive again."""
        if self._waiting and not self.is_paused:
            self._waiting.popleft()()
            self._call_soon(self._run_next)
