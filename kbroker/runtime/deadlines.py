"""Deadlines by key in a heap, and one timer of the event loop for all of them.

Moving a deadline is cheap: heartbeats move one far more often than one expires.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from asyncio import TimerHandle

K = TypeVar("K", bound=Hashable)

# The heap is rebuilt when it has more than twice as many entries as there are keys, plus this many.
MAX_STALE_ENTRIES = 64
# Others run before further deadlines that have passed: those of a whole group may pass at once.
EXPIRED_AT_ONCE = 64


class Deadlines(Generic[K]):
    """Deadlines in monotonic milliseconds, by key.

    Moving a deadline later only changes the dict; the heap entry is corrected when its old time comes. So a heartbeat
    costs one dict lookup, and the heap holds about one entry per key.
    """

    __slots__ = ("_deadlines", "_heap", "_sequence")

    def __init__(self) -> None:
        # [deadline, time of the key's entry in the heap].
        self._deadlines: dict[K, list[int]] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: K) -> bool:
        return key in self._deadlines

    def keys(self) -> list[K]:
        return list(self._deadlines)

    def set(self, key: K, deadline_ms: int) -> None:
        """Set or move the deadline of a key."""
        times = self._deadlines.get(key)
        if times is None:
            self._deadlines[key] = [deadline_ms, deadline_ms]
        else:
            times[0] = deadline_ms
            if deadline_ms >= times[1]:
                return
            times[1] = deadline_ms
        # The sequence number orders equal deadlines, and keys need not be comparable.
        self._sequence += 1
        heappush(self._heap, (deadline_ms, self._sequence, key))

    def cancel(self, key: K) -> None:
        """Remove the deadline of a key, if it has one."""
        removed = self._deadlines.pop(key, None)
        if removed is not None and len(self._heap) > 2 * len(self._deadlines) + MAX_STALE_ENTRIES:
            self._rebuild()

    def not_before_ms(self) -> int | None:
        """Return a time before which no deadline passes, at no cost; None if there is no deadline.

        It is earlier than `next_ms` if a deadline was moved or cancelled, until `next_ms` or `pop_due` is called.
        """
        return self._heap[0][0] if self._heap else None

    def next_ms(self) -> int | None:
        """Return the earliest deadline, or None."""
        while self._heap:
            entry_ms, _, key = self._heap[0]
            times = self._deadlines.get(key)
            if times is not None and times[0] == entry_ms:
                return entry_ms
            heappop(self._heap)
            if times is not None and times[1] == entry_ms:
                times[1] = times[0]
                self._sequence += 1
                heappush(self._heap, (times[0], self._sequence, key))
        return None

    def pop_due(self, now_ms: int) -> K | None:
        """Remove and return the key with the earliest deadline, or None if no deadline has passed."""
        next_ms = self.next_ms()
        if next_ms is None or next_ms > now_ms:
            return None
        key = heappop(self._heap)[2]
        del self._deadlines[key]
        return key

    def postpone(self, ms: int) -> None:
        """Move all deadlines later."""
        for times in self._deadlines.values():
            times[0] += ms

    def clear(self) -> None:
        """Cancel all deadlines."""
        self._deadlines.clear()
        self._heap.clear()

    def _rebuild(self) -> None:
        for times in self._deadlines.values():
            times[1] = times[0]
        self._heap = [(times[0], i, key) for i, (key, times) in enumerate(self._deadlines.items())]
        self._sequence = len(self._heap)
        heapify(self._heap)


class DeadlineTimer(Deadlines[K]):
    """Calls `on_expired` with each key whose deadline has passed.

    A cancelled deadline leaves the timer of the event loop as it is: the next deadline is probably close.
    """

    __slots__ = ("_call_later", "_mono_ms", "_on_expired", "_timer", "_timer_ms")

    def __init__(
        self,
        mono_ms: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], TimerHandle],
        on_expired: Callable[[K], None],
    ) -> None:
        super().__init__()
        self._mono_ms, self._call_later = mono_ms, call_later
        self._on_expired = on_expired
        self._timer: TimerHandle | None = None
        self._timer_ms = 0

    def set(self, key: K, deadline_ms: int) -> None:
        """Set or move the deadline of a key, in monotonic milliseconds."""
        times = self._deadlines.get(key)
        if times is not None and times[0] == deadline_ms:
            # Its timer is running.
            return
        # super() would take as long as the rest.
        Deadlines.set(self, key, deadline_ms)
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
        self._timer = self._call_later(max(0, deadline_ms - self._mono_ms()) / 1000, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_ms = self._mono_ms()
        for _ in range(EXPIRED_AT_ONCE):
            key = self.pop_due(now_ms)
            if key is None:
                break
            self._on_expired(key)
        next_ms = self.next_ms()
        # `on_expired` may have set a deadline and started the timer already.
        if next_ms is not None and (self._timer is None or next_ms < self._timer_ms):
            self._start_timer(next_ms)
