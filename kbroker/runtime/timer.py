"""One timer for many deadlines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from kbroker.runtime.deadlines import Deadlines, Key

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from kbroker.runtime.environment import Environment

K = TypeVar("K", bound=Key)


class DeadlineTimer(Generic[K]):
    """Tells of each key whose time has come. A key without a deadline costs nothing."""

    def __init__(self, environment: Environment, due: Callable[[K], None]) -> None:
        self._environment = environment
        self._due = due
        self._deadlines: Deadlines[K] = Deadlines()
        self._timer: TimerHandle | None = None
        self._timer_ms = 0

    def set(self, key: K, when_ms: int | None) -> None:
        """The key's deadline, monotonic, may have changed; None: it has none now."""
        if when_ms is None:
            self._deadlines.cancel(key)
            return
        self._deadlines.set(key, when_ms)
        if self._timer is None or when_ms < self._timer_ms:
            self._arm(when_ms)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, when_ms: int) -> None:
        self.stop()
        self._timer_ms = when_ms
        delay_ms = max(0, when_ms - self._environment.clock.mono_ms())
        self._timer = self._environment.loop.call_later(delay_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_ms = self._environment.clock.mono_ms()
        while (key := self._deadlines.pop_due(now_ms)) is not None:
            self._due(key)
        next_ms = self._deadlines.next_ms()
        # What was due may have set other deadlines, and the timer with them.
        if next_ms is not None and (self._timer is None or next_ms < self._timer_ms):
            self._arm(next_ms)
