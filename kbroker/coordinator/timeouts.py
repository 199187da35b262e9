"""Answers that are given in time: when what they wait for is settled, or else when their time is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

Answer = Callable[[ErrorCode], None]


class _Waiting:
    __slots__ = ("answer", "deadline_s", "error")

    def __init__(self, answer: Answer, error: ErrorCode, deadline_s: float) -> None:
        self.answer: Answer | None = answer
        self.error = error
        self.deadline_s = deadline_s

    def give(self, error: ErrorCode) -> None:
        answer, self.answer = self.answer, None
        if answer is not None:
            answer(error)


class ResponseTimeouts:
    """Answers of one kind, of which most are given long before their time is over: one timer does for all of them."""

    def __init__(self, loop: AbstractEventLoop, timeout_ms: Callable[[], int]) -> None:
        """`timeout_ms` is asked for each answer: the config may change, and then the older ones keep their time."""
        self._loop = loop
        self._timeout_ms = timeout_ms
        self._waiting: deque[_Waiting] = deque()
        self._timer: TimerHandle | None = None

    def begin(self, answer: Answer, too_late: ErrorCode) -> Answer:
        """What is to be called when it is settled. `answer` is called once: then, or with `too_late` before."""
        one = _Waiting(answer, too_late, self._loop.time() + self._timeout_ms() / 1000)
        self._waiting.append(one)
        if self._timer is None:
            self._timer = self._loop.call_at(one.deadline_s, self._expire)

        def settle(error: ErrorCode) -> None:
            one.give(error)
            while self._waiting and self._waiting[0].answer is None:
                self._waiting.popleft()

        return settle

    def _expire(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        while self._waiting and (self._waiting[0].answer is None or self._waiting[0].deadline_s <= now_s):
            one = self._waiting.popleft()
            one.give(one.error)
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0].deadline_s, self._expire)
