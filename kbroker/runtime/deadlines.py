"""Deadlines by key, cheap to move: heartbeats move one far more often than one is reached."""

from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar


class Key(Protocol):
    def __hash__(self) -> int: ...


K = TypeVar("K", bound=Key)

# Entries that may be left in the heap without their key before it is rebuilt.
SLACK = 64


class Deadlines(Generic[K]):
    """Monotonic milliseconds by key.

    Moving a deadline later only notes the new time; the heap's entry is corrected when its old time comes. So
    a heartbeat costs a dict lookup, and there is one entry a key, give or take.
    """

    __slots__ = ("_heap", "_seq", "_when")

    def __init__(self) -> None:
        # Key to [deadline, time of its entry in the heap].
        self._when: dict[K, list[int]] = {}
        self._heap: list[tuple[int, int, K]] = []
        self._seq = 0

    def __len__(self) -> int:
        return len(self._when)

    def __contains__(self, key: K) -> bool:
        return key in self._when

    def set(self, key: K, when_ms: int) -> None:
        """Set or move a deadline."""
        known = self._when.get(key)
        if known is None:
            self._when[key] = [when_ms, when_ms]
            self._push(key, when_ms)
        else:
            known[0] = when_ms
            if when_ms < known[1]:
                known[1] = when_ms
                self._push(key, when_ms)

    def cancel(self, key: K) -> None:
        if self._when.pop(key, None) is not None and len(self._heap) > 2 * len(self._when) + SLACK:
            self._rebuild()

    def next_ms(self) -> int | None:
        """The earliest deadline, None when there is none."""
        while self._heap:
            at, _, key = self._heap[0]
            known = self._when.get(key)
            if known is not None and known[0] == at:
                return at
            heappop(self._heap)
            if known is not None and known[1] == at:
                known[1] = known[0]
                self._push(key, known[0])
        return None

    def pop_due(self, now_ms: int) -> K | None:
        """Remove and give a key whose deadline has come, the earliest first; None when there is none."""
        at = self.next_ms()
        if at is None or at > now_ms:
            return None
        key = heappop(self._heap)[2]
        del self._when[key]
        return key

    def _push(self, key: K, when_ms: int) -> None:
        # The sequence number keeps keys from being compared, and equal times in order.
        self._seq += 1
        heappush(self._heap, (when_ms, self._seq, key))

    def _rebuild(self) -> None:
        for known in self._when.values():
            known[1] = known[0]
        self._heap = [(known[0], i, key) for i, (key, known) in enumerate(self._when.items())]
        self._seq = len(self._heap)
        heapify(self._heap)
