"""The response of a request that waits for a condition or a deadline."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar, cast

R = TypeVar("R")


class DelayedResponse(Generic[R]):
    """A future response: it is awaitable, and completed once.

    Unlike an asyncio.Future it has one callback, which it calls immediately, not in the next iteration of the event
    loop. With asyncio.Future a Fetch that waits takes 11 % more processor time.
    """

    __slots__ = ("_awaiting", "_callback", "_response", "is_done")

    def __init__(self) -> None:
        # Whether it is completed or abandoned.
        self.is_done = False
        self._response: R | None = None
        self._callback: Callable[[R], object] | None = None
        # The future of the coroutine that awaits the response.
        self._awaiting: Future[R] | None = None

    def on_complete(self, callback: Callable[[R], object]) -> None:
        """Set the callback. It is called immediately if the response is already complete."""
        if self.is_done:
            callback(cast(R, self._response))
        else:
            self._callback = callback

    def complete(self, response: R) -> None:
        """Set the response. No effect if it is already complete or abandoned."""
        if self.is_done:
            return
        self.is_done = True
        self._response = response
        if self._callback is not None:
            self._callback(response)

    def abandon(self) -> None:
        """Give up the response, because the client's connection is closed. A coroutine that awaits it is cancelled."""
        self.is_done = True
        self._callback = None
        if self._awaiting is not None:
            self._awaiting.cancel()

    def __await__(self) -> Generator[Any, None, R]:
        future: Future[R] = Future()
        self._awaiting = future

        def set_result(response: R) -> None:
            # When the broker stops, the awaiting task may be cancelled in the same iteration of the event loop.
            if not future.done():
                future.set_result(response)

        self.on_complete(set_result)
        return (yield from future)
