"""One direction of a connection that carries whole messages: in order, with a delay, each at most once."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

M = TypeVar("M")


class DelayedChannel(Generic[M]):
    """Passes messages to `receive` on the receiver's loop. Messages wait while `is_open` returns False."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        delay_s: Callable[[M], float],
        is_open: Callable[[], bool],
        receive: Callable[[M], None],
    ) -> None:
        self._loop = loop
        self._delay_s = delay_s
        self._is_open = is_open
        self._receive = receive
        # Messages in flight, each with the loop's time at which it arrives.
        self._queue: deque[tuple[float, M]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._last_due = 0.0
        self._closed = False

    def send(self, message: M) -> None:
        if not self._closed:
            self._queue.append((self._due(message), message))
            self._schedule()

    def retransmit(self) -> None:
        """Send the messages that have waited, because the channel is open again."""
        self._last_due = 0.0
        self._queue = deque((self._due(message), message) for _, message in self._queue)
        self._schedule()

    def drop(self) -> None:
        """Lose the messages in flight."""
        self._queue.clear()

    def close(self) -> None:
        self._closed = True
        self.drop()

    def _due(self, message: M) -> float:
        self._last_due = max(self._last_due, self._loop.time() + self._delay_s(message))
        return self._last_due

    def _schedule(self) -> None:
        if self._timer is None and self._queue and self._is_open():
            self._timer = self._loop.call_at(self._queue[0][0], self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        if self._queue and self._is_open():
            due, message = self._queue[0]
            if due <= self._loop.time():
                self._queue.popleft()
                self._receive(message)
            self._schedule()
