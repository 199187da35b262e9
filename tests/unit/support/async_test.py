"""Tests that are coroutines on asyncio's event loop; waiting in virtual time (simulated_broker, simulated_hosts)."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any


def async_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine function as a test."""

    @wraps(test)
    def run_test(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run_test


async def until(condition: Callable[[], object], seconds: float) -> None:
    """Wait in virtual time until a condition is true.

    The pauses grow with the wait, to a hundredth of it: each is an iteration of the event loop, and some tests wait for
    minutes.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        waited = loop.time() - began
        assert waited < seconds, "the condition did not become true"
        await asyncio.sleep(max(0.001, waited / 100))
