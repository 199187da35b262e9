"""A lock for coroutines, acquired in the order of arrival (asyncio.Lock without its dependency on the running loop)."""

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future


class Mutex:
    """`async with mutex:`. A cancelled waiter leaves the queue."""

    def __init__(self, loop: "AbstractEventLoop") -> None:
        self._loop = loop
        self._is_locked = False
        self._waiting: deque[Future[None]] = deque()

    async def __aenter__(self) -> None:
        if not self._is_locked:
            self._is_locked = True
            return
        acquired = self._loop.create_future()
        self._waiting.append(acquired)
        try:
            await acquired
        except BaseException:
            if acquired.done() and not acquired.cancelled():
                self._release()
            raise

    async def __aexit__(self, *exception: object) -> None:
        self._release()

    def _release(self) -> None:
        while self._waiting:
            acquired = self._waiting.popleft()
            if not acquired.done():
                acquired.set_result(None)
                return
        self._is_locked = False
