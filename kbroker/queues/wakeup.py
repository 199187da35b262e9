"""Wakes a task that waits for work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future


class Wakeup:
    """The wait of one task, which checks for work before each wait: `wake` has no effect while it does not wait."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: Future[None] | None = None

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, max_s: float | None) -> None:
        """Wait until `wake`, at most `max_s` seconds; None: without a limit."""
        waiting = self._waiting = self._loop.create_future()
        timer = None if max_s is None else self._loop.call_later(max_s, self.wake)
        try:
            await waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()
