"""How quickly records are sent: as fast as it goes, so many a second, or as time went by in the records themselves.

A pacer says of rows in their order how many may go now. Clocks are in seconds since 1970, `dues` are timestamps in
ms that never go back.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Protocol

# A limited rate is kept in steps of this: what would have gone in it may go at once.
STEP_S = 0.1
# No wait is longer, so that a long one sees the broker go away.
LONGEST_WAIT_S = 5.0


class Pacer(Protocol):
    """`allowed`: the end of the rows from `start` on that may be sent now; `start` itself where none may. `wait_s`: how
    long until that can be different."""

    def allowed(self, dues: Sequence[int], start: int) -> int: ...

    def wait_s(self, dues: Sequence[int], start: int) -> float: ...


class Unpaced:
    """Everything at once."""

    def allowed(self, dues: Sequence[int], start: int) -> int:
        return len(dues)

    def wait_s(self, dues: Sequence[int], start: int) -> float:
        return 0.0


class Rate:
    """At most `rate` records a second since its first row; what was not used for a step is not made up for."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._clock = clock
        self._credit = 0.0
        self._counted_at: float | None = None

    def allowed(self, dues: Sequence[int], start: int) -> int:
        now = self._clock()
        if self._counted_at is not None:
            self._credit += (now - self._counted_at) * self._rate
            self._credit = min(self._credit, max(1.0, 2 * STEP_S * self._rate))
        self._counted_at = now
        count = min(int(self._credit), len(dues) - start)
        self._credit -= count
        return start + count

    def wait_s(self, dues: Sequence[int], start: int) -> float:
        wanted = max(1.0, STEP_S * self._rate)
        return min(max(0.0, (wanted - self._credit) / self._rate), LONGEST_WAIT_S)


class Speed:
    """A record goes when its time has come: `origin_ms` is sent at `begin_s`, all others by `speed` times real time."""

    def __init__(self, speed: float, begin_s: float, origin_ms: int, clock: Callable[[], float]) -> None:
        self._speed = speed
        self._begin_s = begin_s
        self._origin_ms = origin_ms
        self._clock = clock

    def allowed(self, dues: Sequence[int], start: int) -> int:
        reached = self._origin_ms + (self._clock() - self._begin_s) * 1000 * self._speed
        return bisect_right(dues, reached, lo=start)

    def wait_s(self, dues: Sequence[int], start: int) -> float:
        at = self._begin_s + (dues[start] - self._origin_ms) / 1000 / self._speed
        return min(max(0.0, at - self._clock()), LONGEST_WAIT_S)
