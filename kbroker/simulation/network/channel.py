"""One direction of a connection that carries whole messages: late, in order, each once, or never."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

M = TypeVar("M")


class Channel(Generic[M]):
    """Gives messages to `take` on the loop of the receiver. While there is no way (`is_open` says no) they wait."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        delay: Callable[[M], float],
        is_open: Callable[[], bool],
        take: Callable[[M], None],
    ) -> None:
        self._loop = loop
        self._delay = delay
        self._is_open = is_open
        self._take = take
        self._queue: deque[tuple[float, M]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._closed = False

    def send(self, message: M) -> None:
        if not self._closed:
            self._queue.append((self._due(message), message))
            self._go_on()

    def there_is_a_way(self) -> None:
        """What has waited is sent again."""
        self._last = 0.0
        self._queue = deque((self._due(message), message) for _, message in self._queue)
        self._go_on()

    def lose(self) -> None:
        """What is on its way never arrives."""
        self._queue.clear()

    def close(self) -> None:
        self._closed = True
        self.lose()

    def _due(self, message: M) -> float:
        self._last = max(self._last, self._loop.time() + self._delay(message))
        return self._last

    def _go_on(self) -> None:
        if self._timer is None and self._queue and self._is_open():
            self._timer = self._loop.call_at(self._queue[0][0], self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        if self._queue and self._is_open():
            due, message = self._queue[0]
            if due <= self._loop.time():
                self._queue.popleft()
                self._take(message)
            self._go_on()
