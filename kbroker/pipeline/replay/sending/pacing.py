"""Limits how fast a task sends: by records per second, or by the records' own timestamps.

A pacer returns how many of the next rows may be sent now. `due_ms` are the rows' timestamps in milliseconds, which
never decrease; clocks return seconds since 1970.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol

# RatePacer sends in steps of this length.
STEP_S = 0.1
# The longest wait, so that a task uses its connection regularly and notices when the broker is gone.
MAX_WAIT_S = 5.0


class Pacer(Protocol):
    def sendable_until(self, due_ms: Sequence[int], start: int) -> int:
        """Return the end of the rows from `start` on that may be sent now; `start` if none may."""

    def wait_s(self, due_ms: Sequence[int], start: int) -> float:
        """Return how many seconds to wait before asking again."""


class UnlimitedPacer:
    """No limit."""

    def sendable_until(self, due_ms: Sequence[int], start: int) -> int:
        return len(due_ms)

    def wait_s(self, due_ms: Sequence[int], start: int) -> float:
        return 0.0


class RatePacer:
    """At most `rate` records per second. At most two steps' unused allowance is kept."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._allowance = 0.0
        self._updated_at: float | None = None

    def sendable_until(self, due_ms: Sequence[int], start: int) -> int:
        now = self._clock()
        if self._updated_at is not None:
            self._allowance += (now - self._updated_at) * self._rate
            self._allowance = min(self._allowance, max(1.0, 2 * STEP_S * self._rate))
        self._updated_at = now
        count = min(int(self._allowance), len(due_ms) - start)
        self._allowance -= count
        return start + count

    def wait_s(self, due_ms: Sequence[int], start: int) -> float:
        step_records = max(1.0, STEP_S * self._rate)
        return min(max(0.0, (step_records - self._allowance) / self._rate), MAX_WAIT_S)


class SpeedPacer:
    """Replays time: a record due at `origin_ms` is sent at `begin_s`, later ones at `speed` times real time."""

    def __init__(self, speed: float, begin_s: float, origin_ms: int, clock: Callable[[], float]) -> None:
        self._speed = speed
        self._begin_s = begin_s
        self._origin_ms = origin_ms
        self._clock = clock

    def sendable_until(self, due_ms: Sequence[int], start: int) -> int:
        now_ms = self._origin_ms + (self._clock() - self._begin_s) * 1000 * self._speed
        return bisect_right(due_ms, now_ms, lo=start)

    def wait_s(self, due_ms: Sequence[int], start: int) -> float:
        send_at_s = self._begin_s + (due_ms[start] - self._origin_ms) / 1000 / self._speed
        return min(max(0.0, send_at_s - self._clock()), MAX_WAIT_S)
