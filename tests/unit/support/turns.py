"""Observes the turns in which large requests are served, and stops between them."""

import asyncio
from collections.abc import Callable, Generator
from itertools import count
from typing import TypeVar, cast

import pytest

from kbroker.runtime import turns
from tests.unit.support.simulated_broker import Machine

T = TypeVar("T")


def count_turns(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that returns how many turns have ended before their calls were complete."""
    ended: list[None] = []
    enter = turns._Stack.enter

    def counted(self: turns._Stack, *arguments: object) -> object:
        if self.awaited is turns._NEXT_TURN:
            ended.append(None)
        return enter(self, *arguments)

    monkeypatch.setattr(turns._Stack, "enter", counted)
    return lambda: len(ended)


def hold_turns(m: Machine, monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool] = lambda: True) -> asyncio.Event:
    """Stop large requests at the end of a turn, until the event is set."""
    may_continue = asyncio.Event()
    request_turns = m.broker._server.context.turns
    next_turn = request_turns._next_turn

    async def held() -> None:
        await (may_continue.wait() if when() else next_turn())

    monkeypatch.setattr(request_turns, "_next_turn", held)
    return may_continue


def pauses_of(function: Callable[..., T], *arguments: object) -> Generator[None, None, T]:
    """Call a function, and yield whenever it may pause. The value of the generator is its result."""
    moments = count(0, 2 * turns.TURN_NS)
    stack = turns.new_stack(moments.__next__)
    result = stack.enter(function, arguments)
    while stack.awaited is not None:
        yield
        result = stack.enter(None)
    if isinstance(result, turns._Failure):
        raise result.take()
    return cast(T, result)
