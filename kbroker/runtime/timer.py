"""One timer of the event loop for any number of deadlines."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, TypeVar

from kbroker.runtime.deadlines import Deadlines

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from kbroker.runtime.environment import Environment

K = TypeVar("K", bound=Hashable)

# Others run before further deadlines that have passed: those of a whole group may pass at once.
EXPIRED_AT_ONCE = 64


class DeadlineTimer(Deadlines[K]):
    """Calls `on_expired` with each key whose deadline has passed.

    A cancelled deadline leaves the timer of the event loop as it is: the next deadline is probably close.
    """

    __slots__ = ("_environment", "_on_expired", "_timer", "_timer_ms")

    def __init__(self, environment: Environment, on_expired: Callable[[K], None]) -> None:
        super().__init__()
        self._environment = environment
        self._on_expired = on_expired
        self._timer: TimerHandle | None = None
        self._timer_ms = 0

    def set(self, key: K, deadline_ms: int) -> None:
        """Set or move the deadline of a key, in monotonic milliseconds."""
        super().set(key, deadline_ms)
        if self._timer is None or deadline_ms < self._timer_ms:
            self._start_timer(deadline_ms)

    def stop(self) -> None:
        """Cancel all deadlines."""
        self.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_ms = max(0, deadline_ms - self._environment.clock.mono_ms())
        self._timer = self._environment.loop.call_later(delay_ms / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_ms = self._environment.clock.mono_ms()
        for _ in range(EXPIRED_AT_ONCE):
            key = self.pop_due(now_ms)
            if key is None:
                break
            self._on_expired(key)
        next_ms = self.next_ms()
        # `on_expired` may have set a deadline and started the timer already.
        if next_ms is not None and (self._timer is None or next_ms < self._timer_ms):
            self._start_timer(next_ms)
