"""Purgatory: requests that wait on a condition or a deadline.

The condition is checked by whoever causes it (an append, a flush), which completes the operation itself; this
room only keeps the deadlines. Pure: time comes in as `now_ms` of the monotonic clock.
"""

from heapq import heapify, heappop, heappush


class DelayedOperation:
    """A waiting request. Exactly one of `complete` and `expire` takes effect, once."""

    __slots__ = ("deadline_ms", "done")

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms
        self.done = False

    def finish(self) -> bool:
        """Claim the right to answer; False when somebody has answered already."""
        if self.done:
            return False
        self.done = True
        return True

    def expire(self) -> None:
        """The deadline has passed: answer with what there is."""
        raise AssertionError("a waiting operation says what it does when its time is over")


class Purgatory:
    """The deadlines of waiting operations, earliest first.

    Operations that were answered early stay in the heap until their deadline or until they are the majority,
    whichever is first, so that completing one costs nothing and the heap stays within twice what waits.
    """

    __slots__ = ("_done", "_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, DelayedOperation]] = []
        self._sequence = 0
        self._done = 0

    def __len__(self) -> int:
        return len(self._heap) - self._done

    def waiting(self) -> list[DelayedOperation]:
        """To look at."""
        return [operation for _, _, operation in self._heap if not operation.done]

    def watch(self, operation: DelayedOperation) -> None:
        self._sequence += 1
        heappush(self._heap, (operation.deadline_ms, self._sequence, operation))

    def completed(self) -> None:
        """An operation was answered before its deadline."""
        self._done += 1
        if self._done > 64 and self._done * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].done]
            heapify(self._heap)
            self._done = 0

    def next_deadline_ms(self) -> int | None:
        heap = self._heap
        while heap and heap[0][2].done:
            heappop(heap)
            self._done -= 1
        return heap[0][0] if heap else None

    def expire(self, now_ms: int) -> int:
        """Expire what is due at `now_ms`; gives how many operations that were."""
        expired = 0
        while (deadline := self.next_deadline_ms()) is not None and deadline <= now_ms:
            operation = heappop(self._heap)[2]
            expired += 1
            operation.expire()
            # An operation that expired by its own answer is counted by nobody else.
            operation.done = True
        return expired
