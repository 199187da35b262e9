"""Counts the calls of a method between two iterations of the event loop in which others are served."""

from collections import Counter
from collections.abc import Awaitable
from typing import Any

import pytest

from kbroker.runtime.environment import Environment


def calls_per_step(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Counter[int]:
    """Return the number of calls by the number of calls of `Environment.yield_to_loop` before them."""
    calls: Counter[int] = Counter()
    steps = 0
    method, yield_to_loop = getattr(owner, name), Environment.yield_to_loop

    def counted(*args: Any, **named: Any) -> Any:
        calls[steps] += 1
        return method(*args, **named)

    def next_step(environment: Environment) -> Awaitable[None]:
        nonlocal steps
        steps += 1
        return yield_to_loop(environment)

    monkeypatch.setattr(owner, name, counted)
    monkeypatch.setattr(Environment, "yield_to_loop", next_step)
    return calls
