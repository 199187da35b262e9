"""Counts the calls of a method between two pauses in which others are served."""

from collections import Counter
from typing import Any

import pytest

from kbroker.runtime import turns


def calls_per_step(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Counter[int]:
    """Return the number of calls by the number of pauses of any turn (runtime/turns.py) before them."""
    calls: Counter[int] = Counter()
    steps = 0
    method, pause = getattr(owner, name), turns._Stack.pause

    def counted(*args: Any, **named: Any) -> Any:
        calls[steps] += 1
        return method(*args, **named)

    def counted_pause(stack: turns._Stack, awaited: Any) -> Any:
        nonlocal steps
        steps += 1
        return pause(stack, awaited)

    monkeypatch.setattr(owner, name, counted)
    monkeypatch.setattr(turns._Stack, "pause", counted_pause)
    return calls
