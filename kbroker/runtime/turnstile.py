"""Mutual exclusion between coroutines, in the order of arrival."""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future


class Turnstile:
    """`async with turnstile:` lets one coroutine through at a time. A cancelled waiter gives its place up."""

    def __init__(self, loop: "AbstractEventLoop") -> None:
        self._loop = loop
        self._taken = False
        self._waiting: deque[Future[None]] = deque()

    async def __aenter__(self) -> None:
        if not self._taken:
            self._taken = True
            return
        turn = self._loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._pass_on()
            raise

    async def __aexit__(self, *exception: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False
